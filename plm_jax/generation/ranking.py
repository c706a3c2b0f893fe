"""The largest of many."""

import jax
import jax.numpy as jnp

# Sorting is slow where the vocabulary is long; of a short one nothing is saved.
_BLOCK = 128


def top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """As `jax.lax.top_k` of x [..., V]: the k largest, in order, and their places; of equals the first comes first.

    The k largest lie within the k blocks of the largest maxima, so that only these blocks are sorted.
    """
    if x.shape[-1] <= 4 * _BLOCK * k:
        return jax.lax.top_k(x, k)
    blocks = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % _BLOCK)], constant_values=-jnp.inf)
    blocks = blocks.reshape(*x.shape[:-1], -1, _BLOCK)
    # In the order of their places, so that among equals the first still comes first.
    chosen = jnp.sort(jax.lax.top_k(blocks.max(-1), k)[1])
    candidates = jnp.take_along_axis(blocks, chosen[..., None], axis=-2)
    largest, at = jax.lax.top_k(candidates.reshape(*x.shape[:-1], -1), k)
    return largest, jnp.take_along_axis(chosen, at // _BLOCK, axis=-1) * _BLOCK + at % _BLOCK
