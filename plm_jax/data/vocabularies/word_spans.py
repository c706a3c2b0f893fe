"""Tokenization of the spans between the spaces of a text, with a cache of tokenized spans.

The tokenizers of BERT, GPT-2 and LLaMA 3 first split text into words. These words have a space only at the beginning,
and the last character of a run of white space belongs to the text that follows. A text can thus be split, without
changing its tokens, before each space that is next to a character other than white space.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

# Largest number of characters of a cached span, and of tokens in the cache before it is halved.
_MAX_CHARACTERS = 64
_MAX_TOKENS = 2**19
# A space with white space, or the end of the text, on both sides; any other space.
_WITHIN_SPACE = re.compile(r" (?<=\s )(?=\s|\Z)")
_CUT = re.compile(r" (?:(?<=\S )|(?=\S))")
# Prefix of the first span of a text, which has no space before it: a surrogate, which no text contains.
_FIRST = "\ud800"


class _Table(NamedTuple):
    """Tokenized spans.

    Attributes:
      ids: ids of tokens.
      offsets: first character of each token in its span.
      ends: edges of spans; span i has the tokens [ends[i], ends[i + 1]).
      lengths: number of characters of each span.
    """

    ids: np.ndarray
    offsets: np.ndarray
    ends: np.ndarray
    lengths: np.ndarray


_EMPTY = _Table(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int64))


class SpanTokenizer:
    """Tokenizer of texts that caches the tokens of short spans."""

    def __init__(
        self, encode: Callable[[list[str]], list[tuple[Sequence[int] | np.ndarray, Sequence[int] | np.ndarray]]]
    ):
        """Creates an empty cache; `encode` returns, for each text, its ids and the first character of each token."""
        self._encode = encode
        self._rows: dict[str, int] = {}
        self._table = _EMPTY
        self._uses = np.zeros(0, np.int64)

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokenizes texts.

        Returns:
          Three arrays: the ids of all texts [n], the first character of each token in its text [n], and the number of
          tokens of each text [texts].
        """
        spans, counts = [], []
        for text in texts:
            first, *rest = _CUT.split(text) if _WITHIN_SPACE.search(text) else text.split(" ")
            spans.append(_FIRST + first)
            spans += rest
            counts.append(1 + len(rest))
        rows, table = self._look_up(spans)
        sizes = table.ends[rows + 1] - table.ends[rows]
        tokens = ranges(table.ends[rows], sizes)
        lengths, last = table.lengths[rows], np.cumsum(counts)
        begins = np.cumsum(lengths) - lengths
        begins -= np.repeat(begins[last - counts], counts)
        token_ends = np.append(0, np.cumsum(sizes))
        return (
            table.ids[tokens],
            table.offsets[tokens] + np.repeat(begins, sizes),
            token_ends[last] - token_ends[last - counts],
        )

    def _look_up(self, spans: list[str]) -> tuple[np.ndarray, _Table]:
        """Returns the index of each span in a table of tokenized spans, and this table; caches new short spans."""
        if len(self._table.ids) > _MAX_TOKENS:
            self._halve()
        rows = list(map(self._rows.get, spans))
        new = dict.fromkeys(span for span, row in zip(spans, rows, strict=True) if row is None)
        short = [span for span in new if len(span) <= _MAX_CHARACTERS]
        self._table = self._extend(self._table, short)
        self._rows |= zip(short, range(len(self._rows), len(self._rows) + len(short)), strict=True)
        long = [span for span in new if len(span) > _MAX_CHARACTERS]
        long_rows = dict(zip(long, range(len(self._rows), len(self._rows) + len(long)), strict=True))
        if new:
            rows = [self._rows.get(span, long_rows.get(span)) for span in spans]
        row_numbers, num_cached = np.array(rows), len(self._rows)
        uses = np.bincount(row_numbers[row_numbers < num_cached], minlength=num_cached)
        uses[: len(self._uses)] += self._uses
        self._uses = uses
        return row_numbers, self._extend(self._table, long)

    def _halve(self) -> None:
        """Drops the half of the cached spans that was used least since the cache was last halved."""
        rows = np.sort(np.argsort(-self._uses, kind="stable")[: len(self._uses) // 2])
        spans, table, sizes = list(self._rows), self._table, np.diff(self._table.ends)[rows]
        tokens = ranges(table.ends[rows], sizes)
        ends = np.append(0, np.cumsum(sizes))
        self._rows = {spans[row]: number for number, row in enumerate(rows.tolist())}
        self._table = _Table(table.ids[tokens], table.offsets[tokens], ends, table.lengths[rows])
        self._uses = np.zeros(len(rows), np.int64)

    def _extend(self, table: _Table, spans: list[str]) -> _Table:
        """Returns the table with additional spans."""
        if not spans:
            return table
        texts = [span[1:] if span.startswith(_FIRST) else " " + span for span in spans]
        encoded = self._encode(texts)
        ends = table.ends[-1] + np.cumsum([len(ids) for ids, _ in encoded])
        ids, offsets = (np.array([i for pair in encoded for i in pair[part]], np.int32) for part in (0, 1))
        new = _Table(ids, offsets, ends, np.array(list(map(len, texts)), np.int64))
        return _Table(*map(np.concatenate, zip(table, new, strict=True)))


def ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Concatenates the ranges [start, start + size), one for each start and size."""
    return np.arange(sizes.sum()) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
