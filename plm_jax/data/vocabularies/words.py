"""Vocabularies of whole words, and the characters of words as in allenai/bilm-tf (bilm/data.py). NumPy only.

The id of a character is a UTF-8 byte of the word, 0 to 255, or one of the five special ids below. In bilm-tf, ids are
larger by 1, because 0 is reserved for padded words; here, a mask marks padded words.
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
_BOUNDARIES = {BOS: BEGIN_SENTENCE, EOS: END_SENTENCE}


def read(path: str) -> list[str]:
    """Reads the words of a file with one word per line; bytes that are not UTF-8 are replaced.

    Raises:
      UserError: a line has no word, a word is duplicated, or the file begins with a byte order mark or is too large.
      OSError: a local file cannot be read.
    """
    try:
        words = lines(storage.read(path, strict_json.MOST_BYTES), "replace")
    except ValueError as error:
        raise UserError(
            f"{path} is not a vocabulary of words ({error}): write one word per line, without duplicates"
        ) from error
    if len(set(words)) < len(words) or not all(map(str.strip, words)):
        raise UserError(f"{path} is not a vocabulary of words: write one word per line, without duplicates")
    return words


def characters(words: Sequence[str], length: int) -> np.ndarray:
    """Returns the characters of words, uint16 [words, length]: `BEGIN_WORD`, bytes, `END_WORD` and `PADDING`.

    Words are truncated to `length` - 2 bytes. `<S>` and `</S>` each have a special character instead of bytes; unknown
    words and `<UNK>` are spelled out.
    """
    encoded = [b" " if word in _BOUNDARIES else word.encode("utf-8", "replace")[: length - 2] for word in words]
    sizes = np.array([len(letters) for letters in encoded], np.int64)
    table = np.full((len(words), length), PADDING, np.uint16)
    column = np.arange(length)
    table[:, 0] = BEGIN_WORD
    table[column == sizes[:, None] + 1] = END_WORD
    table[(column > 0) & (column <= sizes[:, None])] = np.concatenate(
        [np.zeros(0, np.uint16), *(np.frombuffer(letters, np.uint8) for letters in encoded)]
    )
    for boundary, character in _BOUNDARIES.items():
        table[np.array([word == boundary for word in words], np.bool_), 1] = character
    return table


def sentences(texts: Iterable[str], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits texts at white space, adds `<S>` and `</S>` around each text, and returns the characters of the words.

    Args:
      length: number of characters of each word, as in `characters`.

    Returns:
      A pair: the characters, int32 [texts, words, length], and a mask, int32 [texts, words], which is 1 for words and 0
      for padding. Texts are padded to the number of words of the longest text.
    """
    framed = [[BOS, *text.split(), EOS] for text in texts]
    sizes = np.array([len(text) for text in framed])
    mask = (np.arange(sizes.max(initial=0)) < sizes[:, None]).astype(np.int32)
    table = np.full((*mask.shape, length), PADDING, np.int32)
    table[mask > 0] = characters([word for text in framed for word in text], length)
    return table, mask


def spelling(cache_dir: str, vocabulary: dict[str, Any], length: int) -> np.ndarray:
    """Returns the characters of the words in the vocabulary of a cache, uint16 [words, length].

    Args:
      vocabulary: description of the vocabulary in the cache's manifest, with its `kind` and the hashes of its `files`.
      length: number of characters of each word, as in `characters`.

    Raises:
      UserError: the vocabulary does not consist of words, or its file is missing or has changed.
    """
    if vocabulary["kind"] != "words":
        raise UserError(f"streams read whole words: set config.vocabulary.spec to words:FILE, not {vocabulary['kind']}")
    ((name, digest),) = vocabulary["files"].items()
    path = os.path.join(cache_dir, "vocabulary", name)
    if not storage.exists(path) or storage.sha256(path) != digest:
        raise UserError(f"{path} is not the vocabulary of the cache: run `python -m plm_jax prepare --config=…` again")
    return characters(read(path), length)
