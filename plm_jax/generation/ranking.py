"""Top-k selection in long rows."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

# Size of a block. Selecting blocks first only pays off for large vocabularies.
_BLOCK = 128


def top_k(x: Float[Array, "*rows vocab"], k: int) -> tuple[Float[Array, "*rows {k}"], Integer[Array, "*rows {k}"]]:
    """Returns a pair: the k largest values in descending order, and their indices. Ties are in index order.

    The result is the same as from `jax.lax.top_k`. In a long row, only the k blocks with the largest maxima are sorted,
    because they contain the k largest values.
    """
    if x.shape[-1] <= 4 * _BLOCK * k:
        largest, index = jax.lax.top_k(x, k)
        return largest, index
    blocks = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % _BLOCK)], constant_values=-jnp.inf)
    blocks = blocks.reshape(*x.shape[:-1], -1, _BLOCK)
    # In index order, so that equal values keep it.
    chosen = jnp.sort(jax.lax.top_k(blocks.max(-1), k)[1])
    candidates = jnp.take_along_axis(blocks, chosen[..., None], axis=-2)
    largest, index = jax.lax.top_k(candidates.reshape(*x.shape[:-1], -1), k)
    return largest, jnp.take_along_axis(chosen, index // _BLOCK, axis=-1) * _BLOCK + index % _BLOCK
