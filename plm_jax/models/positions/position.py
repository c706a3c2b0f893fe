"""What a position scheme is: how a transformer tells the places of its tokens.

Shapes: B batch, L length, D width of the tables of embeddings, N heads, G groups of keys and values, H head_dim, Q
queries, K keys.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Shaped

from plm_jax.common.roles import Role
from plm_jax.models.initializers import Initialization
from plm_jax.models.partitioning import partitioned


class Table(NamedTuple):
    """A parameter that a scheme has.

    Attributes:
      shape: of the parameter.
      axes: the logical name of each dimension; None: it is never divided.
      init: gives its first values, as `flax.linen.initializers` do.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    init: Callable

    def declare(self, module: nn.Module, name: str) -> jax.Array:
        """Returns the table as a parameter of a module."""
        return module.param(name, partitioned(self.init, self.axes), self.shape)


class Position(Role):
    """The base of position schemes. One is a frozen dataclass of its fields, and those of these hooks that it needs.

    Hooks are pure functions of arrays, so JAX has their gradients, and each may be asked about any tile of a text.

    Attributes:
      limit: how many positions there are; None: any number.
      skips_padding: a bidirectional stack counts real tokens alone, as a causal one does.
      uses_absolute_positions: whether outputs depend on absolute positions, not only on distances between tokens.
      counts_blanks: places within a blank are counted apart, and all of a blank has the place of its mask in the text.
    """

    limit: int | None = None
    skips_padding: bool = False
    uses_absolute_positions: bool = True
    counts_blanks: bool = False

    def check(self, head_dim: int) -> None:
        """Raises `UserError` for a `head_dim` that the scheme does not work with."""

    def places(self, length: int, mask: Shaped[Any, "batch length"] | None) -> Integer[Array, "rows length"]:
        """Positions int32 [B or 1, L] of a bidirectional stack's tokens under a mask [B, L], 1 for real ones."""
        return jnp.arange(length)[None]

    def embedding_tables(self, width: int, initializer: Initialization) -> dict[str, Table]:
        """Returns the tables [rows, width] that `embed` reads, by the names of their parameters.

        A text-to-text model has them twice.
        """
        return {}

    def embed(
        self,
        x: Float[Array, "batch length dim"],
        tables: dict[str, Any],
        positions: Integer[Any, "rows length"],
        block_positions: Integer[Any, "batch length"] | None,
    ) -> Float[Array, "batch length dim"]:
        """Embeddings [B, L, D] with what tells their places added.

        Args:
          x: [B, L, D].
          tables: those of `embedding_tables`.
          positions: int32 [B or 1, L].
          block_positions: int32 [B, L], places within blanks, from 1 on, 0 outside; None: 0 everywhere.
        """
        return x

    def rotation(
        self, head_dim: int, positions: jax.Array, block_positions: jax.Array | None
    ) -> Callable[[jax.Array], jax.Array] | None:
        """What turns queries and keys [B, N or G, L, H] at these positions, as in `embed`; None: nothing does."""
        return None

    def score_tables(self, heads: int, head_dim: int, initializer: Initialization) -> dict[str, Table]:
        """The tables of `distance_bias` and `bias`, by the names of their parameters; a stack's layers share them."""
        return {}

    def distance_bias(
        self, tables: dict[str, Any], distances: Integer[Array, " distances"], heads: int, causal: bool
    ) -> Float[Array, "heads distances"] | None:
        """What is added to a score by how far its key is behind its query, before masks: once for all layers.

        Flash kernels add it without holding it for all scores.

        Args:
          tables: those of `score_tables`.
          distances: int32 [R], the key's place less the query's, of any order.
          heads: N.
          causal: whether no query sees a key behind it.

        Returns:
          float32 [N, R]; None: nothing.
        """
        return None

    def bias(
        self,
        tables: dict[str, jax.Array],
        query_places: jax.Array,
        key_places: jax.Array,
        heads: int,
        causal: bool,
    ) -> jax.Array | Callable[[jax.Array, jax.Array], jax.Array] | None:
        """What is added to scores by more than distances, before masks: once for all layers. XLA alone computes it.

        Args:
          tables: those of `score_tables`.
          query_places: int32 [Q], where in the row (in a cache: in its slots) they stand.
          key_places: int32 [K].
          heads: N.
          causal: whether no query sees a key behind it.

        Returns:
          float32 [1, N, Q, K]; or, where it depends on the text, a function from each layer's queries [B, N, Q, H],
          turned and scaled, and keys [B, G, K, H] to [B, N, Q, K]; None: nothing.
        """
        return None
