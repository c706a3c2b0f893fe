"""Beam search as Hugging Face's transformers has it.

Shapes: B prompts, K beams, N new tokens, V vocabulary, C candidates.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.config import DecodingConfig
from plm_jax.generation import ranking
from plm_jax.generation.constraints import Ends, Rules
from plm_jax.generation.sampling import END

NEVER = -1e9  # A score that loses to every real one.


class Beams(NamedTuple):
    """Of each prompt the K best hypotheses that still grow, by total log-probability, and the K best finished ones, by
    that over the length penalty; both best first.
    """

    answers_BKN: jax.Array
    scores_BK: jax.Array
    stops_BK: jax.Array
    finished_BKN: jax.Array
    finished_scores_BK: jax.Array
    open_BK: jax.Array

    def best(self, number: int) -> jax.Array:
        """So many of the finished ones."""
        return self.finished_BKN[:, :number]


def nothing(batch: int, beams: int, max_new_tokens: int, ends: Ends) -> Beams:
    """Before the first token all beams are one, so all but one have no chance."""
    shape = batch, beams
    empty_BKN, never_BK = jnp.full((*shape, max_new_tokens), END), jnp.full(shape, NEVER)
    first_BK = never_BK.at[:, 0].set(0.0)
    return Beams(empty_BKN, first_BK, ends.begin(shape), empty_BKN, never_BK, jnp.ones((batch, 1), bool))


def extend(state: Beams, logits_BKV: jax.Array, step, begun, *, decoding: DecodingConfig, rules: Rules, ends: Ends):
    """One step of the search: the state, the rows' next tokens, and which rows they continue, both [B, K].

    A hypothesis finishes when what ends it ranks among the best K candidates, or with the last token. When a prompt is
    done, `DecodingConfig.early_stopping` says.
    """
    batch, beams, max_new_tokens = state.answers_BKN.shape
    vocab = logits_BKV.shape[-1]
    log_probs_BKV = rules.apply(jax.nn.log_softmax(logits_BKV), state.answers_BKN, begun, step)
    totals_BKV = jnp.broadcast_to(log_probs_BKV, (batch, beams, vocab)) + state.scores_BK[..., None]
    # Enough for K that go on, however many of them end. A text that stops may be completed by any token.
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


def _can_improve(decoding: DecodingConfig, best_B1, worst_B1, length, max_new_tokens) -> jax.Array:
    """Whether the best growing hypothesis, of this length, may come to be better than the worst of K finished ones."""
    if decoding.early_stopping == "never" and decoding.length_penalty > 0:
        length = max_new_tokens
    can_B1 = best_B1 / decoding.penalty(length) > worst_B1
    return can_B1 & (worst_B1 <= NEVER) if decoding.early_stopping is True else can_B1
