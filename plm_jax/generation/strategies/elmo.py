"""Strategy of ELMo, which reads words by their characters."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Integer
from typing_extensions import override

from plm_jax.common.errors import UserError
from plm_jax.data.vocabularies import words
from plm_jax.generation import inputs
from plm_jax.generation.strategies.strategy import Strategy
from plm_jax.generation.text_format import MissingVocabularyError
from plm_jax.models.protocol import Module


class ElmoStrategy(Strategy):
    """Strategy of ELMo, a bidirectional LSTM language model, which reads text and does not generate it."""

    @override
    def read(
        self,
        tokens: Any,
        mask: Any = None,
        token_types: Any = None,
        decoder_tokens: Any = None,
        decoder_mask: Any = None,
    ) -> dict[str, np.ndarray]:
        # Words are ids [B, L], which the vocabulary converts to characters, or characters [B, L, C].
        if any(argument is not None for argument in (token_types, decoder_tokens, decoder_mask)):
            raise UserError("an ELMo reads only tokens and mask: leave out token_types and decoder_tokens")
        tokens, length = inputs.integers("tokens", tokens), self.config.max_characters
        if tokens.ndim != 3:
            if self.text.vocabulary_path is None:
                raise MissingVocabularyError
            spelling = _spelling(self.text.vocabulary_path, length)
            ids = inputs.ids("tokens", tokens, len(spelling))["tokens"]
            return {"characters": spelling[ids].astype(np.int32)} | inputs.mask("mask", mask, "tokens", ids)
        if tokens.shape[2] != length or not (tokens.min(initial=0) >= 0 and tokens.max(initial=0) <= words.PADDING):
            raise UserError(
                f"characters have shape {tokens.shape}: expected [batch, length, {length}], values 0 to {words.PADDING}"
            )
        return {"characters": tokens} | inputs.mask("mask", mask, "tokens", tokens[..., 0])

    @override
    def hidden_states(self, arrays: dict[str, np.ndarray]) -> Float[Array, "states batch length width"]:
        # Forward and backward states are concatenated. The word vectors are the same in both halves.
        return _states(self.model, self.params, arrays)

    @override
    def last_states(self, arrays: dict[str, np.ndarray]) -> Float[Array, "batch length width"]:
        return self.hidden_states(arrays)[-1]

    @override
    def generate(self, prompts: list[Any], in_text: bool, seed: int, **options: Any) -> list[Any]:
        raise UserError("an ELMo does not generate text: use `hidden_states` or `logits`")


@functools.lru_cache(maxsize=2)
def _spelling(path: str, length: int) -> Integer[np.ndarray, "words characters"]:
    """Returns the characters of each word of a vocabulary file."""
    return words.characters(words.read(path), length)


@functools.partial(jax.jit, static_argnames=("model",))
def _states(model: Module, params: Any, inputs: dict[str, Any]) -> jax.Array:
    return model.apply({"params": params}, **inputs, method="states").astype(jnp.float32)
