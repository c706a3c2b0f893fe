"""No positions."""

from dataclasses import dataclass
from typing import ClassVar

from plm_jax.models.positions.position import Position


@dataclass(frozen=True)
class NoPositions(Position):
    """Order reaches the model through the causal mask alone."""

    kind: ClassVar[str] = "none"
    tells_places = False
