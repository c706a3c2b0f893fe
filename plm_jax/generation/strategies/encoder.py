"""Strategy of encoders, which predict one token for each mask."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from jaxtyping import Array, Float, Shaped
from typing_extensions import override

from plm_jax.common.errors import ExampleError, UserError
from plm_jax.generation import blanks, decoding, scoring_rows
from plm_jax.generation.blanks import FilledText
from plm_jax.generation.scoring_rows import ScoringRow
from plm_jax.generation.strategies.strategy import Strategy, check_masks, features, head_output, hidden_states
from plm_jax.models import MaskDecoderHead, NoHead, TransformerConfig, electra, registry
from plm_jax.models.protocol import Module


class EncoderStrategy(Strategy):
    """An encoder. It answers a prompt by replacing each mask with the most probable token."""

    @override
    def num_positions(self, arrays: dict[str, np.ndarray]) -> int:
        skips_padding = isinstance(self.config, TransformerConfig) and self.config.attention.position.skips_padding
        if "mask" in arrays and skips_padding:
            return int(arrays["mask"].sum(axis=1).max(initial=0))
        return super().num_positions(arrays)

    @override
    def hidden_states(self, arrays: dict[str, np.ndarray]) -> Float[Array, "states batch length width"]:
        return hidden_states(self._encoder, self.params, arrays, "features", "embedded", "stack")

    @override
    def last_states(self, arrays: dict[str, np.ndarray]) -> Float[Array, "batch length width"]:
        return features(self._encoder, self.params, arrays, "features")

    @functools.cached_property
    def _encoder(self) -> Module:
        """The module without a mask decoder. The output of a mask decoder is only for masked tokens."""
        if not isinstance(getattr(self.config, "head", None), MaskDecoderHead):
            return self.model
        return registry.build(dataclasses.replace(self.config, head=NoHead()), self.model.dtype)

    @override
    def encode(self, text: str) -> list[int]:
        if not any(mask in text for mask in blanks.MASKS):
            raise ExampleError(f"'{text}'", text, f"has no {blanks.MASKS[0]}: write one where a token is missing")
        mask_id: int = self.text.special_ids["mask_token_id"]
        marks = dict.fromkeys(blanks.MASKS, mask_id)
        return [*self.text.before, *blanks.encode(self.text.vocabulary, text, marks), *self.text.after]

    @override
    def generate(self, prompts: list[Any], in_text: bool, seed: int, **options: Any) -> list[Any]:
        if options:
            raise UserError(
                "a masked model does not generate text, it fills each blank with the most probable token: leave out "
                f"{', '.join(options)}"
            )
        return [filled.text for filled in self.fill(prompts, top_k=1)] if in_text else self._fill_ids(prompts)

    @override
    def fill(self, texts: Sequence[str], top_k: int) -> list[FilledText]:
        if self.text.mask_id is None:
            return super().fill(texts, top_k)
        if top_k < 1:
            raise UserError(f"top_k is {top_k}: expected at least 1")
        encoded = [self.encode(text) for text in texts]
        logits = self._token_logits(encoded)
        frame = {*self.text.before, *self.text.after}
        return [
            blanks.fill_masks(self.text.vocabulary, tokens, logits_LV, self.text.mask_id, frame, top_k)
            for tokens, logits_LV in zip(encoded, logits, strict=True)
        ]

    @property
    @override
    def is_masked(self) -> bool:
        return "mask_token_id" in self.text.special_ids

    @override
    def masked_rows(self, tokens: Sequence[int], begin: int, word_l2r: bool) -> list[ScoringRow]:
        if not self.is_masked:
            return super().masked_rows(tokens, begin, word_l2r)
        before, after = self.text.before, self.text.after
        row, word_numbers = [*before, *tokens, *after], None
        if word_l2r:
            word_numbers = np.cumsum(self.text.vocabulary.word_initial[row]).tolist()
        begin, end, mask_id = len(before) + begin, len(before) + len(tokens), self.text.special_ids["mask_token_id"]
        return scoring_rows.masked_rows(row, begin, end, mask_id, word_numbers)

    def _fill_ids(self, prompts: list[list[int]]) -> list[list[int]]:
        mask_id = self.text.mask_id
        check_masks(prompts, [] if mask_id is None else [mask_id])
        logits = self._token_logits(prompts)
        best = np.asarray(logits[..., : self.text.vocabulary_size].argmax(axis=-1)).tolist()
        rows = []
        for prompt, predicted in zip(prompts, best, strict=True):
            pairs = zip(prompt, predicted, strict=False)
            rows.append([new if token == mask_id else token for token, new in pairs])
        return rows

    def _token_logits(self, rows: Sequence[Sequence[int]]) -> Shaped[Array, "batch length vocab"]:
        """Returns the logits of the vocabulary head. Rows are padded to the length of the longest row."""
        tokens, mask = decoding.pad(rows, max(map(len, rows), default=0))
        return self.logits(self.read(tokens, mask), self.head(None))


class ElectraStrategy(EncoderStrategy):
    """An ELECTRA model, whose generator fills masks."""

    @override
    def logits(self, arrays: dict[str, np.ndarray], head: str) -> Shaped[Array, "..."]:
        if head != "vocabulary":
            return super().logits(arrays, head)
        return head_output(*self.token_model, arrays, head)

    @property
    @override
    def token_model(self) -> tuple[Module, Any]:
        self.head(None)
        if not isinstance(self.model, electra.Electra):
            raise TypeError(f"{type(self.model).__name__} has no generator")
        generator, params = electra.generator(self.model, self.params)
        return cast(Module, generator), params
