"""Keys of random numbers."""

import zlib

import jax


def named_key(parent: jax.Array, name: str) -> jax.Array:
    """The key of `name` under `parent`."""
    return jax.random.fold_in(parent, zlib.crc32(name.encode()))
