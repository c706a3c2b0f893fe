"""Tokenizes a text file of similar words for objectives that replace words.

A line has a word and then its similar words, separated by tabs, such as `great<TAB>large<TAB>vast`.
"""

from collections.abc import Iterator

import numpy as np

from plm_jax.common import storage
from plm_jax.common.errors import UserError, one_line
from plm_jax.data import vocabularies
from plm_jax.objectives import similar_words


def tokenize(path: str, vocabulary: vocabularies.Vocabulary) -> tuple[np.ndarray, int, int]:
    """Tokenizes a file of similar words, each word once without and once with a space before it.

    Words with unknown tokens are left out. A similar word must have as many tokens as the word that it replaces, and
    not the same tokens; otherwise, it is left out too. Lines with the same word are merged.

    Returns:
      Three values: the table of `SimilarWords`, int32 [n]; the number of words with similar words in the table; and the
      number of lines. A word with a space before it counts as another word.

    Raises:
      UserError: the file is missing, is not UTF-8, or has a line that lacks a word or its similar words.
    """
    words: dict[similar_words.Tokens, dict[similar_words.Tokens, None]] = {}
    num_lines = 0
    for line in _lines(path):
        num_lines += 1
        for prefix in ("", " "):
            word, *candidates = (_encode(vocabulary, prefix + text) for text in line)
            fitting = [similar for similar in candidates if len(similar) == len(word) and similar != word]
            if word and fitting:
                words.setdefault(word, {}).update(dict.fromkeys(fitting))
    table = similar_words.pack({word: tuple(similar) for word, similar in words.items()})
    return table, len(words), num_lines


def _lines(path: str) -> Iterator[list[str]]:
    """Yields a list per line: the word and then its similar words, without surrounding white space."""
    try:
        text = storage.read(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read config.data.similar_words ({one_line(error)}): write a UTF-8 file with a word and its "
            "similar words on each line, separated by tabs"
        ) from error
    for number, line in enumerate(text.splitlines(), 1):
        words = [word.strip() for word in line.split("\t")]
        if len(words) < 2 or not all(words):
            raise UserError(f"{path}:{number}: expected a word and its similar words, separated by tabs: fix this line")
        yield words


def _encode(vocabulary: vocabularies.Vocabulary, text: str) -> similar_words.Tokens:
    """Returns the tokens of a word; an empty tuple if a token is unknown."""
    tokens = tuple(map(int, vocabulary.encode(text)))
    return () if vocabulary.unk_id in tokens else tokens
