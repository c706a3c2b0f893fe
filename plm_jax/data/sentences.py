"""Where sentences begin."""

import itertools
import re

import numpy as np

_CLOSERS = r"[\"'”’»)\]」』）]*"
_END = re.compile(rf"[.!?…]+{_CLOSERS}(?=\s+\S)|[。！？]+{_CLOSERS}(?=\s*\S)|(?<=\S)(?=[^\S\n]*\n\s*\n\s*\S)")


def boundaries(text: str) -> list[int]:
    """The characters at which a sentence other than the first begins, rising.

    A sentence ends after . ! ? or … where white space follows, after 。！？ always, each with its closing quotes and
    brackets, and at a blank line; white space between two sentences belongs to the later one. A rule this simple also
    ends one after an abbreviation. Trailing white space makes no sentence.
    """
    return sorted({match.end() for match in _END.finditer(text)})


def split(text: str) -> list[str]:
    """The sentences of `text`; joined they are `text`."""
    cuts = [0, *boundaries(text), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(cuts)]


def token_starts(cuts: list[int], token_offsets: np.ndarray) -> np.ndarray:
    """The first token of each sentence, int64, rising and distinct.

    Args:
      cuts: `boundaries` of the text.
      token_offsets: [n], where in the text each token begins, in the units of `cuts`, not falling.
    """
    starts = np.unique(np.concatenate([[0], np.searchsorted(token_offsets, cuts, side="left")])).astype(np.int64)
    return starts[starts < len(token_offsets)]
