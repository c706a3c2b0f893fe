"""Attention by XLA, with all scores in memory; supports every field of a `Context`.

On a CPU, more than `SCORES_AT_ONCE` scores are computed for one row of the batch at a time. This requires that there is
no dropout and no gradient, and that the mesh does not have several devices.

Shapes: B batch, Q queries, K keys, N heads, G groups (key/value heads; each serves N / G consecutive heads), H
head_dim.
"""

import jax
import jax.numpy as jnp

from plm_jax.models.kernels.choice import platform
from plm_jax.models.kernels.context import Context, Keys, Queries, Seed, Window
from plm_jax.models.kernels.dropout import keep_weights, realized
from plm_jax.models.partitioning import is_spread

# Number of scores above which a CPU computes them by row. With 8 rows of 512 tokens and 12 heads, this takes about half
# of the time on an AMD EPYC with 32 MiB of cache; with 8 rows of 256 tokens (6.3 million scores), the same time.
SCORES_AT_ONCE = 2**23


def attend(
    query_BNQH: Queries, key_BGKH: Keys, value_BGKH: Keys, context: Context, window: Window | None, seed: Seed | None
) -> Queries:
    """Returns the attention [B, N, Q, H], with a softmax in float32.

    Args:
      query_BNQH: scaled queries.
      context: the context, from `Context.with_kernel`.
      window: window of the layer, from `Context.window`; None: no window.
      seed: uint32 [2], seed for the dropout of attention weights; None: no dropout.
    """
    num_scores = query_BNQH[..., 0].size * key_BGKH.shape[2]
    if num_scores > SCORES_AT_ONCE and seed is None and platform() == "cpu" and not is_spread():
        return _attend_by_row(query_BNQH, key_BGKH, value_BGKH, context, window)
    return _attend(query_BNQH, key_BGKH, value_BGKH, context, window, seed)


def _attend(query_BNQH, key_BGKH, value_BGKH, context, window, seed=None):
    batch, heads, queries, head_dim = query_BNQH.shape
    groups, keys = key_BGKH.shape[1:3]
    # The heads of a group are treated as more queries of its keys.
    query_BGRH = query_BNQH.reshape(batch, groups, -1, head_dim)
    scores_BGRK = jnp.einsum("bgrh,bgkh->bgrk", query_BGRH, key_BGKH, preferred_element_type=jnp.float32)
    scores_BNQK = scores_BGRK.reshape(batch, heads, queries, keys)
    bias = context.bias if context.relative is None else context.relative.expand(query_BNQH, key_BGKH, context.bias)
    scores_BNQK = scores_BNQK if bias is None else scores_BNQK + bias
    if context.visible is not None:
        scores_BNQK = jnp.where(context.visible, scores_BNQK, jnp.finfo(jnp.float32).min)
    if window is not None:
        near = (jnp.abs(context.distances_back(queries, keys)) < window) | (window == 0)
        scores_BNQK = jnp.where(near, scores_BNQK, jnp.finfo(jnp.float32).min)
    weights_BNQK = jax.nn.softmax(scores_BNQK, axis=-1)
    weights_BNQK = weights_BNQK if seed is None else _drop(weights_BNQK, context, seed)
    weights_BGRK = weights_BNQK.astype(query_BNQH.dtype).reshape(batch, groups, -1, keys)
    return jnp.einsum("bgrk,bgkh->bgrh", weights_BGRK, value_BGKH).reshape(query_BNQH.shape)


@jax.custom_vjp
def _attend_by_row(query_BNQH, key_BGKH, value_BGKH, context, window):
    """Computes `_attend` for one row of the batch at a time or, if a gradient is needed, for all rows at once."""
    if context.relative is not None:
        context = context.replace(bias=context.relative.expand(query_BNQH, key_BGKH, context.bias), relative=None)
    batch = len(query_BNQH)
    masks = {"bias": context.bias, "visible": context.visible}
    by_row = {name: mask for name, mask in masks.items() if mask is not None and len(mask) == batch}

    def attend_row(row):
        query_NQH, key_GKH, value_GKH, masks = row
        masks = {name: mask[None] for name, mask in masks.items()}
        return _attend(query_NQH[None], key_GKH[None], value_GKH[None], context.replace(**masks), window)[0]

    return jax.lax.map(attend_row, (query_BNQH, key_BGKH, value_BGKH, by_row))


_attend_by_row.defvjp(lambda *arguments: jax.vjp(_attend, *arguments), lambda backward, d_output: backward(d_output))


def _drop(weights_BNQK: jax.Array, context: Context, seed: Seed) -> jax.Array:
    batch, heads, queries, keys = weights_BNQK.shape
    shape = batch, heads, 1 if context.broadcast else queries, keys
    row, head, query, key = jnp.ix_(*map(jnp.arange, shape))
    row = row if context.rows is None else context.rows.reshape(row.shape)
    query = query if context.targets is None or context.broadcast else context.numbers(query)
    mask = keep_weights(seed, row, head, query, key, context.dropout)
    return jnp.where(mask, weights_BNQK / (1 - realized(context.dropout)), 0)
