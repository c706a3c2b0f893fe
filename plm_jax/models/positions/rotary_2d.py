"""ChatGLM-6B's positions: one half of each head turns by the place in the text, the other by that within a blank."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax.numpy as jnp

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.positions.position import Position
from plm_jax.models.positions.rotary import Rotary


@dataclass(frozen=True)
class Rotary2D(Position):
    """Rotary positions in two halves of each head: the place in the text, and that within a blank (ChatGLM-6B).

    Both as a half-split `Rotary` of that many dimensions; for the two places see `BlockPositions`.

    Attributes:
      length: tokens that the model is meant for; nothing refuses more.
    """

    kind: ClassVar[str] = "rotary_2d"
    theta: Annotated[float, ranges.Range(0, 1e12, above=True)] = 10_000.0
    length: ranges.Length = 2048
    counts_blanks = True

    def check(self, head_dim):
        """Heads must have halves of pairs."""
        if head_dim % 4:
            raise UserError(f"attention.head_dim is {head_dim}: rotary_2d takes a multiple of 4")

    def rotation(self, head_dim, positions, block_positions):
        """Turns the halves of each head."""
        within = jnp.zeros_like(positions) if block_positions is None else block_positions
        of_text, of_blanks = (
            Rotary(self.theta).rotation(head_dim // 2, places, None) for places in (positions, within)
        )

        def turn(x_BNLH):
            first, second = jnp.split(x_BNLH, 2, axis=-1)
            return jnp.concatenate([of_text(first), of_blanks(second)], axis=-1)

        return turn
