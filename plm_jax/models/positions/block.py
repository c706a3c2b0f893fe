"""GLM's positions: trained vectors for the position in the text and for the position within a blank."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.models.layers import look_up
from plm_jax.models.positions.position import Position, Table


@dataclass(frozen=True)
class BlockPositions(Position):
    """GLM's learned positions: two trained tables [length + 1, width], added to the embeddings (Du et al. 2022).

    The first table is indexed by the position in the text; all tokens of a blank have the position of the blank's mask
    token. The second table is indexed by the position within a blank. This position counts from 1, and is 0 outside of
    blanks.

    Attributes:
      length: number of positions of each kind.
      init_std: standard deviation of the initial tables.
    """

    kind: ClassVar[str] = "block"
    length: ranges.Length
    init_std: ranges.Scale = 0.02
    counts_blanks = True

    @property
    @override
    def limit(self):
        """Number of positions of each kind."""
        return self.length

    @override
    def embedding_tables(self, width, initializer):
        """Returns `position_embedding` and `block_position_embedding`, both [length + 1, width]."""
        init = initializer.normal(self.init_std)
        table = Table((self.length + 1, width), ("positions", "embed"), init)
        return {"position_embedding": table, "block_position_embedding": table}

    @override
    def embed(self, x, tables, positions, block_positions):
        within = jnp.zeros(x.shape[:-1], jnp.int32) if block_positions is None else block_positions
        x = x + look_up(tables["position_embedding"], positions, x.dtype, len(x))
        return x + look_up(tables["block_position_embedding"], within, x.dtype)
