"""Table of similar words, from which masked language modeling replaces words."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int, Integer

from plm_jax.common.errors import UserError

Tokens = tuple[int, ...]


class SimilarWords:
    """Similar words for each of several words. A similar word has as many tokens as the word.

    The table is one vector, int32 [n], of entries. An entry consists of the number of tokens of a word, the number of
    its similar words, the tokens of the word, and the tokens of each similar word. `pack` returns a vector of this
    form.
    """

    def __init__(self, table: Integer[np.ndarray, " table"]):
        """Reads the entries of a table.

        Raises:
          UserError: the table ends within an entry, or an entry has no tokens or no similar words.
        """
        self._table = np.asarray(table, np.int32)
        self._entries: dict[bytes, tuple[int, int]] = {}
        data, start = self._table.data, 0
        while start < len(self._table):
            size, count = self._table[start : start + 2].tolist() if start + 2 <= len(self._table) else (0, 0)
            first, end = start + 2 + size, start + 2 + size * (1 + count)
            if size < 1 or count < 1 or end > len(self._table):
                raise UserError(f"the table of similar words is invalid at value {start}: prepare it again")
            self._entries[data[start + 2 : first].tobytes()] = first, count
            start = end

    def __len__(self) -> int:
        """Returns the number of words that have similar words."""
        return len(self._entries)

    def draw(self, word: Int[np.ndarray, " tokens"], rng: np.random.Generator) -> Int[np.ndarray, " tokens"] | None:
        """Draws a similar word of a word uniformly; returns None if the word has no similar words."""
        first, count = self._entries.get(word.astype(np.int32).tobytes(), (0, 0))
        if not count:
            return None
        first += int(rng.random() * count) * len(word)
        return self._table[first : first + len(word)]


def pack(words: Mapping[Tokens, Sequence[Tokens]]) -> Int[np.ndarray, " table"]:
    """Returns the table of `SimilarWords` for words and their similar words.

    Each word must have at least one similar word, and its similar words must have as many tokens as the word.
    """
    values: list[int] = []
    for word, similar in words.items():
        values += len(word), len(similar), *word, *itertools.chain.from_iterable(similar)
    return np.array(values, np.int32)
