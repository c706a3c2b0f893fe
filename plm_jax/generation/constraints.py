"""What answers must and must not hold, as scores of the next tokens.

Shapes: B prompts, K answers to each, P slots of what the decoder is given, N new tokens, T tokens of a history, V
vocabulary, S states.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Rules(NamedTuple):
    """Which tokens are allowed where; static.

    Attributes:
      max_new_tokens, min_new_tokens, no_repeat_ngram_size, forced_eos_token_id: as of `config.DecodingConfig`.
      forced: the first tokens of each answer.
      eos_ids: tokens that end one.
      vocab_size: ids from here on are never chosen; None: all may be.
    """

    max_new_tokens: int
    min_new_tokens: int
    no_repeat_ngram_size: int
    forced_eos_token_id: int | None
    forced: tuple[int, ...]
    eos_ids: tuple[int, ...]
    vocab_size: int | None

    def apply(self, scores_BKV: jax.Array, answers_BKN: jax.Array, begun, step) -> jax.Array:
        """Scores of the tokens number `step`, from 0, with those that are not allowed at -inf and a forced one at 0.

        Args:
          scores_BKV: logits or log-probabilities.
          answers_BKN: the new tokens before these.
          begun: what the decoder was given, tokens and mask [B, P].
          step: how many new tokens there are.
        """
        ids = jnp.arange(scores_BKV.shape[-1])
        if self.no_repeat_ngram_size:
            banned_BKV = repeating(self.no_repeat_ngram_size, answers_BKN, begun, step, len(ids))
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


def repeating(size: int, answers_BKN, begun, step, vocab_size: int) -> jax.Array:
    """Which tokens would complete `size` tokens in a row that are there already, bool [B, K, V]."""
    begun_tokens_BP, mask_BP = begun
    batch, rows, new = answers_BKN.shape
    context = size - 1
    # Padded in front, so that there always is a context to look at, real or not.
    before = [jnp.pad(x, ((0, 0), (context, 0))) for x in (begun_tokens_BP, mask_BP)]
    given, real = (jnp.broadcast_to(x[:, None], (batch, rows, x.shape[1])) for x in before)
    tokens_BKT = jnp.concatenate([given, answers_BKN], axis=-1)
    end = given.shape[-1] + step  # Where the next token goes.
    is_new = jnp.broadcast_to(jnp.arange(new) < step, answers_BKN.shape)
    real_BKT = jnp.concatenate([real > 0, is_new], axis=-1)
    last_BKC, last_real_BKC = (
        jax.lax.dynamic_slice_in_dim(x, end - context, context, axis=-1) for x in (tokens_BKT, real_BKT)
    )
    windows = tokens_BKT.shape[-1] - context
    matches = real_BKT[..., context:] & last_real_BKC.all(-1, keepdims=True)
    for place in range(context):
        matches &= real_BKT[..., place : place + windows]
        matches &= tokens_BKT[..., place : place + windows] == last_BKC[..., place, None]
    completing = jnp.where(matches, tokens_BKT[..., context:], vocab_size)
    rows_of = jnp.arange(batch)[:, None, None], jnp.arange(rows)[:, None]
    return jnp.zeros((batch, rows, vocab_size), bool).at[*rows_of, completing].set(True, mode="drop")


class Ends(NamedTuple):
    """What ends an answer.

    Attributes:
      eos: ids of end tokens, which are no part of it.
      next_SV: an automaton as `stops` gives it, the last token of which is a part; None: there is none.
    """

    eos: jax.Array
    next_SV: jax.Array | None

    def begin(self, shape: tuple[int, ...]) -> jax.Array:
        """The automaton's states before the first tokens."""
        return jnp.zeros(shape, jnp.int32)

    def after(self, states: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Of tokens the automaton's states after them, whether they are end tokens, and whether an answer ends."""
        is_eos = jnp.isin(tokens, self.eos)
        if self.next_SV is None:
            return states, is_eos, is_eos
        states = self.next_SV[states, tokens]
        return states, is_eos, is_eos | (states == len(self.next_SV) - 1)


def stops(texts: Sequence[str], text_of: Callable[[int], str], vocab_size: int) -> np.ndarray:
    """An automaton over tokens that tells where the first of some texts is complete (Aho and Corasick 1975).

    Args:
      texts: none of them empty.
      text_of: what a token adds to a text; a part of a character completes nothing.
      vocab_size: how many tokens there are.

    Returns:
      int32 [S, V], the state after each token. State 0 is that before the first, the last one, which nothing leaves,
      that in which a text is complete.
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
        added = text_of(token)
        if not added or letters & set(added):  # Any other leads back to the first state.
            next_SV[:complete, token] = [after(prefix, added) for prefix in prefixes]
    return next_SV


def cut(text: str, texts: Sequence[str]) -> str:
    """What of a text is before the first of some texts."""
    return text[: min((at for at in map(text.find, filter(None, texts)) if at >= 0), default=len(text))]
