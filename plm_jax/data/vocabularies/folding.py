"""Text without case and accents, as ALBERT's code makes it before it encodes (google-research/albert, tokenization.py).

NFKD, without the combining characters, in lower case. A part of a text is folded as it is in the whole but for the form
of a last sigma, so that parts have the sizes that they have in it.
"""

import functools
import itertools
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

# Before U+0300 no character is a combining one.
_MAY_COMBINE = re.compile("[^\0-\u02ff]+")


@functools.cache
def combining() -> str:
    """The characters that are dropped, as a class of a regular expression."""
    found = (i for i in range(sys.maxunicode + 1) if unicodedata.combining(chr(i)))
    ranges = (list(group) for _, group in itertools.groupby(enumerate(found), lambda pair: pair[1] - pair[0]))
    return "[" + "".join(f"{chr(group[0][1])}-{chr(group[-1][1])}" for group in ranges) + "]"


def fold(text: str) -> str:
    """The text as an uncased vocabulary sees it."""
    if text.isascii():
        return text.lower()
    return _MAY_COMBINE.sub(_without_combining, unicodedata.normalize("NFKD", text)).lower()


def _without_combining(match: re.Match) -> str:
    return "".join(letter for letter in match[0] if not unicodedata.combining(letter))


def own_bytes(text: str, places: Sequence[int] | np.ndarray) -> np.ndarray:
    """Where in a text, in UTF-8 bytes, the characters begin to which bytes of the folded one belong."""
    if text.isascii():
        return np.asarray(places, np.int64)
    letters, at = np.unique(np.frombuffer(text.encode("utf-32-le"), np.uint32), return_inverse=True)
    sizes = np.array([[len(s.encode("utf-8")) for s in (letter, fold(letter))] for letter in map(chr, letters)])
    own, folded = np.cumsum(sizes[at], axis=0).T
    return np.append(0, own)[np.searchsorted(folded, places, side="right")]


def character(text: str, place: int, size: Callable[[str], int]) -> int:
    """The character of a text at which a place in the folded one is; `size` says what a character takes up there.

    One that takes up nothing and is not dropped, as white space may be, begins what comes after it.
    """
    reached = 0
    for i, letter in enumerate(text):
        if reached + size(letter) > place or (reached == place and fold(letter)):
            return i
        reached += size(letter)
    return len(text)
