"""ELMo: it reads words by their characters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.common.errors import UserError
from plm_jax.data.vocabularies import words
from plm_jax.generation import inputs
from plm_jax.generation.strategies.strategy import Strategy


class ElmoStrategy(Strategy):
    """A bidirectional model of LSTMs, which reads and does not write."""

    def read(self, tokens, mask=None, token_types=None, decoder_tokens=None, decoder_mask=None):
        """Words by their ids [B, L], spelt by the vocabulary, or by their characters [B, L, C]."""
        if any(x is not None for x in (token_types, decoder_tokens, decoder_mask)):
            raise UserError("an ELMo takes tokens and mask alone: leave token_types and decoder_tokens out")
        tokens, length = inputs.integers("tokens", tokens), self.lm.config.max_characters
        if tokens.ndim != 3:
            spelling = _spelling(self.lm.vocabulary_path, length)
            ids = inputs.ids("tokens", tokens, len(spelling))["tokens"]
            return {"characters": spelling[ids].astype(np.int32)} | inputs.mask("mask", mask, "tokens", ids)
        if tokens.shape[2] != length or not (tokens.min(initial=0) >= 0 and tokens.max(initial=0) <= words.PADDING):
            raise UserError(
                f"characters have shape {tokens.shape}: give [batch, length, {length}], 0 to {words.PADDING}"
            )
        return {"characters": tokens} | inputs.mask("mask", mask, "tokens", tokens[..., 0])

    def hidden_states(self, given):
        """Forward and backward side by side, the words' vectors twice."""
        return _layers(self.lm.model, self.lm.params, given)

    def generate(self, prompts, in_text, **options):
        """Nothing."""
        raise UserError("an ELMo reads text and writes none: use `hidden_states` or `logits`")


@functools.lru_cache(maxsize=2)
def _spelling(path: str, length: int) -> np.ndarray:
    """The characters of a file's words, [V, C]."""
    return words.characters(words.read(path), length)


@functools.partial(jax.jit, static_argnames=("model",))
def _layers(model, params, inputs):
    return model.apply({"params": params}, **inputs, method="states").astype(jnp.float32)
