"""Tokens of texts by way of their stretches between spaces, each of which is tokenised once.

The tokenizers of BERT, GPT-2 and LLaMA 3 cut text into words before all else. None of their words has a space but at
its beginning, and where white space meets white space the last before other text goes with that text. So a text may be
cut before a space that has something else than white space on either side, and the tokens are the same.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

# What is kept: stretches up to so many characters, until they have so many tokens.
_LONGEST = 64
_MOST_TOKENS = 2**21
# A space with white space, or the end of the text, on both sides; any other.
_WITHIN_SPACE = re.compile(r" (?<=\s )(?=\s|\Z)")
_CUT = re.compile(r" (?:(?<=\S )|(?=\S))")
# Before the first stretch of a text, which no space comes before: half of a character, which no text has.
_FIRST = "\ud800"


class _Table(NamedTuple):
    """Tokenised stretches: the tokens of stretch i are from `ends[i]` to `ends[i + 1]`; `places` are characters."""

    ids: np.ndarray
    places: np.ndarray
    ends: np.ndarray
    lengths: np.ndarray


_EMPTY = _Table(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int64))


class Stretches:
    """The tokens of texts; remembers those of stretches."""

    def __init__(
        self, encode: Callable[[list[str]], list[tuple[Sequence[int] | np.ndarray, Sequence[int] | np.ndarray]]]
    ):
        """`encode` gives ids of texts, and at which character each begins."""
        self._encode = encode
        self._rows: dict[str, int] = {}
        self._table = _EMPTY

    def __call__(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids [n] of all texts; the character of its text at which each begins [n]; how many each text has [texts]."""
        stretches, counts = [], []
        for text in texts:
            first, *others = _CUT.split(text) if _WITHIN_SPACE.search(text) else text.split(" ")
            stretches.append(_FIRST + first)
            stretches += others
            counts.append(1 + len(others))
        rows, table = self._look_up(stretches)
        sizes = table.ends[rows + 1] - table.ends[rows]
        found = ranges(table.ends[rows], sizes)
        lengths, last = table.lengths[rows], np.cumsum(counts)
        begins = np.cumsum(lengths) - lengths
        begins -= np.repeat(begins[last - counts], counts)
        token_ends = np.append(0, np.cumsum(sizes))
        return (
            table.ids[found],
            table.places[found] + np.repeat(begins, sizes),
            token_ends[last] - token_ends[last - counts],
        )

    def _look_up(self, stretches: list[str]) -> tuple[np.ndarray, _Table]:
        """The rows of stretches, and the table that they are in."""
        rows = list(map(self._rows.get, stretches))
        new = dict.fromkeys(stretch for stretch, row in zip(stretches, rows, strict=True) if row is None)
        if not new:
            return np.array(rows), self._table
        if len(self._table.ids) > _MOST_TOKENS:
            self._rows, self._table = {}, _EMPTY
            return self._look_up(stretches)
        kept = [stretch for stretch in new if len(stretch) <= _LONGEST]
        self._table = self._with(self._table, kept)
        self._rows |= zip(kept, range(len(self._rows), len(self._rows) + len(kept)), strict=True)
        long = [stretch for stretch in new if len(stretch) > _LONGEST]
        others = dict(zip(long, range(len(self._rows), len(self._rows) + len(long)), strict=True))
        rows = [self._rows.get(stretch, others.get(stretch)) for stretch in stretches]
        return np.array(rows), self._with(self._table, long)

    def _with(self, table: _Table, stretches: list[str]) -> _Table:
        """The table with more stretches."""
        if not stretches:
            return table
        texts = [stretch[1:] if stretch.startswith(_FIRST) else " " + stretch for stretch in stretches]
        encoded = self._encode(texts)
        ends = table.ends[-1] + np.cumsum([len(ids) for ids, _ in encoded])
        ids, places = (np.array([i for pair in encoded for i in pair[part]], np.int32) for part in (0, 1))
        made = _Table(ids, places, ends, np.array(list(map(len, texts)), np.int64))
        return _Table(*map(np.concatenate, zip(table, made, strict=True)))


def ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`starts[0]`, `starts[0]` + 1, … up to `sizes[0]` of them, then those from `starts[1]`, and so on."""
    return np.arange(sizes.sum()) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
