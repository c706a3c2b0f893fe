"""Reading of untrusted files in bounded memory and time."""

import re
from collections.abc import Iterator
from typing import Any

# A string of JSON, closed or not, or a bracket; matches in linear time.
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
_PIECE = 2**20
# Reading a gigabyte of newlines, which compresses to a thousandth of that, would take minutes.
MOST_BLANK_LINES = 2**20


class BlankLinesError(ValueError):
    """Raised when a file has more than `MOST_BLANK_LINES` consecutive blank lines."""


def lines(file: Any, limit: int) -> Iterator[Any | None]:
    """Yields the lines of a text or binary file with their newlines, and None in place of each line that is too long.

    A line is too long if it has more than `limit` characters (text) or bytes (binary), not counting its newline.

    Raises:
      BlankLinesError: more than `MOST_BLANK_LINES` consecutive lines are blank.
    """
    blank = 0
    while line := file.readline(limit + 1):
        blank = blank + 1 if line.isspace() else 0
        if blank > MOST_BLANK_LINES:
            raise BlankLinesError(f"more than {MOST_BLANK_LINES:,} blank lines in a row")
        ending: Any = "\n" if isinstance(line, str) else b"\n"
        if len(line) <= limit or line.endswith(ending):
            yield line
            continue
        while line and not line.endswith(ending):
            line = file.readline(_PIECE)
        yield None


def is_nested(text: str, limit: int) -> bool:
    """Whether a JSON text, which may be incomplete, is nested more than `limit` levels deep."""
    if text.count("[") + text.count("{") <= limit:
        return False
    depth = 0
    for token in _TOKENS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if depth > limit:
            return True
    return False
