"""MinHash (Broder 1997): short signatures of sets.

The expected share of positions in which two signatures agree is the Jaccard similarity of the sets.
"""

import re
import zlib

import numpy as np

from plm_jax.common import seeds

_WORDS = re.compile(r"\w+")
# Constants of SplitMix64 (Steele, Lea and Flood 2014), which maps any 64 bits to bits that look random.
_GAMMA, _MIX = np.uint64(0x9E3779B97F4A7C15), (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class Hashes:
    """MinHash signatures of texts in lower case.

    Args:
      bands: number of bands of a signature.
      rows: number of hashes in a band.
      words: number of words in an n-gram.
      seed: seed of the hash functions.
    """

    def __init__(self, bands: int, rows: int, words: int, seed: int):
        self._bands, self._rows, self._words = bands, rows, words
        rng = np.random.default_rng(seeds.unsigned(seed))
        # Upper 32 bits of a x + b modulo 2^64, with odd a.
        self._a = rng.integers(2**63, size=(bands * rows, 1), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self._b = rng.integers(2**64, size=(bands * rows, 1), dtype=np.uint64)

    def shingles(self, text: str) -> np.ndarray:
        """Returns the sorted hashes of the distinct word n-grams, uint64.

        A text with fewer words than an n-gram is a single n-gram.
        """
        words = [zlib.crc32(word.encode("utf-8")) for word in _WORDS.findall(text.lower())]
        hashes = np.array(words or [0], np.uint64)
        num_shingles = max(len(hashes) - self._words + 1, 1)
        mixed = np.zeros(num_shingles, np.uint64)
        for i in range(min(self._words, len(hashes))):
            mixed = mix(mixed + hashes[i : i + num_shingles])
        return np.unique(mixed)

    def signature(self, text: str) -> np.ndarray:
        """Returns the minimum of each hash function over the n-grams, uint32 [bands, rows]."""
        shingles = self.shingles(text)
        minima = np.concatenate(
            # A few hashes at a time, so that long texts need little memory.
            [
                np.min((self._a[i : i + 16] * shingles + self._b[i : i + 16]) >> np.uint64(32), axis=1)
                for i in range(0, len(self._a), 16)
            ]
        )
        return minima.astype(np.uint32).reshape(self._bands, self._rows)

    def bands(self, text: str) -> list[bytes]:
        """Returns a digest of 8 bytes per band. Texts with the same hashes in a band have the same digest."""
        rows = self.signature(text)
        mixed = mix(
            np.arange(self._bands, dtype=np.uint64)
        )  # Far enough apart that sums with rows of different bands differ.
        for row in rows.T:
            mixed = mix(mixed + row)
        return [value.tobytes() for value in mixed.astype("<u8")]


def mix(x: np.ndarray) -> np.ndarray:
    """Returns SplitMix64 of each element of a uint64 array."""
    x = x + _GAMMA
    x = (x ^ (x >> np.uint64(30))) * _MIX[0]
    x = (x ^ (x >> np.uint64(27))) * _MIX[1]
    return x ^ (x >> np.uint64(31))
