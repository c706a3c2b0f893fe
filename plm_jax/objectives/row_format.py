"""Special tokens around the texts of a row, token types and padding."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int, Integer

from plm_jax.objectives.special import Special


@dataclass(frozen=True)
class RowFormat:
    """The special tokens of a row: `before` the first text, `between` two texts, and `after` the last text.

    For BERT's `[CLS] A [SEP] B [SEP]`, `before` is (cls,), and `between` and `after` are (sep,).

    Attributes:
      pad: id of the padding.
      has_types: whether rows have `token_types`, the index of each token's text. A special token has the type of the
        text before it; `before` and padding have type 0.
      last_type: token type of the last special token; None: the token type of the text before it.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    pad: int = 0
    has_types: bool = False
    last_type: int | None = None

    @classmethod
    def of(cls, special: Special, has_types: bool = False) -> "RowFormat":
        """Returns the format `[cls] A [sep] B [sep]`, with bos and eos instead if the vocabulary lacks cls or sep.

        Raises:
          UserError: the vocabulary also lacks bos or eos.
        """
        names = ("cls", "sep") if None not in (special.cls, special.sep) else ("bos", "eos")
        begin, end = map(special.required, names)
        return cls((begin,), (end,), (end,), special.pad or 0, has_types)

    @classmethod
    def labeled(cls, special: Special) -> "RowFormat":
        """Returns the format of labeled texts.

        If the vocabulary has cls and sep, this is BERT's format, with token types. Otherwise, it is the format of
        RoBERTa and BART, `<s> A </s></s> B </s>`, without token types.

        Raises:
          UserError: the vocabulary lacks ids for either format.
        """
        row_format = cls.of(special, has_types=True)
        if row_format.before == (special.cls,):
            return row_format
        return replace(row_format, between=row_format.after * 2, has_types=False)

    @classmethod
    def xlnet(cls, sep_id: int, cls_id: int, pad: int = 0) -> "RowFormat":
        """Returns the format of XLNet, `A <sep> B <sep> <cls>`, in which the last token has its own token type."""
        return cls((), (sep_id,), (sep_id, cls_id), pad, has_types=True, last_type=2)

    @property
    def classifies_last(self) -> bool:
        """Whether a row is classified at its last special token, as in XLNet."""
        return self.last_type is not None

    def room(self, length: int, num_texts: int = 1) -> int:
        """Returns the number of tokens that `num_texts` texts together can have in a row of `length`."""
        return length - len(self.before) - len(self.after) - (num_texts - 1) * len(self.between)

    @functools.cached_property
    def _marks(self) -> tuple[Int[np.ndarray, " _"], ...]:
        return tuple(np.array(marks, np.int32) for marks in (self.before, self.between, self.after))

    def row(self, texts: Sequence[Integer[np.ndarray, " _"]], length: int) -> dict[str, np.ndarray]:
        """Joins texts, which must fit, into a row of `length`.

        Returns:
          `tokens` [length] int32; `mask` [length] int32, 0 at padding; and `token_types` [length] int32, if
          `has_types`.
        """
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
        if token_types is not None and self.last_type is not None:
            token_types[size - 1] = self.last_type
        row = {"tokens": tokens, "mask": (np.arange(length) < size).astype(np.int32)}
        return row if token_types is None else row | {"token_types": token_types}

    def text_starts(self, sizes: Sequence[int]) -> list[int]:
        """Returns the index in the row of the first token of each text, for texts with these numbers of tokens."""
        starts, start = [], len(self.before)
        for size in sizes:
            starts.append(start)
            start += size + len(self.between)
        return starts
