"""No positions."""

from dataclasses import dataclass
from typing import ClassVar

from plm_jax.models.positions.position import Position


@dataclass(frozen=True)
class NoPositions(Position):
    """No positions: only the causal mask makes the order of tokens visible."""

    kind: ClassVar[str] = "none"
    uses_absolute_positions = False
