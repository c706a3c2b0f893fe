"""No positions."""

from dataclasses import dataclass
from typing import ClassVar

from plm_jax.models.positions.position import Position


@dataclass(frozen=True)
class NoPositions(Position):
    """No positions: the order of tokens has an effect only through causal masks and sliding windows."""

    kind: ClassVar[str] = "none"
    uses_absolute_positions = False
