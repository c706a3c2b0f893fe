"""Keys for JAX's generators of random numbers."""

import zlib

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.common import seeds

# JAX's name for each `config.TrainConfig.prng`, and the number of times that a key repeats the two words of the seed.
_GENERATORS = {"threefry": ("threefry2x32", 1), "rbg": ("rbg", 2)}


def data(seed: int, prng: str = "threefry") -> np.ndarray:
    """Returns the words of a seed's key, uint32: the high word of the seed, then the low word.

    For `rbg`, both words are repeated. `jax.random.key` drops the high word unless 64-bit types are enabled.

    Args:
      prng: `threefry` or `rbg`.
    """
    high, low = divmod(seeds.unsigned(seed), 2**32)
    _, repeats = _GENERATORS[prng]
    return np.array([high, low] * repeats, np.uint32)


def wrapped(words: jax.typing.ArrayLike, prng: str = "threefry") -> jax.Array:
    """Returns the PRNG key that consists of these words, in the order that `data` returns."""
    name, _ = _GENERATORS[prng]
    return jax.random.wrap_key_data(jnp.asarray(words), impl=name)


def from_seed(seed: int, prng: str = "threefry") -> jax.Array:
    """Returns the key of a seed."""
    return wrapped(data(seed, prng), prng)


def named_key(parent: jax.Array, name: str) -> jax.Array:
    """Derives a key from a parent key and a name."""
    return jax.random.fold_in(parent, zlib.crc32(name.encode()))
