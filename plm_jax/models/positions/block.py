"""GLM's positions: a trained vector for the place in the text, and one for that within a blank."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from plm_jax.common import ranges
from plm_jax.models.layers import look_up
from plm_jax.models.positions.position import Position, Table


@dataclass(frozen=True)
class BlockPositions(Position):
    """GLM's learned positions: two trained tables [length + 1, embed], added to the embeddings (Du et al. 2022).

    One is for the place in the text, where all of a blank has that of its mask, the other for the place within the
    blank, from 1 on, 0 outside of blanks.
    """

    kind: ClassVar[str] = "block"
    length: ranges.Length
    init_std: ranges.Scale = 0.02
    counts_blanks = True

    @property
    def limit(self):
        """As many as the tables have rows for; of either kind."""
        return self.length

    def embedding_tables(self, width, initializer):
        """`position_embedding` and `block_position_embedding`, both [length + 1, D]."""
        init = initializer.normal(self.init_std)
        table = Table((self.length + 1, width), ("positions", "embed"), init)
        return {"position_embedding": table, "block_position_embedding": table}

    def embed(self, x, tables, positions, block_positions):
        """The vectors of both places are added."""
        within = jnp.zeros(x.shape[:-1], jnp.int32) if block_positions is None else block_positions
        x = x + look_up(tables["position_embedding"], positions, x.dtype, len(x))
        return x + look_up(tables["block_position_embedding"], within, x.dtype)
