"""Greedy decoding and sampling, in which each answer grows independently.

Shapes: B prompts, K answers to each, N new tokens, V vocabulary.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from plm_jax.generation import ranking
from plm_jax.generation.constraints import Ends, Prompt, Rules, Step

END = -1  # Fills answers from the end token on.


class Sampling(NamedTuple):
    """Settings of sampling. A change from one number to another compiles no new program, because numbers are traced."""

    temperature: Any
    top_p: Any = None


class SampledAnswers(NamedTuple):
    """Answers that grow independently of each other.

    Attributes:
      answers_BKN: new tokens. All positions outside the answer contain END.
      stops_BK: state of each answer in the automaton of stop strings.
      open_BK: whether each answer continues.
    """

    answers_BKN: Integer[Array, "batch answers new"]
    stops_BK: Integer[Array, "batch answers"]
    open_BK: Bool[Array, "batch answers"]

    def best(self, number: int) -> Integer[Array, "batch {number} new"]:
        """Returns the first `number` answers to each prompt. The answers are not sorted."""
        return self.answers_BKN[:, :number]


def initial(batch: int, rows: int, max_new_tokens: int, ends: Ends) -> SampledAnswers:
    """Returns the state before the first token.

    Args:
      batch: number of prompts.
      rows: number of answers per prompt.
      max_new_tokens: maximum number of new tokens per answer.
      ends: conditions that end an answer.
    """
    shape = batch, rows
    return SampledAnswers(jnp.full((*shape, max_new_tokens), END), ends.begin(shape), jnp.ones(shape, bool))


def extend(
    state: SampledAnswers,
    logits_BKV: Float[Array, "batch answers vocab"],
    step: Step,
    prompt: Prompt,
    *,
    rules: Rules,
    ends: Ends,
    sampling: Sampling | None,
    top_k: int | None,
    key: jax.Array,
) -> tuple[SampledAnswers, Integer[Array, "batch answers"], None]:
    """Adds a token to each open answer. End tokens are not added.

    Returns a tuple: the state, the tokens, and None. In place of None, `beams.extend` returns the index of the beam
    that each token continues. Here, each answer continues itself.
    """
    scores_BKV = rules.apply(logits_BKV, state.answers_BKN, prompt, step)
    tokens_BK = next_tokens(scores_BKV, sampling, jax.random.fold_in(key, step), top_k)
    stops_BK, is_eos_BK, ends_BK = ends.after(state.stops_BK, tokens_BK)
    written_BK = jnp.where(state.open_BK & ~is_eos_BK, tokens_BK, END)
    answers_BKN = state.answers_BKN.at[:, :, step].set(written_BK)
    return SampledAnswers(answers_BKN, stops_BK, state.open_BK & ~ends_BK), tokens_BK, None


def next_tokens(
    logits: Float[Array, "*answers vocab"], sampling: Sampling | None, key: jax.Array, top_k: int | None = None
) -> Integer[Array, "*answers"]:
    """Returns samples, or the most probable tokens if `sampling` is None (ties go to the lowest id).

    With `top_k`, only the `top_k` most probable tokens can be sampled. With `sampling.top_p`, only the smallest set of
    most probable tokens can be sampled whose total probability is at least `top_p`. This probability is computed after
    `top_k` is applied.
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
        # The first token is always a candidate, even if rounding makes top_p 0.
        is_candidate = (likelier < sampling.top_p) | (jnp.arange(ranked.shape[-1]) == 0)
        ranked = jnp.where(is_candidate, ranked, -jnp.inf)
    rank = jax.random.categorical(key, ranked)[..., None]
    return jnp.take_along_axis(order, rank, axis=-1)[..., 0]
