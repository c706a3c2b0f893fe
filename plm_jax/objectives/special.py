"""What an objective knows of the vocabulary."""

from dataclasses import dataclass

from plm_jax.common.special_ids import SpecialIds


@dataclass(frozen=True, kw_only=True)
class Special(SpecialIds):
    """Special ids of a vocabulary, None where it has none.

    Attributes:
      sentinels: in the order in which they are used.
      vocab_size: number of ids, sentinels included; random tokens are drawn from all of them.
    """

    sentinels: tuple[int, ...] = ()
    vocab_size: int = 0
