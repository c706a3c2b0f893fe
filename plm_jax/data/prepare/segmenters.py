"""User-defined segmenters, which find words in text without spaces, such as `jieba:lcut` for Chinese."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from plm_jax.common import users
from plm_jax.common.errors import UserError, one_line

_SPACE = re.compile(r"\s*")


def load(name: str) -> Callable[[str], list[int]]:
    """Returns a function that finds the boundaries of words with the user's segmenter `module:function`.

    The segmenter is a function from a text to its words, in order. Except for white space, the words must join to the
    text.

    Returns:
      Function from a text to the result of `boundaries`, with the same errors.

    Raises:
      UserError: there is no such function, or its module is not trusted or fails.
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
    """Returns the sorted character offsets in a text at which words begin, without the first word.

    White space between two words counts as the start of the second one.

    Args:
      words: result of the segmenter for the text.
      name: name of the segmenter in errors.

    Raises:
      UserError: the words are not strings that, except for white space, join to the text.
    """
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
