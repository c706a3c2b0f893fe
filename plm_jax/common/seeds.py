"""Seeds of random numbers: integers of 64 bits with a sign, all of which count."""

from plm_jax.common.errors import UserError

SMALLEST, LARGEST = -(2**63), 2**63 - 1


def check(name: str, seed: int) -> None:
    """Rejects a seed of more than 64 bits.

    Args:
      name: the field or flag, for the message.

    Raises:
      UserError: the seed is out of range.
    """
    if not SMALLEST <= seed <= LARGEST:
        raise UserError(f"{name} is {seed}: give an integer from {SMALLEST} to {LARGEST} (64 bits)")


def unsigned(seed: int) -> int:
    """Returns the bits of a seed as a number from 0 to 2^64 - 1, equal to the seed where it is not negative.

    Raises:
      UserError: the seed is out of range.
    """
    check("seed", seed)
    return seed % 2**64
