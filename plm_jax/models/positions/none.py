"""No positions."""

from dataclasses import dataclass
from typing import ClassVar

from plm_jax.models.positions.position import Position


@dataclass(frozen=True)
class NoPositions(Position):
    """No positions: only the causal mask tells the order of tokens."""

    kind: ClassVar[str] = "none"
    uses_absolute_positions = False
