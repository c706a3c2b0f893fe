"""Attention of two streams (tokens and targets) with kernels that assume queries at consecutive positions.

Shapes: B batch, N heads, L tokens, T targets, Q = L + T queries, K keys, H head_dim.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from plm_jax.models.kernels.context import FIRST, Context, Queries


def by_stream(attend: Callable[..., Queries], query_BNQH: Queries, context: Context) -> Queries:
    """Computes the attention of both streams, [B, N, Q, H], with one call of `attend` for each stream.

    The first L queries are tokens, and the last T queries are `Context.targets`. For the second call, the query of each
    target is moved to the position of its token in a row of L queries. Positions are thus consecutive in both calls.
    Results at positions without a target are not used. If several targets have the same position, all of them get the
    result of the first of these targets.

    Args:
      attend: a function of queries [B, N, L, H], their context, and `start`, the index of the first query (default 0).
    """
    assert context.targets is not None
    num_targets = context.targets.shape[1]
    length = query_BNQH.shape[2] - num_targets
    is_at = context.targets[:, None] == jnp.arange(length)[:, None]
    is_first = is_at & (jnp.cumsum(is_at, axis=2) == 1)

    def move(equation, x, is_moved):
        # Each result is one of the values, which a lower precision would round.
        return jnp.einsum(equation, is_moved.astype(x.dtype), x, precision=jax.lax.Precision.HIGHEST)

    def place(values, default):
        moved = jnp.where(is_first, values[:, None, length:], 0).sum(2)
        return jnp.where(is_first.any(2), moved, default)

    tokens = _of_tokens(context, length, num_targets)
    targets = tokens
    if context.order is not None:
        targets = targets.replace(order=(place(context.order[0], FIRST), context.order[1]))
    if context.segment_ids is not None:
        targets = targets.replace(segment_ids=(place(context.segment_ids[0], 0), context.segment_ids[1]))
    if (relative := context.relative) is not None and relative.segment_scores is not None:
        assert relative.segments is not None and targets.relative is not None
        scores = move("blt,bnts->bnls", relative.segment_scores[:, :, length:], is_first)
        segments = place(relative.segments[0], 0), relative.segments[1]
        targets = targets.replace(relative=targets.relative.replace(segment_scores=scores, segments=segments))
    query = move("blt,bnth->bnlh", query_BNQH[:, :, length:], is_first)
    of_tokens = attend(query_BNQH[:, :, :length], tokens)
    of_targets = move("blt,bnlh->bnth", attend(query, targets, start=length), is_at)
    return jnp.concatenate([of_tokens, of_targets], axis=2)


def _of_tokens(context: Context, length: int, num_targets: int) -> Context:
    """Returns the context of the tokens: the first `length` queries, without the `num_targets` queries of targets."""

    def first(pair):
        return None if pair is None else (pair[0][:, :length], pair[1])

    relative = context.relative
    if relative is not None:
        # Entry 0 of vectors is for the first key and the last query.
        later = {
            name: None if (vectors := getattr(relative, name)) is None else vectors[:, num_targets:]
            for name in ("key_vectors", "query_vectors", "reverse_key_vectors")
        }
        scores = relative.segment_scores
        relative = relative.replace(
            **later,
            segment_scores=None if scores is None else scores[:, :, :length],
            segments=first(relative.segments),
        )
    return context.replace(order=first(context.order), segment_ids=first(context.segment_ids), relative=relative)
