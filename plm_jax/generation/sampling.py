"""The next token of each answer by itself: the most probable one, or a sample.

Shapes: B prompts, K answers to each, N new tokens, V vocabulary.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.generation import ranking
from plm_jax.generation.constraints import Ends, Rules

END = -1  # Stands in answers from the end token on.


class Sampling(NamedTuple):
    """How the next token is drawn; what is not None is traced, so that a new value compiles nothing."""

    temperature: Any
    top_p: Any = None


class Drawn(NamedTuple):
    """Answers of which each grows by itself."""

    answers_BKN: jax.Array
    stops_BK: jax.Array
    open_BK: jax.Array

    def best(self, number: int) -> jax.Array:
        """So many of them."""
        return self.answers_BKN[:, :number]


def nothing(batch: int, rows: int, max_new_tokens: int, ends: Ends) -> Drawn:
    """Before the first token."""
    shape = batch, rows
    return Drawn(jnp.full((*shape, max_new_tokens), END), ends.begin(shape), jnp.ones(shape, bool))


def extend(
    state: Drawn,
    logits_BKV: jax.Array,
    step,
    begun,
    *,
    rules: Rules,
    ends: Ends,
    sampling: Sampling | None,
    top_k: int | None,
    key: jax.Array,
):
    """Adds a token to each answer that is open: the state, the tokens, and None, since each goes on with its own."""
    scores_BKV = rules.apply(logits_BKV, state.answers_BKN, begun, step)
    tokens_BK = next_tokens(scores_BKV, sampling, jax.random.fold_in(key, step), top_k)
    stops_BK, is_eos_BK, ends_BK = ends.after(state.stops_BK, tokens_BK)
    written_BK = jnp.where(state.open_BK & ~is_eos_BK, tokens_BK, END)
    answers_BKN = state.answers_BKN.at[:, :, step].set(written_BK)
    return Drawn(answers_BKN, stops_BK, state.open_BK & ~ends_BK), tokens_BK, None


def next_tokens(logits: jax.Array, sampling: Sampling | None, key: jax.Array, top_k: int | None = None) -> jax.Array:
    """The most probable tokens [...] of [..., V], or samples if there is a `sampling`; of equals the lower id is first.

    Samples are of the `top_k` most probable tokens (None: of all), and of these of the fewest with `sampling.top_p`.
    """
    if sampling is None:
        return jnp.argmax(logits, axis=-1)
    if top_k is None and sampling.top_p is None:
        return jax.random.categorical(key, logits / sampling.temperature)
    if top_k is None:
        order = jnp.argsort(logits, axis=-1, descending=True)
        ranked = jnp.take_along_axis(logits, order, axis=-1)
    else:
        ranked, order = ranking.top_k(logits, min(top_k, logits.shape[-1]))
    ranked = ranked / sampling.temperature
    if sampling.top_p is not None:
        probability = jax.nn.softmax(ranked, axis=-1)
        likelier = jnp.cumsum(probability, axis=-1) - probability
        # The first always stays, also where rounding makes top_p as small as 0.
        kept = (likelier < sampling.top_p) | (jnp.arange(ranked.shape[-1]) == 0)
        ranked = jnp.where(kept, ranked, -jnp.inf)
    rank = jax.random.categorical(key, ranked)[..., None]
    return jnp.take_along_axis(order, rank, axis=-1)[..., 0]
