"""Beam search with the semantics of Hugging Face's transformers.

Shapes: B prompts, K beams, N new tokens, V vocabulary, C candidates.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from plm_jax.generation import ranking
from plm_jax.generation.constraints import Ends, Prompt, Rules, Step
from plm_jax.generation.decoding_config import DecodingConfig
from plm_jax.generation.sampling import END

NEVER = -1e9  # Lower than every score of a hypothesis.


class Beams(NamedTuple):
    """Hypotheses of a beam search, sorted from best to worst.

    Attributes:
      answers_BKN: the K best unfinished hypotheses.
      scores_BK: log-probabilities of the unfinished hypotheses.
      stops_BK: states of the unfinished hypotheses in the automaton of stop strings.
      finished_BKN: the K best finished hypotheses. If there are fewer than K, the remaining ones have the score NEVER.
      finished_scores_BK: log-probabilities of the finished hypotheses, divided by the length penalty.
      open_BK: [B, 1], whether the search for each prompt continues.
    """

    answers_BKN: Integer[Array, "batch beams new"]
    scores_BK: Float[Array, "batch beams"]
    stops_BK: Integer[Array, "batch beams"]
    finished_BKN: Integer[Array, "batch beams new"]
    finished_scores_BK: Float[Array, "batch beams"]
    open_BK: Bool[Array, "batch 1"]

    def best(self, number: int) -> Integer[Array, "batch {number} new"]:
        """Returns the `number` best finished hypotheses."""
        return self.finished_BKN[:, :number]


def initial(batch: int, beams: int, max_new_tokens: int, ends: Ends) -> Beams:
    """Returns the state before the first token.

    All beams are equal. Only the first one can be extended, because the other beams have the score NEVER.
    """
    shape = batch, beams
    empty_BKN, never_BK = jnp.full((*shape, max_new_tokens), END), jnp.full(shape, NEVER)
    first_BK = never_BK.at[:, 0].set(0.0)
    return Beams(empty_BKN, first_BK, ends.begin(shape), empty_BKN, never_BK, jnp.ones((batch, 1), bool))


def extend(
    state: Beams,
    logits_BKV: Float[Array, "batch beams vocab"],
    step: Step,
    prompt: Prompt,
    *,
    decoding: DecodingConfig,
    rules: Rules,
    ends: Ends,
) -> tuple[Beams, Integer[Array, "batch beams"], Integer[Array, "batch beams"]]:
    """Extends the hypotheses by one token.

    Returns a tuple: the state, the next token of each beam, and the index of the beam that this token continues.

    A hypothesis is finished if it is among the best K candidates and either ends or has `max_new_tokens` tokens.
    `DecodingConfig.early_stopping` determines when the search for a prompt ends.
    """
    batch, beams, max_new_tokens = state.answers_BKN.shape
    vocab = logits_BKV.shape[-1]
    log_probs_BKV = rules.apply(jax.nn.log_softmax(logits_BKV), state.answers_BKN, prompt, step)
    totals_BKV = jnp.broadcast_to(log_probs_BKV, (batch, beams, vocab)) + state.scores_BK[..., None]
    # Enough candidates for K hypotheses that continue. (Any token may complete a stop string.)
    candidates = min(beams * max(2, 1 + len(ends.eos)), beams * vocab)
    scores_BC, flat_BC = ranking.top_k(totals_BKV.reshape(batch, -1), candidates)
    parents_BC, tokens_BC = flat_BC // vocab, flat_BC % vocab
    stops_BC, is_eos_BC, ends_BC = ends.after(jnp.take_along_axis(state.stops_BK, parents_BC, axis=1), tokens_BC)
    hypotheses_BCN = jnp.take_along_axis(state.answers_BKN, parents_BC[..., None], axis=1)
    hypotheses_BCN = hypotheses_BCN.at[:, :, step].set(jnp.where(is_eos_BC, END, tokens_BC))

    finishing_BC = (ends_BC | (step == max_new_tokens - 1)) & (jnp.arange(candidates) < beams) & state.open_BK
    finished_scores_BC = jnp.where(finishing_BC, scores_BC / decoding.penalty(step + 1), NEVER)
    finished_scores, chosen = jax.lax.top_k(jnp.append(state.finished_scores_BK, finished_scores_BC, axis=1), beams)
    finished = jnp.append(state.finished_BKN, hypotheses_BCN, axis=1)
    finished = jnp.take_along_axis(finished, chosen[..., None], axis=1)

    scores, chosen = jax.lax.top_k(jnp.where(ends_BC, NEVER, scores_BC), beams)
    tokens_BK, parents_BK, stops_BK = (
        jnp.take_along_axis(x, chosen, axis=1) for x in (tokens_BC, parents_BC, stops_BC)
    )
    answers_BKN = jnp.take_along_axis(hypotheses_BCN, chosen[..., None], axis=1)
    open_BK = state.open_BK & _can_improve(decoding, scores[:, :1], finished_scores[:, -1:], step + 1, max_new_tokens)
    return Beams(answers_BKN, scores, stops_BK, finished, finished_scores, open_BK), tokens_BK, parents_BK


def _can_improve(
    decoding: DecodingConfig,
    best_B1: Float[Array, "batch 1"],
    worst_B1: Float[Array, "batch 1"],
    length: Step,
    max_new_tokens: int,
) -> Bool[Array, "batch 1"]:
    """Returns whether the search for a prompt continues. `DecodingConfig.early_stopping` defines the condition.

    Args:
      decoding: decoding settings.
      best_B1: log-probability of the best unfinished hypothesis.
      worst_B1: score of the worst finished hypothesis, or NEVER if there are fewer than K.
      length: number of tokens of the unfinished hypotheses.
      max_new_tokens: maximum number of tokens of a hypothesis.
    """
    if decoding.early_stopping == "never" and decoding.length_penalty > 0:
        length = max_new_tokens
    can_B1 = best_B1 / decoding.penalty(length) > worst_B1
    return can_B1 & (worst_B1 <= NEVER) if decoding.early_stopping is True else can_B1
