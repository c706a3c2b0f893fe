"""Attention: what its queries see (`context`), which kernel computes it (`choice`), and the kernels.

`plain` is written out for XLA and takes everything. `tpu` (Pallas) and `gpu` (Pallas, Triton) are one flash attention
on two kinds of devices, `cudnn` is NVIDIA's own: they never hold all scores, and leave out what nobody sees. What is
dropped (`dropout`) is the same in all.

Shapes: B batch, Q queries, K keys, N heads, G groups (key/value heads; each serves N / G heads in a row), H head_dim.
Softmax runs in float32.
"""

import functools
import importlib

import jax
import jax.numpy as jnp

from plm_jax.models.kernels import cudnn, plain
from plm_jax.models.kernels.choice import choose, pick, platform, resolve
from plm_jax.models.kernels.context import RESIDUALS, Context
from plm_jax.models.kernels.over_mesh import over_mesh

__all__ = ["RESIDUALS", "Context", "attend", "choose", "pick", "platform", "resolve"]


def attend(
    query_BNQH, key_BGKH, value_BGKH, context: Context, depth: jax.Array | int = 0, seed: jax.Array | None = None
) -> jax.Array:
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
    arrays = query_BNQH, key_BGKH, value_BGKH
    window = context.window(depth)
    if context.kernel == "xla":
        return plain.attend(*arrays, context, window, seed)
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
    return importlib.import_module(f"{__name__}.{name}").flash(
        query_BNQH,
        key_BGKH,
        value_BGKH,
        causal=context.causal,
        rate=context.dropout,
        broadcast=context.broadcast,
        interpret=platform() not in ("tpu", "cuda"),
        **arrays,
    )
