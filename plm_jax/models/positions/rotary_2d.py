"""ChatGLM-6B's positions: rotations by the position in the text and by the position within a blank."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax.numpy as jnp
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.positions.position import Position
from plm_jax.models.positions.rotary import Rotary


@dataclass(frozen=True)
class Rotary2D(Position):
    """ChatGLM-6B's rotary positions: the halves of each head are rotated by two different positions.

    The first half is rotated by the position in the text, the second half by the position within a blank. Both
    positions are defined in `BlockPositions`. Each half is rotated as `Rotary` rotates a head of this size.

    Attributes:
      theta: base of the frequencies, as in `Rotary`.
      length: number of tokens that the model is designed for; longer texts are accepted.
    """

    kind: ClassVar[str] = "rotary_2d"
    theta: Annotated[float, ranges.Range(0, 1e12, above=True)] = 10_000.0
    length: ranges.Length = 2048
    counts_blanks = True
    uses_absolute_positions = False

    @override
    def check(self, head_dim):
        if head_dim % 4:
            raise UserError(f"attention.head_dim is {head_dim}: set it to a multiple of 4 for rotary_2d")

    @override
    def rotation(self, head_dim, positions, block_positions):
        within = jnp.zeros_like(positions) if block_positions is None else block_positions
        of_text, of_blanks = (Rotary(self.theta).rotation(head_dim // 2, each, None) for each in (positions, within))

        def turn(x_BNLH, depth=0):
            first, second = jnp.split(x_BNLH, 2, axis=-1)
            return jnp.concatenate([of_text(first, depth), of_blanks(second, depth)], axis=-1)

        return turn
