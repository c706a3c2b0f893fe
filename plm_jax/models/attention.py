"""Attention, over itself, a cache or a memory.

Shapes: B batch, L length, M memory's length, Q queries, D width, N heads, G heads of keys and values, H head_dim.
Scores and softmax run in float32.
"""

import functools
import importlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Integer, Shaped

from plm_jax.models import partitioning
from plm_jax.models.kernels import Context, cudnn, plain, platform
from plm_jax.models.kernels.context import Keys, Queries, Seed, Window
from plm_jax.models.kernels.over_mesh import over_mesh
from plm_jax.models.layers import Dense, Depth, Memory, Stream
from plm_jax.models.partitioning import constrain, mesh_axes
from plm_jax.models.transformer import TransformerConfig


def causal_positions(
    length: int, mask: Shaped[Any, "batch slots"] | None = None, cache_index: Integer[Array, ""] | int | None = None
) -> Integer[Array, "rows length"]:
    """Positions [B or 1, length] of a causal stack's tokens: cumsum(mask) - 1, with a cache or no mask the slots."""
    if mask is None or cache_index is not None:
        return (0 if cache_index is None else cache_index) + jnp.arange(length)[None]
    return jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)


class Attention(nn.Module):
    """Multi-head attention of x [B, Q, D] over itself, over a key/value cache, or over a memory."""

    model: TransformerConfig
    dtype: Any
    deterministic: bool

    @nn.compact
    def __call__(self, x: Stream, source: Memory | None, context: Context, depth: Depth) -> Stream:
        """Attends.

        Args:
          x: [B, Q, D], what asks.
          source: what keys and values are made of: x, or a memory [B, M, D]; None: the cached keys of one seen before.
          context: the `Context` of this attention.
          depth: this block's number, from 0.
        """
        attention, initializer = self.model.attention, self.model.initializer
        scale = attention.head_dim**-0.5 if attention.score_scale is None else attention.score_scale
        if attention.scale_by_inverse_depth:
            scale = scale / (depth + 1)

        def project(name, x, heads):
            init = initializer.query(attention.head_dim) if name == "query" else initializer.matrix()
            joined = heads * attention.head_dim
            projected = Dense(joined, ("embed", "heads"), attention.bias, init, self.dtype, name=name)(x)
            # Where more devices share a kernel than there are heads, each has parts of heads: of these XLA makes wrong
            # gradients, so that all heads are whole on each.
            in_parts = heads % mesh_axes("heads").get("tensor", 1) > 0
            with partitioning.without(["tensor"] if in_parts else []):
                if in_parts:
                    projected = constrain(projected, "batch", "length", None)
                projected = projected.reshape(*x.shape[:-1], heads, attention.head_dim)
                return constrain(projected.swapaxes(1, 2), "batch", "heads", "length", None)

        rotate = context.rotation or (lambda x: x)
        query_BNQH = (rotate(project("query", x, attention.heads)) * scale).astype(self.dtype)
        if source is None:
            key_BGKH = self.get_variable("cache", "cached_key").swapaxes(2, 3)
            value_BGKH = self.get_variable("cache", "cached_value")
        else:
            key_BGKH = rotate(project("key", source, attention.num_kv_heads))
            value_BGKH = project("value", source, attention.num_kv_heads)
            if context.cache_index is not None:
                # Keys have their slots last: the product with few queries, which a CPU does row by row, is faster so.
                key_BGKH = self._remember("key", key_BGKH.swapaxes(2, 3), context, axis=3).swapaxes(2, 3)
                value_BGKH = self._remember("value", value_BGKH, context, axis=2)
        seed = jax.random.bits(self.make_rng("dropout"), (2,), jnp.uint32) if context.dropout else None
        mixed_BNQH = attend(query_BNQH, key_BGKH, value_BGKH, context, depth, seed)
        mixed = constrain(mixed_BNQH.swapaxes(1, 2).reshape(*x.shape[:-1], -1), "batch", "length", "heads")
        init = initializer.residual(self.model.stack.blocks)
        return Dense(x.shape[-1], ("heads", "embed"), attention.bias_after, init, self.dtype, name="out")(mixed)

    def _remember(self, name, new, context, axis):
        """Writes new keys or values to the cache, on this axis from `cache_index` on; gives all that it has."""
        shape = *new.shape[:axis], context.mask.shape[-1], *new.shape[axis + 1 :]
        cache = self.variable("cache", f"cached_{name}", jnp.zeros, shape, new.dtype)
        cache.value = jax.lax.dynamic_update_slice_in_dim(cache.value, new, context.cache_index, axis)
        return cache.value


def attend(
    query_BNQH: Queries, key_BGKH: Keys, value_BGKH: Keys, context: Context, depth: Depth = 0, seed: Seed | None = None
) -> Queries:
    """softmax(query · key + bias) · value over the keys that each query sees: [B, N, Q, H].

    A query that sees none gets zeros or some mean of the values, by kernel: of no use, but finite.

    Args:
      query_BNQH: scaled already.
      context: with a kernel.
      depth: the layer's number, from 0, which chooses its window.
      seed: uint32 [2], by which the context's share of the weights is dropped; None: nothing is.
    """
    if seed is not None and context.dropout >= 1:
        return jnp.zeros_like(query_BNQH)
    attend = plain.attend if context.kernel == "xla" else _attend_by_kernel
    return attend(query_BNQH, key_BGKH, value_BGKH, context, context.window(depth), seed)


def _attend_by_kernel(
    query_BNQH: Queries, key_BGKH: Keys, value_BGKH: Keys, context: Context, window: Window | None, seed: Seed | None
) -> Queries:
    """Attends by a kernel that each device runs on its own rows and heads."""
    arrays = query_BNQH, key_BGKH, value_BGKH
    if context.kernel == "cudnn":
        # A prefix is in the dense mask, and causality with it.
        causal = context.causal and context.prefix_lengths is None
        return over_mesh(functools.partial(cudnn.attend, causal=causal), *arrays, visible=context.visible)
    query_ids, key_ids = context.ids(query_BNQH.shape[0], query_BNQH.shape[2], key_BGKH.shape[2])
    return over_mesh(
        functools.partial(_flash, context=context),
        *arrays,
        query_ids=query_ids,
        key_ids=key_ids,
        prefix_lengths=context.prefix_lengths,
        window=window,
        distance_bias=context.distance_bias,
        seed=seed,
        rows=context.rows,
        length="length",
        causal=context.causal,
    )


def _flash(query_BNQH, key_BGKH, value_BGKH, *, context, **arrays):
    # Imported here: Pallas takes a second, and only its devices (and tests, interpreted) need it.
    name = "gpu" if platform() == "cuda" else "tpu"
    return importlib.import_module(f"plm_jax.models.kernels.{name}").flash(
        query_BNQH,
        key_BGKH,
        value_BGKH,
        causal=context.causal,
        rate=context.dropout,
        broadcast=context.broadcast,
        interpret=platform() not in ("tpu", "cuda"),
        **arrays,
    )
