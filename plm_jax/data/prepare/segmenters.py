"""Where words begin in text without spaces: the user's own function says, for example `jieba:lcut` for Chinese."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from plm_jax.common import users
from plm_jax.common.errors import UserError, one_line

_SPACE = re.compile(r"\s*")


def load(name: str) -> Callable[[str], list[int]]:
    """The rule of a function `module:function`, which takes a text and gives its words in order.

    White space may be left out of the words, nothing else; it belongs to the word that follows it.

    Returns:
      Text → the characters at which a word other than the first begins, rising, as `sentences.boundaries` gives them.

    Raises:
      UserError: there is no such function. The rule raises it where the words are not those of the text.
    """
    module, _, function = name.partition(":")
    try:
        segment = getattr(users.imported(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        what = one_line(error, None)
        raise UserError(f"config.data.segmenters has '{name}' ({what}): give module:function of Python") from error
    if not callable(segment):
        raise UserError(f"config.data.segmenters has '{name}', which is no function: give module:function of Python")
    return lambda text: boundaries(text, segment(text), name)


def _after_space(text: str, begin: int) -> int:
    """Returns the first character from `begin` on that is not white space."""
    match = _SPACE.match(text, begin)
    return match.end() if match else begin


def boundaries(text: str, words: Any, name: str) -> list[int]:
    """The characters at which a word other than the first begins; `name` is what an error calls the segmenter."""
    words = list(words) if isinstance(words, Iterable) else [words]
    if not all(isinstance(word, str) for word in words):
        raise UserError(f"the segmenter {name} gives {repr(words)[:40]}: give words, each a text")
    cuts, end = [], 0
    for word in filter(str.strip, words):
        begin = _after_space(text, end)
        if not text.startswith(word.lstrip(), begin):
            raise UserError(
                f"the segmenter {name} gives '{word}' where the text goes on '{text[begin : begin + 20]}': give words "
                "that join to the text"
            )
        cuts.append(end)
        end = begin + len(word.strip())
    if text[end:].strip():
        raise UserError(f"the segmenter {name} leaves out '{text[end : end + 20]}': give words that join to the text")
    return cuts[1:]
