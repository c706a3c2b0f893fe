"""No positions."""

from dataclasses import dataclass
from typing import ClassVar

from plm_jax.models.positions.position import Position


@dataclass(frozen=True)
class NoPositions(Position):
    """No positions: the order of tokens is only visible through the causal mask."""

    kind: ClassVar[str] = "none"
    uses_absolute_positions = False
