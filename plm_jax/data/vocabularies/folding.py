"""Removal of case and accents before encoding, as in ALBERT (google-research/albert, tokenization.py).

Text is normalized to NFKD, stripped of combining characters and lowercased. A part of a text is folded to the same
characters on its own as within the text. The only exceptions are the two lowercase forms of sigma, which have the same
size. The size of a folded part therefore does not depend on the rest of the text.
"""

import functools
import itertools
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

# No character before U+0300 is a combining one.
_MAY_COMBINE = re.compile("[^\0-\u02ff]+")


@functools.cache
def combining() -> str:
    """Returns a regular expression that matches one of the combining characters, which folding removes."""
    codes = (i for i in range(sys.maxunicode + 1) if unicodedata.combining(chr(i)))
    ranges = (list(group) for _, group in itertools.groupby(enumerate(codes), lambda pair: pair[1] - pair[0]))
    return "[" + "".join(f"{chr(group[0][1])}-{chr(group[-1][1])}" for group in ranges) + "]"


def fold(text: str) -> str:
    """Normalizes a text to NFKD, removes combining characters, and converts it to lower case."""
    if text.isascii():
        return text.lower()
    return _MAY_COMBINE.sub(_without_combining, unicodedata.normalize("NFKD", text)).lower()


def _without_combining(match: re.Match) -> str:
    return "".join(letter for letter in match[0] if not unicodedata.combining(letter))


def original_offsets(text: str, offsets: Sequence[int] | np.ndarray) -> np.ndarray:
    """Converts byte offsets in the folded text to byte offsets of the same characters in the original text, int64.

    An offset within the folded form of a character is converted to the start of this character.
    """
    if text.isascii():
        return np.asarray(offsets, np.int64)
    letters, indices = np.unique(np.frombuffer(text.encode("utf-32-le"), np.uint32), return_inverse=True)
    sizes = np.array([[len(s.encode("utf-8")) for s in (letter, fold(letter))] for letter in map(chr, letters)])
    original, folded = np.cumsum(sizes[indices], axis=0).T
    return np.append(0, original)[np.searchsorted(folded, offsets, side="right")]


def character(text: str, offset: int, size: Callable[[str], int]) -> int:
    """Returns the index of the character of a text that is at an offset in the folded text; `len(text)` at its end.

    Characters that folding removes belong to the text before them. Other characters of size 0, such as white space if
    `size` does not count it, belong to the text after them.

    Args:
      offset: offset in the folded text, in the unit of `size`.
      size: function that returns the size of a character in the folded text.
    """
    reached = 0
    for i, letter in enumerate(text):
        if reached + size(letter) > offset or (reached == offset and fold(letter)):
            return i
        reached += size(letter)
    return len(text)
