"""Learned positions: one trained vector for each position."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.models.layers import look_up
from plm_jax.models.positions.position import Position, Table


@dataclass(frozen=True)
class LearnedPositions(Position):
    """Learned absolute positions: a trained table [offset + length, width], added to the token embeddings.

    Attributes:
      length: number of positions.
      init_std: standard deviation of the initial table.
      offset: row of the table for the first position; 2 in fairseq (Liu et al. 2019, Lewis et al. 2020).
      skips_padding: whether a bidirectional stack skips padding when it counts positions, as in fairseq (Liu et al.
        2019). Padding then uses row `offset` - 1 or, if `offset` is 0, row 0. Causal stacks without a cache always skip
        padding.
    """

    kind: ClassVar[str] = "learned"
    length: ranges.Length
    init_std: ranges.Scale = 0.02
    offset: ranges.LengthOrZero = 0
    skips_padding: bool = False

    @property
    @override
    def limit(self):
        return self.length

    @override
    def default_positions(self, length, mask):
        if mask is None or not self.skips_padding:
            return super().default_positions(length, mask)
        return jnp.maximum(jnp.cumsum(mask, axis=1) * mask - 1, -self.offset)

    @override
    def embedding_tables(self, width, initializer):
        """Returns `position_embedding` [offset + length, width]."""
        shape = self.offset + self.length, width
        return {"position_embedding": Table(shape, ("positions", "embed"), initializer.normal(self.init_std))}

    @override
    def embed(self, x, tables, positions, block_positions):
        return x + look_up(tables["position_embedding"], positions + self.offset, x.dtype, len(x))
