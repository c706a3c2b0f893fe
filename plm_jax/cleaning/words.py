"""Words as the rules of Gopher and FineWeb count them, and counts of repeated text."""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

Splitter = Callable[[str], Sequence[str]]

# A web address, initials such as U.S., the end of a contraction such as 's, a number with separators, a run of letters
# and digits, quotes, dots or dashes, or a single other character.
_WORDS = re.compile(
    r"https?://\S+|(?:[^\W\d_]\.){2,}|['’](?:s|t|re|ve|ll|d|m)\b|\d+(?:[.,]\d+)+|\w+|''|``|\.{2,}|-{2,}|\S"
)


@functools.lru_cache(maxsize=1)  # Several rules in a row split the same page.
def split(text: str) -> Sequence[str]:
    """Splits a text into words and marks: `The U.S. can't, "she" said...` has ten, the last of which is `...`."""
    return tuple(_WORDS.findall(text))


def is_punctuation(word: str) -> bool:
    """Whether a word contains neither a letter nor a digit."""
    return not word.isalnum() and not any(map(str.isalnum, word))


def repeated(items: Iterable[str]) -> tuple[int, int]:
    """Returns the number of items that equal an earlier item, and the number of their characters."""
    earlier: set[str] = set()
    number = characters = 0
    for item in items:
        if item in earlier:
            number += 1
            characters += len(item)
        else:
            earlier.add(item)
    return number, characters


class NGrams:
    """Word n-grams of growing length. They are compared without collisions, as integers and not as hashes."""

    def __init__(self, words: Sequence[str]):
        ids: dict[str, int] = {}
        self._words = np.fromiter(map(ids.setdefault, words, itertools.count()), np.int64, len(words))
        # Characters before each word.
        self._ends = np.zeros(len(words) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, words), np.int64, len(words)), out=self._ends[1:])
        self.size = 1
        self._starts, self._ids = np.arange(len(words)), self._words

    def grow_to(self, size: int) -> None:
        """Makes the n-grams longer, up to `size` words."""
        while self.size < size:
            self._grow()

    def _grow(self) -> None:
        # A longer n-gram can only repeat where a shorter one does.
        self._drop_single()
        if not len(self._starts):
            self.size += 1
            return
        starts = self._starts[self._starts + self.size < len(self._words)]
        ids = self._ids[: len(starts)]  # Starts are sorted: dropped ones are the last.
        keys = ids * max(len(self._words), 1) + self._words[starts + self.size]
        self._starts, self._ids = starts, np.unique(keys, return_inverse=True)[1]
        self.size += 1

    def _drop_single(self) -> None:
        is_repeated = np.bincount(self._ids)[self._ids] > 1
        self._starts, self._ids = self._starts[is_repeated], self._ids[is_repeated]

    def most_frequent(self) -> int:
        """Returns the number of characters in all occurrences of the most frequent n-gram, including spaces.

        Words are separated by one space. Overlapping occurrences count in full. Of several equally frequent n-grams,
        the first one counts. Returns 0 if there are too few words for an n-gram.
        """
        if len(self._words) < self.size:
            return 0
        counts = np.bincount(self._ids, minlength=1)
        start, number = 0, max(int(counts.max()), 1)
        if number > 1:
            start = int(self._starts[np.argmax(counts[self._ids])])
        return (int(self._ends[start + self.size] - self._ends[start]) + self.size - 1) * number

    def repeats(self) -> int:
        """Returns the number of characters, without white space, in n-grams that equal an earlier n-gram.

        Reads from left to right and continues after each repeated n-gram, so that no character counts twice.
        """
        self._drop_single()
        if not len(self._starts):
            return 0
        earlier: set[int] = set()
        characters, end = 0, 0
        lengths = self._ends[self._starts + self.size] - self._ends[self._starts]
        for start, ngram, length in zip(self._starts.tolist(), self._ids.tolist(), lengths.tolist(), strict=True):
            if start < end:
                continue
            if ngram in earlier:
                characters += length
                end = start + self.size
            else:
                earlier.add(ngram)
        return characters
