"""Attention by XLA, with all scores in memory; supports every field of a `Context`.

Shapes: B batch, Q queries, K keys, N heads, G groups (key/value heads; each serves N / G consecutive heads), H
head_dim.
"""

import jax
import jax.numpy as jnp

from plm_jax.models.kernels.context import Context, Keys, Queries, Seed, Window
from plm_jax.models.kernels.dropout import keep


def attend(
    query_BNQH: Queries,
    key_BGKH: Keys,
    value_BGKH: Keys,
    context: Context,
    window: Window | None = None,
    seed: Seed | None = None,
) -> Queries:
    """Returns the attention [B, N, Q, H], with a float32 softmax; arguments as `attention.attend`, for one layer."""
    if context.relative is not None:
        context = context.replace(bias=context.relative.expand(query_BNQH, key_BGKH, context.bias))
    batch, heads, queries, head_dim = query_BNQH.shape
    groups, keys = key_BGKH.shape[1:3]
    # The heads of a group are treated as more queries of its keys.
    query_BGRH = query_BNQH.reshape(batch, groups, -1, head_dim)
    scores_BGRK = jnp.einsum("bgrh,bgkh->bgrk", query_BGRH, key_BGKH, preferred_element_type=jnp.float32)
    scores_BNQK = scores_BGRK.reshape(batch, heads, queries, keys)
    scores_BNQK = scores_BNQK if context.bias is None else scores_BNQK + context.bias
    if context.visible is not None:
        scores_BNQK = jnp.where(context.visible, scores_BNQK, jnp.finfo(jnp.float32).min)
    if window is not None:
        near = (jnp.abs(context.distances_back(queries, keys)) < window) | (window == 0)
        scores_BNQK = jnp.where(near, scores_BNQK, jnp.finfo(jnp.float32).min)
    weights_BNQK = jax.nn.softmax(scores_BNQK, axis=-1)
    weights_BNQK = weights_BNQK if seed is None else _drop(weights_BNQK, context, seed)
    weights_BGRK = weights_BNQK.astype(query_BNQH.dtype).reshape(batch, groups, -1, keys)
    return jnp.einsum("bgrk,bgkh->bgrh", weights_BGRK, value_BGKH).reshape(query_BNQH.shape)


def _drop(weights_BNQK: jax.Array, context: Context, seed: Seed) -> jax.Array:
    batch, heads, queries, keys = weights_BNQK.shape
    shape = batch, heads, 1 if context.broadcast else queries, keys
    indices = (jax.lax.broadcasted_iota(jnp.int32, _alone(shape, axis), axis) for axis in range(4))
    row, head, query, key = indices
    row = row if context.rows is None else context.rows.reshape(row.shape)
    mask = keep(seed, row, head, query, key, context.dropout)
    return jnp.where(mask, weights_BNQK / (1 - context.dropout), 0)


def _alone(shape, axis):
    """Returns the shape with all axes but one set to 1."""
    return tuple(size if i == axis else 1 for i, size in enumerate(shape))
