"""Seeds of random numbers: integers of 64 bits with a sign, all of which count."""

from typing import Annotated

from plm_jax.common.ranges import Range

RANGE = Range(-(2**63), 2**63 - 1)
Seed = Annotated[int, RANGE]


def unsigned(seed: int) -> int:
    """Returns the bits of a seed as a number from 0 to 2^64 - 1, equal to the seed where it is not negative.

    Raises:
      UserError: the seed is out of range.
    """
    RANGE.check(seed, "seed")
    return seed % 2**64
