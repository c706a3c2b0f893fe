"""Strategy of decoders that write the fillings of blanks after the text (GLM)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from typing_extensions import override

from plm_jax.common.errors import UserError
from plm_jax.generation import infilling, scoring_rows
from plm_jax.generation.decoding_config import DecodingConfig
from plm_jax.generation.scoring_rows import ScoringRow
from plm_jax.generation.strategies.decoder import DecoderStrategy
from plm_jax.generation.strategies.strategy import check_masks, move_spaces
from plm_jax.generation.text_format import TextFormat
from plm_jax.models.protocol import Module


class BlankInfillingStrategy(DecoderStrategy):
    """A decoder that fills the blanks of a prompt. If a text has no blank, the decoder continues the text.

    Attributes:
      marks: special ids of blank infilling.
    """

    def __init__(
        self, model: Module, params: Any, text: TextFormat, default_decoding: DecodingConfig, marks: infilling.Marks
    ):
        super().__init__(model, params, text, default_decoding)
        self.marks = marks

    @override
    def with_positions(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tokens = arrays["tokens"]
        return arrays | infilling.positions(tokens, arrays.get("mask", np.ones_like(tokens)), self.marks)

    @override
    def num_positions(self, arrays: dict[str, np.ndarray]) -> int:
        # Positions in the text and positions within a blank have separate tables.
        return max(int(arrays[name].max(initial=0)) for name in ("positions", "block_positions"))

    @property
    @override
    def eos_ids(self) -> list[int]:
        return [self.marks.eop]

    @override
    def encode(self, text: str) -> list[int]:
        return infilling.encode(self.text.vocabulary, text, self.text.special_ids)

    @override
    def continuation_row(self, context: Sequence[int], continuation: Sequence[int]) -> ScoringRow:
        # The context is part A with its blank. The continuation fills the blank.
        return scoring_rows.continuation_row([*context, self.marks.sop], continuation, None)

    @override
    def text_continuation_row(self, context: str, continuation: str) -> ScoringRow:
        context, continuation = move_spaces(context, continuation)
        return self.continuation_row(self.encode(context), list(self.text.vocabulary.encode(continuation)))

    @override
    def generate(self, prompts: list[Any], in_text: bool, seed: int, **options: Any) -> list[Any]:
        settings = self.decoding(**options)
        if settings.num_return_sequences > 1 or settings.stop_strings:
            raise UserError("blanks have a single, complete filling: leave out num_return_sequences and stop_strings")
        write = partial(self.writer(seed=seed, **options), marks=self.marks)
        if in_text:
            return self._fill_texts(prompts, write)
        check_masks(prompts, self.marks.masks)
        fillings = infilling.fill(prompts, self.marks, write)
        rows = [infilling.parts(*pair, self.marks) for pair in zip(prompts, fillings, strict=True)]
        return [[token for part in parts for token in part] for parts in rows]

    def _fill_texts(self, texts: Sequence[str], write: infilling.Write) -> list[str]:
        encoded = [self.encode(text) for text in texts]
        fillings = infilling.fill(encoded, self.marks, write)
        vocabulary, special_ids = self.text.vocabulary, self.text.special_ids
        return [
            infilling.decode(vocabulary, *row, self.marks, special_ids)
            for row in zip(texts, encoded, fillings, strict=True)
        ]
