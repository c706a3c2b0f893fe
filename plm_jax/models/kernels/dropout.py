"""Dropout masks: functions of indices, equal on all devices, meshes and kernels.

In masks of attention weights, a 32-bit word decides whether two weights of a query are dropped, with 16 bits for each
weight. The indices of the two keys differ only in bit 3. In the tiles of a GPU's matrix unit, one thread holds both
weights, whether keys are rows or columns of the tile. On TPUs, both weights are in the same lane and sublane of two
registers. Kernels therefore never move words between threads or lanes.
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
    """Draws a dropout mask: bool, True with probability 1 - rate, in the shape to which the indices broadcast.

    Each entry has a word of its own. `keep_weights` draws the masks of attention weights.

    Args:
      seed: two words, int32 or uint32, which differ between layers and steps.
      row: int32, index of the row in the whole microbatch.
      head: int32, index of the head among all heads; 0 for features.
      query: int32, position of the query in the row; 0 if all queries share a mask.
      key: int32, position of the key in the row, or index of the feature.
      rate: dropout rate, at least 0 and below 1.
    """
    of_query, of_key = word(seed[0], row, head, query), word(seed[1], row, head, key)
    # As signed numbers, words are uniform in [-2^31, 2^31).
    return meet(of_query, of_key) >= round(rate * 2**32) - 2**31


def keep_weights(seed, row, head, query, key, rate: float):
    """Draws a dropout mask of attention weights, with one word for two keys.

    The mask is True with probability 1 - `realized(rate)`. The arguments are those of `keep`.
    """
    of_query, of_key = word(seed[0], row, head, query), word(seed[1], row, head, key & ~PARTNER)
    return keeps(meet(of_query, of_key) * jnp.where(key & PARTNER, *FACTORS[::-1]), rate)


def realized(rate: float) -> float:
    """Returns the probability with which `keep_weights` drops a weight.

    This is the multiple of 2^-16 that is nearest to the rate, but below 1. Kernels divide the weights that remain by 1
    minus this probability, so that dropout does not change the expectation of a weight.
    """
    return min(round(rate * 2**16), 2**16 - 1) / 2**16


def word(seed, row, head, position):
    """Returns the int32 hash of a query or of a key, for `meet`.

    Args:
      seed: the first word of the seed for a query, the second word for a key.
      row, head: as in `keep`.
      position: int32, position of the query or the key in the row.
    """
    seed = seed if seed.dtype == jnp.int32 else jax.lax.bitcast_convert_type(seed, jnp.int32)
    return _mixed(_mixed(_mixed(seed ^ row) ^ head) ^ position)


def meet(of_query, of_key):
    """Combines the hash of a query and the hash of a key into the word of the pair.

    The upper bits of the word are the most random.
    """
    return _mixed(of_query + of_key, last=False)


def first_keys(start, index):
    """Returns, for each i in `index`, the i-th key position from `start` on whose bit 3 is 0.

    `start` is a multiple of 16, and i counts from 0.
    """
    return start + index + (index & -PARTNER)


def both(words):
    """Multiplies words by both `FACTORS`.

    Returns:
      A pair for `keeps`: the bits of the first key of each word, and the bits of the second key of each word.
    """
    # On TPUs a shift and a sum are faster than a product.
    return words, words + (words << 16)


def keeps(bits, rate: float):
    """Returns a mask, True for weights to keep.

    Args:
      bits: int32, random bits of each weight, as returned by the function `both`; only the upper 16 bits matter.
      rate: dropout rate.
    """
    return bits >= round(realized(rate) * 2**32) - 2**31


def _mixed(word, last: bool = True):
    """Mixes the bits of an int32 bijectively. Without the `last` step, the low bits are less random."""
    word = (word ^ jax.lax.shift_right_logical(word, 16)) * _FIRST
    word = (word ^ jax.lax.shift_right_logical(word, 15)) * _SECOND
    return word ^ jax.lax.shift_right_logical(word, 16) if last else word
