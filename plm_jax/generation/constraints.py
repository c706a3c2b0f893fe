"""Constraints on answers: rules that change the scores of the next tokens, and conditions that end an answer.

Shapes: B prompts, K answers to each, P slots of the decoder's prompt, N new tokens, T tokens of a history, V
vocabulary, S states.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32, Integer

# Tokens and mask of the decoder's prompt, [B, P].
Prompt = tuple[Integer[Array | np.ndarray, "batch prompt"], Integer[Array | np.ndarray, "batch prompt"]]
# Number of new tokens so far.
Step = int | Integer[Array, ""]


class Rules(NamedTuple):
    """Constraints on answers. All fields are compile-time constants.

    Attributes:
      max_new_tokens: maximum number of new tokens.
      min_new_tokens, no_repeat_ngram_size, forced_eos_token_id: fields of `DecodingConfig`.
      forced: tokens with which each answer begins.
      eos_ids: tokens that end an answer.
      vocab_size: ids at or above this number are chosen only if they are forced; None allows every id. `apply` does not
        check this; the caller sets the logits of these ids to -inf.
    """

    max_new_tokens: int
    min_new_tokens: int
    no_repeat_ngram_size: int
    forced_eos_token_id: int | None
    forced: tuple[int, ...]
    eos_ids: tuple[int, ...]
    vocab_size: int | None

    def apply(
        self,
        scores_BKV: Float[Array, "batch answers vocab"],
        answers_BKN: Integer[Array, "batch answers new"],
        prompt: Prompt,
        step: Step,
    ) -> Float[Array, "batch answers vocab"]:
        """Returns the scores of the next tokens: -inf for forbidden tokens, and 0 for a forced token.

        If a token is forced, all other tokens are forbidden. Other scores do not change.

        Args:
          scores_BKV: logits or log-probabilities.
          answers_BKN: the new tokens; only the first `step` tokens of each answer are set.
          prompt: tokens and mask of the decoder's prompt.
          step: number of new tokens so far.
        """
        ids = jnp.arange(scores_BKV.shape[-1])
        if self.no_repeat_ngram_size:
            banned_BKV = repeating(self.no_repeat_ngram_size, answers_BKN, prompt, step, len(ids))
            scores_BKV = jnp.where(banned_BKV, -jnp.inf, scores_BKV)
        if self.min_new_tokens and self.eos_ids:
            is_end = jnp.isin(ids, jnp.array(self.eos_ids))
            scores_BKV = jnp.where(is_end & (step < self.min_new_tokens), -jnp.inf, scores_BKV)
        if self.forced:
            forced = jnp.array(self.forced)[jnp.minimum(step, len(self.forced) - 1)]
            only = jnp.where(ids == forced, 0.0, -jnp.inf)
            scores_BKV = jnp.where(step < len(self.forced), only, scores_BKV)
        if self.forced_eos_token_id is not None:
            only = jnp.where(ids == self.forced_eos_token_id, 0.0, -jnp.inf)
            scores_BKV = jnp.where(step == self.max_new_tokens - 1, only, scores_BKV)
        return scores_BKV


def repeating(
    size: int, answers_BKN: Integer[Array, "batch answers new"], prompt: Prompt, step: Step, vocab_size: int
) -> Bool[Array, "batch answers {vocab_size}"]:
    """Returns whether each token would complete an n-gram of this size that occurs already.

    The n-grams are those of the decoder's prompt followed by the answer so far.
    """
    prompt_BP, mask_BP = prompt
    batch, rows, new = answers_BKN.shape
    context = size - 1
    # Padded on the left, so that every token has a context of `context` slots.
    padded = [jnp.pad(x, ((0, 0), (context, 0))) for x in (prompt_BP, mask_BP)]
    prompt_BKP, real = (jnp.broadcast_to(x[:, None], (batch, rows, x.shape[1])) for x in padded)
    tokens_BKT = jnp.concatenate([prompt_BKP, answers_BKN], axis=-1)
    end = prompt_BKP.shape[-1] + step  # Index of the next token.
    is_new = jnp.broadcast_to(jnp.arange(new) < step, answers_BKN.shape)
    real_BKT = jnp.concatenate([real > 0, is_new], axis=-1)
    last_BKC, last_real_BKC = (
        jax.lax.dynamic_slice_in_dim(x, end - context, context, axis=-1) for x in (tokens_BKT, real_BKT)
    )
    windows = tokens_BKT.shape[-1] - context
    matches = real_BKT[..., context:] & last_real_BKC.all(-1, keepdims=True)
    for offset in range(context):
        matches &= real_BKT[..., offset : offset + windows]
        matches &= tokens_BKT[..., offset : offset + windows] == last_BKC[..., offset, None]
    completing = jnp.where(matches, tokens_BKT[..., context:], vocab_size)
    rows_of = jnp.arange(batch)[:, None, None], jnp.arange(rows)[:, None]
    return jnp.zeros((batch, rows, vocab_size), bool).at[*rows_of, completing].set(True, mode="drop")


class Ends(NamedTuple):
    """Conditions that end an answer.

    Attributes:
      eos: ids of end tokens, which are not part of the answer.
      next_SV: automaton of stop strings, as returned by `stops`; None: no stop strings. The token that completes a stop
        string is part of the answer.
    """

    eos: Integer[Array, " ends"]
    next_SV: Integer[Array, "states vocab"] | None

    def begin(self, shape: tuple[int, ...]) -> Int32[Array, "..."]:
        """Returns the states of the automaton before the first tokens: zeros of this shape."""
        return jnp.zeros(shape, jnp.int32)

    def after(
        self, states: Integer[Array, "*answers"], tokens: Integer[Array, "*answers"]
    ) -> tuple[Integer[Array, "*answers"], Bool[Array, "*answers"], Bool[Array, "*answers"]]:
        """Returns a tuple: the new states, whether each token is an end token, and whether each answer ends.

        An answer ends at an end token or at a token that completes a stop string. Without stop strings, the states do
        not change.
        """
        is_eos = jnp.isin(tokens, self.eos)
        if self.next_SV is None:
            return states, is_eos, is_eos
        states = self.next_SV[states, tokens]
        return states, is_eos, is_eos | (states == len(self.next_SV) - 1)


def stops(
    texts: Sequence[str], token_text: Callable[[int], str], vocab_size: int
) -> Int32[np.ndarray, "states {vocab_size}"]:
    """Returns an automaton over tokens that detects when one of the texts is complete (Aho and Corasick 1975).

    Args:
      texts: at least one text; no text may be empty.
      token_text: function that returns the text that a token adds. A character that is split into several tokens is not
        recognized.
      vocab_size: number of tokens.

    Returns:
      The next state for each state and each token. State 0 is the state before the first token. The last state means
      that a text is complete; no token leaves this state.
    """
    prefixes = sorted({text[:end] for text in texts for end in range(len(text))}, key=len)
    states, complete = {prefix: i for i, prefix in enumerate(prefixes)}, len(prefixes)
    longest, letters = len(prefixes[-1]), set("".join(texts))

    def after(prefix: str, added: str) -> int:
        read = prefix + added
        if any(text in read for text in texts):
            return complete
        ends = (read[begin:] for begin in range(max(0, len(read) - longest), len(read) + 1))
        return next(states[end] for end in ends if end in states)

    next_SV = np.zeros((complete + 1, vocab_size), np.int32)
    next_SV[complete] = complete
    for token in range(vocab_size):
        added = token_text(token)
        if not added or letters & set(added):  # Any other leads back to the first state.
            next_SV[:complete, token] = [after(prefix, added) for prefix in prefixes]
    return next_SV


def cut(text: str, texts: Sequence[str]) -> str:
    """Returns the part of `text` before the first occurrence of one of `texts`, or `text` if none occurs.

    Empty strings in `texts` are ignored.
    """
    return text[: min((at for at in map(text.find, filter(None, texts)) if at >= 0), default=len(text))]
