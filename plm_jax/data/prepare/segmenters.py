"""User-defined segmenters, which find words in text without spaces, such as `jieba:lcut` for Chinese."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from plm_jax.common import users
from plm_jax.common.errors import UserError, one_line

_SPACE = re.compile(r"\s*")


def load(name: str) -> Callable[[str], list[int]]:
    """Loads the segmenter `module:function`, a function that splits a text into words, in order.

    Joined, the words must be the text, except for white space. White space in the text counts as the start of the next
    word.

    Returns:
      Function from a text to the sorted character offsets at which words begin, without the first word, as in
      `sentences.boundaries`. The function raises a `UserError` if the words do not add up to the text.

    Raises:
      UserError: there is no such function.
    """
    module, _, function = name.partition(":")
    try:
        segment = getattr(users.imported(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"config.data.segmenters has '{name}' ({one_line(error, None)}): write a Python function as module:function"
        ) from error
    if not callable(segment):
        raise UserError(
            f"config.data.segmenters has '{name}', which is not a function: write a Python function as module:function"
        )
    return lambda text: boundaries(text, segment(text), name)


def _after_space(text: str, begin: int) -> int:
    """Returns the index of the first character at or after `begin` that is not white space."""
    match = _SPACE.match(text, begin)
    return match.end() if match else begin


def boundaries(text: str, words: Any, name: str) -> list[int]:
    """Returns the offsets at which words begin, without the first word; `name` names the segmenter in errors."""
    words = list(words) if isinstance(words, Iterable) else [words]
    if not all(isinstance(word, str) for word in words):
        raise UserError(f"the segmenter {name} returns {repr(words)[:40]}: return a list of strings")
    cuts, end = [], 0
    for word in filter(str.strip, words):
        begin = _after_space(text, end)
        if not text.startswith(word.lstrip(), begin):
            raise UserError(
                f"the segmenter {name} returns '{word}' where the text continues '{text[begin : begin + 20]}': return "
                "words that join to the text"
            )
        cuts.append(end)
        end = begin + len(word.strip())
    if text[end:].strip():
        raise UserError(f"the segmenter {name} omits '{text[end : end + 20]}': return words that join to the text")
    return cuts[1:]
