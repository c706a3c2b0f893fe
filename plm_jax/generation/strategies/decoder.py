"""Strategy of decoders, which continue a text."""

from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from plm_jax.common.errors import UserError
from plm_jax.generation import blanks, scoring_rows
from plm_jax.generation.scoring_rows import ScoringRow
from plm_jax.generation.strategies.strategy import Writer, move_spaces


class DecoderStrategy(Writer):
    """A decoder, which continues its prompts."""

    @override
    def num_positions(self, arrays: dict[str, np.ndarray]) -> int:
        if "mask" in arrays:  # Positions count non-padding tokens only.
            return int(arrays["mask"].sum(axis=1).max(initial=0))
        return super().num_positions(arrays)

    @override
    def encode(self, text: str) -> list[int]:
        return [*self.text.begins_with, *self.text.vocabulary.encode(text)] or self._separator

    @override
    def encode_prefix(self, text: str) -> list[int]:
        return blanks.encode_within(self.text.vocabulary, text)

    @override
    def to_text(self, prompt: Sequence[int], answer: Sequence[int]) -> str:
        # Decoded with the prompt, since SentencePiece drops the space before a first word.
        vocabulary = self.text.vocabulary
        context = [token for token in prompt if token != vocabulary.eos_id]  # seqio truncates at an end token.
        return vocabulary.decode([*context, *answer])[len(vocabulary.decode(context)) :]

    @override
    def continuation_row(self, context: Sequence[int], continuation: Sequence[int]) -> ScoringRow:
        context = context or self.initial_ids
        return scoring_rows.continuation_row(context, continuation, self.config.num_positions, self.has_prefix)

    @override
    def text_continuation_row(self, context: str, continuation: str) -> ScoringRow:
        # The tokens of both texts together after those of the context, as in lm-eval 0.4.13 (`api/model.py`).
        context, continuation = move_spaces(context, continuation)
        begin, vocabulary = self.text.begins_with, self.text.vocabulary
        before = [*begin, *vocabulary.encode(context)]
        both = [*begin, *vocabulary.encode(context + continuation)]
        if not before and both[:1] == self.initial_ids:  # The vocabulary has added it already.
            return self.continuation_row(both[:1], both[1:])
        return self.continuation_row(before, both[len(before) :])

    @property
    @override
    def initial_ids(self) -> list[int]:
        return list(self.text.begins_with) or self._separator

    @property
    def _separator(self) -> list[int]:
        """List with the id between documents: the separator, or the first eos if there is no separator.

        Raises:
          UserError: the model has no separator and no eos.
        """
        if ids := self.eos_ids[:1] if self.text.separator is None else [self.text.separator]:
            return ids
        raise UserError(
            "this model has no token that begins a text, so it cannot continue an empty prompt: pass a first word"
        )
