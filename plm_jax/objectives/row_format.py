"""The marks around the texts of a row, their types, padding."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int, Integer

from plm_jax.objectives.special import Special


@dataclass(frozen=True)
class RowFormat:
    """The marks of a row of whole texts: `before`, a text, `between`, the next one, and `after` the last.

    BERT's is `[CLS] A [SEP] B [SEP]`: before (cls,), between and after (sep,).

    Attributes:
      has_types: whether rows have `token_types`, the number of each token's text; marks are of the text before them.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    pad: int = 0
    has_types: bool = False

    @classmethod
    def of(cls, special: Special, has_types: bool = False) -> "RowFormat":
        """That of a vocabulary: cls and sep, or bos and eos where it lacks one of these."""
        names = ("cls", "sep") if None not in (special.cls, special.sep) else ("bos", "eos")
        begin, end = map(special.required, names)
        return cls((begin,), (end,), (end,), special.pad or 0, has_types)

    @classmethod
    def labelled(cls, special: Special) -> "RowFormat":
        """That of labelled texts: BERT's, with types, or where there is no cls and sep RoBERTa's and BART's
        `<s> A </s></s> B </s>`, without.
        """
        found = cls.of(special, has_types=True)
        if found.before == (special.cls,):
            return found
        return replace(found, between=found.after * 2, has_types=False)

    def room(self, length: int, num_texts: int = 1) -> int:
        """How many tokens of so many texts fit into a row of `length`."""
        return length - len(self.before) - len(self.after) - (num_texts - 1) * len(self.between)

    @functools.cached_property
    def _marks(self) -> tuple[Int[np.ndarray, " _"], ...]:
        return tuple(np.array(marks, np.int32) for marks in (self.before, self.between, self.after))

    def row(self, texts: Sequence[Integer[np.ndarray, " _"]], length: int) -> dict[str, np.ndarray]:
        """Texts that fit as a row: `tokens` and `mask` (0 at padding) [length] int32, and its `token_types`."""
        before, between, after = self._marks
        tokens = np.full(length, self.pad, np.int32)
        token_types = np.zeros(length, np.int32) if self.has_types else None
        size = len(before)
        tokens[:size] = before
        for number, text in enumerate(texts):
            start, size = size, size + len(text)
            tokens[start:size] = text
            marks = after if number == len(texts) - 1 else between
            tokens[size : size + len(marks)] = marks
            size += len(marks)
            if number and token_types is not None:
                token_types[start:size] = number
        made = {"tokens": tokens, "mask": (np.arange(length) < size).astype(np.int32)}
        return made if token_types is None else made | {"token_types": token_types}

    def begins(self, sizes: Sequence[int]) -> list[int]:
        """Where in a row texts of these sizes begin."""
        found, at = [], len(self.before)
        for size in sizes:
            found.append(at)
            at += size + len(self.between)
        return found
