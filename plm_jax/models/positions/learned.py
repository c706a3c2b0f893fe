"""Learned positions: a trained vector for each."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from plm_jax.common import ranges
from plm_jax.models.layers import look_up
from plm_jax.models.positions.position import Position, Table


@dataclass(frozen=True)
class LearnedPositions(Position):
    """Learned absolute positions: a trained table [offset + length, embed], added to the token embeddings.

    Attributes:
      length: how many positions there are.
      offset: rows before the first position's; fairseq's tables have two (Liu et al. 2019, Lewis et al. 2020).
      skips_padding: a bidirectional stack counts real tokens alone, as a causal one does; padding takes the row before
        the first position's where there is one (Liu et al. 2019, fairseq).
    """

    kind: ClassVar[str] = "learned"
    length: ranges.Length
    init_std: ranges.Scale = 0.02
    offset: ranges.LengthOrZero = 0
    skips_padding: bool = False

    @property
    def limit(self):
        """As many as the table has rows for."""
        return self.length

    def places(self, length, mask):
        """The slots, or as `skips_padding` says."""
        if mask is None or not self.skips_padding:
            return super().places(length, mask)
        return jnp.maximum(jnp.cumsum(mask, axis=1) * mask - 1, -self.offset)

    def embedding_tables(self, width, initializer):
        """`position_embedding` [offset + length, D]."""
        shape = self.offset + self.length, width
        return {"position_embedding": Table(shape, ("positions", "embed"), initializer.normal(self.init_std))}

    def embed(self, x, tables, positions, block_positions):
        """The vectors of the positions are added."""
        return x + look_up(tables["position_embedding"], positions + self.offset, x.dtype, len(x))
