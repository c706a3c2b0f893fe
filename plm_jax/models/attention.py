"""Self-attention, optionally with a key/value cache, and attention to a memory (the encoder's outputs).

Shapes: B batch, L length, M length of the memory, Q queries, D width, N heads, G heads of keys and values, H head_dim.
Scores and softmax are computed in float32.
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
from plm_jax.models.kernels.by_stream import by_stream
from plm_jax.models.kernels.context import Keys, Queries, Seed, Window, add_biases, join_heads, split_heads
from plm_jax.models.kernels.over_mesh import over_mesh
from plm_jax.models.layers import Dense, Depth, Dropout, Memory, Stream, norm
from plm_jax.models.partitioning import constrain, mesh_axes
from plm_jax.models.positions import SelfAttentionLayer
from plm_jax.models.transformer import TransformerConfig


def causal_positions(
    length: int, mask: Shaped[Any, "batch slots"] | None = None, cache_index: Integer[Array, ""] | int | None = None
) -> Integer[Array, "rows length"]:
    """Returns the default positions of tokens in a causal stack, int32 [B or 1, length].

    With a cache, the positions count up from `cache_index`. Without a cache, they are cumsum(mask) - 1 (but at least
    0), or arange(length) without a mask.
    """
    if mask is None or cache_index is not None:
        return (0 if cache_index is None else cache_index) + jnp.arange(length)[None]
    return jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)


class Attention(nn.Module):
    """Multi-head attention from x [B, Q, D] to itself, another sequence, a key/value cache or a memory.

    Attributes:
      reads_memory: whether the module attends to a memory. The keys of a memory have no positions.
    """

    model: TransformerConfig
    dtype: Any
    deterministic: bool
    reads_memory: bool = False

    @nn.compact
    def __call__(self, x: Stream, source: Memory | None, context: Context, depth: Depth) -> Stream:
        """Returns the output of the attention [B, Q, D].

        Args:
          x: [B, Q, D], from which the queries are computed.
          source: [B, K, D], from which keys and values are computed: x or another sequence. None: use the keys and
            values that an earlier call cached.
          context: the `Context` of this attention.
          depth: index of this block, from 0.
        """
        attention, initializer = self.model.attention, self.model.initializer
        scale = attention.score_scale or (attention.head_dim * attention.position.score_terms) ** -0.5
        scale = scale / (depth + 1) if attention.scale_by_inverse_depth else scale
        heads_of = {"query": attention.heads, "key": attention.num_kv_heads, "value": attention.num_kv_heads}

        def dense(name):
            init = initializer.query(attention.head_dim) if name == "query" else initializer.matrix()
            bias = attention.bias and (name != "key" or attention.key_bias)
            features = heads_of[name] * attention.head_dim
            return Dense(features, ("embed", "heads"), bias, init, self.dtype, name=name)

        projections = {name: dense(name) for name in heads_of}

        def project(name, x, normalize=None, scale: Any = 1.0):
            """Projects x [B, L, D] to heads [B, N or G, L, H]."""
            heads, projected = heads_of[name], projections[name](x)
            # If the number of heads is not divisible by the number of devices, XLA would compute wrong gradients for
            # fractions of heads, so each device computes all heads.
            is_uneven = heads % mesh_axes("heads").get("tensor", 1) > 0
            with partitioning.without(["tensor"] if is_uneven else []):
                projected = constrain(projected, "batch", "length", "heads")
            if normalize is not None:
                projected = normalize(projected.reshape(*x.shape[:-1], heads, -1)).reshape(projected.shape)
            # Scaled before the heads are split, so that the transpositions here and before a kernel cancel.
            return split_heads((projected * scale).astype(self.dtype), heads)

        def queries_or_keys(name, x, rotation, scale: Any = 1.0):
            normalize = norm(self.model.norm, self.dtype, f"{name}_norm", axis=None) if attention.qk_norm else None
            x = project(name, x, normalize, scale)
            return x if rotation is None else rotation(x, depth)

        rotate_query, rotate_key = context.rotations
        query_BNQH = queries_or_keys("query", x, rotate_query, scale)
        if source is None:
            key_BGKH = self.get_variable("cache", "cached_key").swapaxes(2, 3)
            value_BGKH = self.get_variable("cache", "cached_value")
        else:
            key_BGKH = queries_or_keys("key", source, rotate_key)
            value_BGKH = project("value", source)
            if context.cache_index is not None:
                # Cached keys have the slots on the last axis, which makes products with a few queries faster on CPUs.
                key_BGKH = self._update_cache("key", key_BGKH.swapaxes(2, 3), context, axis=3).swapaxes(2, 3)
                value_BGKH = self._update_cache("value", value_BGKH, context, axis=2)
        if not self.reads_memory and attention.position.has_layer_bias:
            query_BNQH, context = self._with_layer_bias(query_BNQH, key_BGKH, context, depth, scale, project)
        seed = jax.random.bits(self.make_rng("dropout"), (2,), jnp.uint32) if context.dropout else None
        mixed_BNQH = attend(query_BNQH, key_BGKH, value_BGKH, context, depth, seed)
        mixed = constrain(join_heads(mixed_BNQH), "batch", "length", "heads")
        init = initializer.residual(self.model.stack.blocks)
        return Dense(x.shape[-1], ("heads", "embed"), attention.bias_after, init, self.dtype, name="out")(mixed)

    def _with_layer_bias(self, query_BNQH, key_BGKH, context, depth, scale, project):
        """Returns a pair: the queries, and the context with the position scheme's bias for this layer.

        For a flash kernel, the bias is a `RelativeScores`, and the scheme may also change the queries.
        """
        attention, position = self.model.attention, self.model.attention.position
        width, initializer = self.model.embedding.width, self.model.initializer
        declared = position.layer_tables(width, attention.heads, attention.head_dim, initializer)
        # XLA computes wrong gradients of small tables that are sharded by heads.
        tables = {
            name: table._replace(axes=tuple(None if axis == "heads" else axis for axis in table.axes)).declare(
                self, name
            )
            for name, table in declared.items()
        }
        if self.is_initializing():  # Without the tables of the stack.
            return query_BNQH, context
        drop = Dropout(self.model.dropout.residual, name="position_dropout")
        query_positions, key_positions = context.positions_by_row(query_BNQH.shape[2], key_BGKH.shape[2])

        def project_vectors(name, x):
            # If the vectors were sharded like positions, XLA would compute wrong gradients on meshes of three axes.
            with partitioning.without(mesh_axes("length")):
                return project(name, x.astype(self.dtype)[None])[0]

        layer = SelfAttentionLayer(
            depth=depth,
            tables=tables,
            shared_tables=context.tables,
            project=project_vectors,
            drop=lambda x: drop(x[None], deterministic=self.deterministic)[0],
            scale=scale,
            query_positions=query_positions,
            key_positions=key_positions,
            arrays=context.arrays,
        )
        if context.kernel == "flash":
            query_BNQH, relative = position.relative_scores(layer, query_BNQH, key_BGKH)
            return query_BNQH, context.replace(relative=relative)
        bias = add_biases(context.bias, position.layer_bias(layer, query_BNQH, key_BGKH))
        return query_BNQH, context.replace(bias=bias)

    def _update_cache(self, name, new, context, axis):
        """Writes new keys or values to the cache, starting at `cache_index` along `axis`; returns the whole cache."""
        shape = *new.shape[:axis], context.mask.shape[-1], *new.shape[axis + 1 :]
        cache = self.variable("cache", f"cached_{name}", jnp.zeros, shape, new.dtype)
        cache.value = jax.lax.dynamic_update_slice_in_dim(cache.value, new, context.cache_index, axis)
        return cache.value


def attend(
    query_BNQH: Queries, key_BGKH: Keys, value_BGKH: Keys, context: Context, depth: Depth = 0, seed: Seed | None = None
) -> Queries:
    """Computes softmax(query · key + bias) · value over the keys visible to each query: [B, N, Q, H].

    A query without visible keys gets zeros or a mean of the values, depending on the kernel; the result is finite.

    Args:
      query_BNQH: scaled queries.
      context: masks, biases and kernel, as returned by `Context.with_kernel`.
      depth: index of the layer, from 0; selects the window of the layer.
      seed: uint32 [2], seed for the dropout of attention weights; None: no dropout.
    """
    if seed is not None and context.dropout >= 1:
        return jnp.zeros_like(query_BNQH)
    attend = plain.attend if context.kernel == "xla" else _attend_by_kernel
    return attend(query_BNQH, key_BGKH, value_BGKH, context, context.window(depth), seed)


def _attend_by_kernel(
    query_BNQH: Queries, key_BGKH: Keys, value_BGKH: Keys, context: Context, window: Window | None, seed: Seed | None
) -> Queries:
    """Runs the context's kernel, `flash` or `cudnn`, on each device for the rows and heads of that device."""
    arrays = query_BNQH, key_BGKH, value_BGKH
    if context.kernel == "cudnn":
        # With a prefix, the dense mask includes causality.
        causal = context.causal and context.prefix_lengths is None
        return over_mesh(functools.partial(cudnn.attend, causal=causal), *arrays, visible=context.visible)

    def flash(query_BNQH, context, start=0):
        query_ids, key_ids = context.ids(query_BNQH.shape[0], query_BNQH.shape[2], key_BGKH.shape[2])
        query_order, key_order = context.order or (None, None)
        return over_mesh(
            functools.partial(_flash, context=context),
            *(query_BNQH, key_BGKH, value_BGKH),
            query_ids=query_ids,
            key_ids=key_ids,
            query_order=query_order,
            key_order=key_order,
            prefix_lengths=context.prefix_lengths,
            window=window,
            distance_bias=context.distance_bias,
            relative=context.relative,
            seed=seed,
            rows=context.rows,
            length="length",
            causal=context.causal,
            start=start,
        )

    return flash(query_BNQH, context) if context.targets is None else by_stream(flash, query_BNQH, context)


def _flash(query_BNQH, key_BGKH, value_BGKH, *, context, **arrays):
    # Imported here: importing Pallas takes a second, and only GPUs, TPUs and tests need it.
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
