"""Keys of random numbers."""

import zlib

import jax
import numpy as np

from plm_jax.common import seeds

# By `config.Train.prng` the name in JAX, and how often a key holds the two words of the seed.
_GENERATORS = {"threefry": ("threefry2x32", 1), "rbg": ("rbg", 2)}


def data(seed: int, prng: str = "threefry") -> np.ndarray:
    """Returns the words of a seed's key, uint32, the high one first; `jax.random.key` drops it without 64-bit types."""
    high, low = divmod(seeds.unsigned(seed), 2**32)
    _, repeats = _GENERATORS[prng]
    return np.array([high, low] * repeats, np.uint32)


def wrapped(words: jax.Array | np.ndarray, prng: str = "threefry") -> jax.Array:
    """Returns the key with these words, as `data` has them."""
    name, _ = _GENERATORS[prng]
    return jax.random.wrap_key_data(words, impl=name)


def from_seed(seed: int, prng: str = "threefry") -> jax.Array:
    """Returns the key of a seed."""
    return wrapped(data(seed, prng), prng)


def named_key(parent: jax.Array, name: str) -> jax.Array:
    """The key of `name` under `parent`."""
    return jax.random.fold_in(parent, zlib.crc32(name.encode()))
