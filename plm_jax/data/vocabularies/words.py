"""Whole words and their characters, as allenai/bilm-tf numbers them (bilm/data.py). NumPy only.

A character is a byte of the word's UTF-8, 0 to 255; beyond are those below. bilm-tf adds one to all of them where 0
stands for padded words (262 ids in place of 261); here a mask says which words are padding.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from plm_jax.common import storage, strict_json
from plm_jax.common.errors import UserError
from plm_jax.common.wordpiece import lines

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, PADDING = range(256, 261)
BOS, EOS, UNK = "<S>", "</S>", "<UNK>"
_MARKS = {BOS: BEGIN_SENTENCE, EOS: END_SENTENCE}


def read(path: str) -> list[str]:
    """The words of a file, one a line.

    Raises:
      UserError: a line without a word, or a word that comes twice.
      OSError: the file cannot be read.
    """
    try:
        words = lines(storage.read(path, strict_json.MOST_BYTES), "replace")
    except ValueError as error:
        raise UserError(f"{path} is no vocabulary of words ({error}): give one word a line, none twice") from error
    if len(set(words)) < len(words) or not all(map(str.strip, words)):
        raise UserError(f"{path} is no vocabulary of words: give one word a line, none twice")
    return words


def characters(words: Sequence[str], length: int) -> np.ndarray:
    """The characters of words, uint16 [words, length]: its begin, its bytes, its end, and padding.

    Of a word with more than `length` - 2 bytes the rest is cut. `<S>` and `</S>` have a character of their own; unknown
    words are spelt as they are, `<UNK>` too.
    """
    spelt = [b" " if word in _MARKS else word.encode("utf-8", "replace")[: length - 2] for word in words]
    sizes = np.array([len(letters) for letters in spelt], np.int64)
    table = np.full((len(words), length), PADDING, np.uint16)
    column = np.arange(length)
    table[:, 0] = BEGIN_WORD
    table[column == sizes[:, None] + 1] = END_WORD
    table[(column > 0) & (column <= sizes[:, None])] = np.concatenate(
        [np.zeros(0, np.uint16), *(np.frombuffer(letters, np.uint8) for letters in spelt)]
    )
    for mark, character in _MARKS.items():
        table[np.array([word == mark for word in words], np.bool_), 1] = character
    return table


def sentences(texts: Iterable[str], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Texts of words with white space between, each framed by `<S>` and `</S>`.

    Returns:
      Characters int32 [texts, longest, length] and a mask int32 [texts, longest], 1 for real words.
    """
    framed = [[BOS, *text.split(), EOS] for text in texts]
    sizes = np.array([len(text) for text in framed])
    mask = (np.arange(sizes.max(initial=0)) < sizes[:, None]).astype(np.int32)
    found = np.full((*mask.shape, length), PADDING, np.int32)
    found[mask > 0] = characters([word for text in framed for word in text], length)
    return found, mask


def spelling(cache_dir: str, vocabulary: dict[str, Any], length: int) -> np.ndarray:
    """The characters uint16 [vocab_size, length] of a cache's words, from the copy of their file beside it.

    Args:
      vocabulary: what the manifest says of it.

    Raises:
      UserError: it is no vocabulary of words, or its file is missing or has changed.
    """
    if vocabulary["kind"] != "words":
        raise UserError(f"streams read whole words: set config.vocabulary.spec to words:FILE, not {vocabulary['kind']}")
    ((name, digest),) = vocabulary["files"].items()
    path = os.path.join(cache_dir, "vocabulary", name)
    if not storage.exists(path) or storage.sha256(path) != digest:
        raise UserError(f"{path} is not the vocabulary of the cache: run `python -m plm_jax prepare --config=…` again")
    return characters(read(path), length)
