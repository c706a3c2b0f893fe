"""Stateless random numbers: a generator depends only on a seed, the name of a stream and a few counters."""

import functools
import zlib

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from typing_extensions import override

from plm_jax.common import seeds


class _Key(ISeedSequence):
    """Seed sequence that returns a fixed key for Philox.

    If the key is passed directly, NumPy also reads entropy from the operating system, which takes most of the time
    needed to create a generator.
    """

    def __init__(self, *words: int):
        self._words = np.array(words, np.uint64)

    @override
    def generate_state(self, n_words, dtype=np.uint32):
        """Returns the key: the two 64-bit words that Philox requests."""
        return self._words


@functools.lru_cache(64)
def _key(seed: int, stream: str) -> _Key:
    return _Key(seeds.unsigned(seed), zlib.crc32(stream.encode("utf-8")))


def generator(seed: int, stream: str, *counter: int) -> np.random.Generator:
    """Returns a Philox generator with the key (seed, stream).

    Args:
      counter: start of the generator's counter, at most three numbers.
    """
    start = np.array([0, *counter, *[0] * (3 - len(counter))], np.uint64)
    key = _key(seed, stream)
    return np.random.Generator(np.random.Philox(key, counter=start))  # pyright: ignore[reportArgumentType]
