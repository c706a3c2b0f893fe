"""Removal of pages that share word n-grams with evaluation sets. N-grams are stored as hashes of 8 bytes."""

import functools
import re
import unicodedata
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plm_jax.cleaning import minhash, settings
from plm_jax.cleaning.pages import Page, Tally
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data.sources import tables, text

_OTHER = re.compile(r"[^\w\s]+|_+")
# Powers of an odd number and of its inverse modulo 2^64, which give each position of a text its own factor.
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 2**64)


class EvaluationFile(NamedTuple):
    """File of an evaluation set.

    Attributes:
      num_examples: number of rows or paragraphs.
      num_short: number of examples that are ignored because all their texts have fewer than `min_words` words.
    """

    path: str
    num_examples: int
    num_short: int


def normalize(page: str) -> list[str]:
    """Returns the words of a text in lower case, without characters other than letters and digits.

    White space separates the words.
    """
    return _OTHER.sub("", unicodedata.normalize("NFC", page).lower()).split()


def hash_words(page: str) -> np.ndarray:
    """Returns the hashes of the words of a text in order, uint64."""
    codes = [zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in normalize(page)]
    return minhash.mix(np.array(codes, np.uint64))


def hash_ngrams(words: np.ndarray, *sizes: int) -> np.ndarray:
    """Returns the hashes of all n-grams of a text, uint64, one size after another.

    Args:
      words: hashes of the words of the text, from `hash_words`.
      sizes: numbers of words in an n-gram.
    """
    powers, inverses = _powers(len(words))
    sums = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(words * powers, out=sums[1:])
    hashes = [np.zeros(0, np.uint64)]
    for size in sizes:
        # Differences of sums of h[i] base^i, divided by base^start: the same for equal n-grams at any position.
        count = max(len(words) - size + 1, 0)
        hashes.append((sums[size : size + count] - sums[:count]) * inverses[:count])
    return minhash.mix(np.concatenate(hashes))


def _powers(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns two arrays, uint64 [number]: the first powers of the base, and the first powers of its inverse."""
    powers, inverses = _power_table(max(number - 1, 0).bit_length())
    return powers[:number], inverses[:number]


@functools.cache
def _power_table(bits: int) -> tuple[np.ndarray, np.ndarray]:
    def powers(base: int) -> np.ndarray:
        factors = np.full(2**bits, base, np.uint64)
        factors[0] = 1
        return np.cumprod(factors, dtype=np.uint64)

    return powers(_BASE), powers(_INVERSE)


def files(rule: settings.DecontaminationConfig) -> list[str]:
    """Returns the absolute paths of all files of the evaluation sets, each once.

    Raises:
      UserError: there is no file at a path.
    """
    names = []
    for path in rule.paths:
        matching = storage.glob(path)
        if not matching:
            raise UserError(f"there is no file at {path}: fix settings.decontamination.paths")
        names += map(storage.absolute, matching)
    return list(dict.fromkeys(names))


def describe(rule: settings.DecontaminationConfig) -> list[EvaluationFile]:
    """Reads the files of the evaluation sets, and counts the examples of each file.

    Raises:
      UserError: a file is missing, damaged or empty, a row lacks a field of the settings, or a file has no example that
        is long enough.
    """
    described = []
    for path in files(rule):
        lengths = [max((len(normalize(part)) for part in texts), default=0) for _, texts in _examples(path, rule)]
        num_short = sum(length < rule.min_words for length in lengths)
        if num_short == len(lengths):
            raise UserError(
                f"{path} has no text of {rule.min_words} words: fix settings.decontamination.paths, fields or min_words"
            )
        described.append(EvaluationFile(path, len(lengths), num_short))
    return described


def _examples(path: str, rule: settings.DecontaminationConfig) -> Iterator[tuple[str, list[str]]]:
    """Yields the location and the texts of each example of a file."""
    if path.lower().removesuffix(".gz").endswith(".txt"):
        with text.open_text(path, lambda size: None) as file:
            paragraphs = re.split(r"\n\s*\n", file.read().strip())
        for number, paragraph in enumerate(paragraphs, 1):
            yield f"{path}:paragraph {number}", [text.check_utf8(path, paragraph)]
        return
    for location, row in tables.read_rows(path):
        for name in rule.fields:
            if name not in row:
                raise UserError(f"{location} has no field '{name}': fix settings.decontamination.fields")
        yield location, list(_texts({name: row[name] for name in rule.fields} if rule.fields else row))


def _texts(value: Any) -> Iterator[str]:
    """Yields all texts in nested lists and objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple | np.ndarray):
        for item in value:
            yield from _texts(item)


class NoEvaluationText:
    """Drops pages that share an n-gram with an evaluation set.

    Counts each dropped page once per matching file (`evaluation FILE`) and once per matching example (`example
    LOCATION`).

    Args:
      paths: files of the evaluation sets, as `files` returns them.
    """

    def __init__(self, rule: settings.DecontaminationConfig, paths: Sequence[str]):
        self._locations: list[tuple[str, str]] = []
        hashes, examples = [], []
        sizes: set[int] = set()
        for path in paths:
            for location, texts in _examples(path, rule):
                for part in texts:
                    words = hash_words(part)
                    if len(words) >= rule.min_words:
                        size = min(len(words), rule.words)
                        sizes.add(size)
                        hashes.append(np.unique(hash_ngrams(words, size)))
                        examples.append(np.full(len(hashes[-1]), len(self._locations), np.uint32))
                self._locations.append((path, location))
        self._sizes = sorted(sizes)
        unsorted = np.concatenate([*hashes, np.zeros(0, np.uint64)])
        order = np.argsort(unsorted, kind="stable")
        self._hashes = unsorted[order]
        self._examples = np.concatenate([*examples, np.zeros(0, np.uint32)])[order]

    def __call__(self, page: Page, tally: Tally) -> Page | None:
        """Returns the page, or None to drop it."""
        examples = self._matching(page.text)
        if not len(examples):
            return page
        tally.add("contaminated", page, [page.text])
        locations = [self._locations[number] for number in examples]
        for name in {f"evaluation {path}" for path, _ in locations} | {
            f"example {example}" for _, example in locations
        }:
            tally.count(name, page.text)
        return None

    def _matching(self, page: str) -> np.ndarray:
        """Returns the indices of the examples that share an n-gram with a text."""
        words = hash_words(page)
        hashes = np.sort(hash_ngrams(words, *self._sizes))  # Sorted queries are found faster.
        first = np.searchsorted(self._hashes, hashes)
        is_shared = self._hashes[np.minimum(first, len(self._hashes) - 1)] == hashes
        shared = np.unique(hashes[is_shared])
        if not len(shared):
            return self._examples[:0]
        starts, ends = (np.searchsorted(self._hashes, shared, side) for side in ("left", "right"))
        return np.unique(np.concatenate([self._examples[a:b] for a, b in zip(starts, ends, strict=True)]))
