"""Seeds of random numbers: signed 64-bit integers, all bits of which are used."""

from typing import Annotated

from plm_jax.common.ranges import Range

RANGE = Range(-(2**63), 2**63 - 1)
Seed = Annotated[int, RANGE]


def unsigned(seed: int) -> int:
    """Returns the 64 bits of a seed as an unsigned integer; seeds that are not negative stay unchanged.

    Raises:
      UserError: the seed is out of range.
    """
    RANGE.check(seed, "seed")
    return seed % 2**64
