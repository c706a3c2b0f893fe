"""Dropout masks: functions of indices, equal on all devices, meshes and kernels.

A word of 32 bits serves two attention weights, 16 bits each: those of keys whose numbers differ only in bit 3. In tiles
of a GPU's matrix unit one thread has both, whether keys are rows or columns; on TPUs they have the same lane and
sublane of two registers. No kernel moves words between threads or lanes.
"""

import jax
import jax.numpy as jnp

# Multipliers of a 32-bit mixer with low bias (Wellons 2018, "Prospecting for hash functions": lowbias32), the second as
# a signed number: every kernel language has int32, which wraps around.
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B - 2**32
# Difference of the numbers of two keys that share a word.
PARTNER = 8
# Factors of a word. The upper half of a product has the bits of the first key, whose bit 3 is 0, or of the second: the
# word's upper half, or the sum of both halves.
FACTORS = 1, 2**16 + 1


def keep(seed, row, head, query, key, rate: float):
    """Draws a mask of dropout: bool, True with probability 1 - rate, in the shape to which the indices broadcast.

    Args:
      seed: two words, int32 or uint32, of the layer in this step.
      row: int32, number of the row in the whole microbatch.
      head: int32, number of the head among all heads.
      query, key: int32, positions in the row; `query` is 0 if queries share a mask.
      rate: at least 0, below 1.
    """
    of_query, of_key = word(seed[0], row, head, query), word(seed[1], row, head, key)
    # As signed numbers, words are uniform in [-2^31, 2^31).
    return meet(of_query, of_key) >= round(rate * 2**32) - 2**31


def keep_weights(seed, row, head, query, key, rate: float):
    """Draws a mask of dropout of attention weights, with one word for two keys; arguments as `keep`.

    The mask is True with probability 1 - `realized(rate)`.
    """
    of_query, of_key = word(seed[0], row, head, query), word(seed[1], row, head, key & ~PARTNER)
    return keeps(meet(of_query, of_key) * jnp.where(key & PARTNER, *FACTORS[::-1]), rate)


def realized(rate: float) -> float:
    """Returns the probability with which `keep_weights` drops: the multiple of 2^-16 below 1 nearest to the rate.

    Weights are divided by 1 minus this probability, so that dropout does not change their expectation.
    """
    return min(round(rate * 2**16), 2**16 - 1) / 2**16


def word(seed, row, head, position):
    """Returns the int32 hash of a query or of a key, for `meet`.

    Args:
      seed: one of the two words of the seed: the first for a query, the second for a key.
      row, head: as for `keep`.
      position: int32, position of the query or the key in the row.
    """
    seed = seed if seed.dtype == jnp.int32 else jax.lax.bitcast_convert_type(seed, jnp.int32)
    return _mixed(_mixed(_mixed(seed ^ row) ^ head) ^ position)


def meet(of_query, of_key):
    """Returns the word of a query and a key from those of each; its upper bits are the most random."""
    return _mixed(of_query + of_key, last=False)


def first_keys(start, index):
    """Returns the numbers of keys whose bit 3 is 0, by their index among these, where `start` is a multiple of 16."""
    return start + index + (index & -PARTNER)


def both(words):
    """Returns the bits of the first and of the second key of words, their products with `FACTORS`, for `keeps`."""
    # On TPUs a shift and a sum are faster than a product.
    return words, words + (words << 16)


def keeps(bits, rate: float):
    """Returns the mask of weights with these bits, the upper half of int32; the lower half does not matter."""
    return bits >= round(realized(rate) * 2**32) - 2**31


def _mixed(word, last: bool = True):
    """Mixes 32 bits bijectively so that each bit depends on all; the low bits need the `last` step."""
    word = (word ^ jax.lax.shift_right_logical(word, 16)) * _FIRST
    word = (word ^ jax.lax.shift_right_logical(word, 15)) * _SECOND
    return word ^ jax.lax.shift_right_logical(word, 16) if last else word
