"""Dropout masks of attention weights: functions of indices, equal on all devices, meshes and kernels."""

import jax
import jax.numpy as jnp

# Multipliers of a 32-bit mixer with low bias (Wellons 2018, "Prospecting for hash functions": lowbias32), the second as
# a signed number: every kernel language has int32, which wraps around.
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B - 2**32


def keep(seed, row, head, query, key, rate: float):
    """Draws a mask of dropout: bool, True with probability 1 - rate, in the shape to which the indices broadcast.

    Args:
      seed: two words, int32 or uint32, of the layer in this step.
      row: int32, number of the row in the whole microbatch.
      head: int32, number of the head among all heads.
      query, key: int32, positions in the row; `query` is 0 if queries share a mask.
      rate: at least 0, below 1.
    """
    return meet(word(seed[0], row, head, query), word(seed[1], row, head, key), rate)


def word(seed, row, head, position):
    """Hashes a query's position with the first word of a seed, or a key's with the second, for `meet`; int32."""
    seed = seed if seed.dtype == jnp.int32 else jax.lax.bitcast_convert_type(seed, jnp.int32)
    return _mixed(_mixed(_mixed(seed ^ row) ^ head) ^ position)


def meet(of_query, of_key, rate: float):
    """Returns `keep` from the words of a query and a key."""
    # As signed numbers, words are uniform in [-2^31, 2^31).
    return _mixed(of_query + of_key, last=False) >= round(rate * 2**32) - 2**31


def _mixed(word, last: bool = True):
    """Mixes 32 bits bijectively so that each bit depends on all; the low bits need the `last` step."""
    word = (word ^ jax.lax.shift_right_logical(word, 16)) * _FIRST
    word = (word ^ jax.lax.shift_right_logical(word, 15)) * _SECOND
    return word ^ jax.lax.shift_right_logical(word, 16) if last else word
