"""What a position scheme is: how a transformer tells the places of its tokens.

Shapes: B batch, L length, D width of the tables of embeddings, N heads, G groups of keys and values, H head_dim, Q
queries, K keys.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Union

from plm_jax.common.lazy import lazy
from plm_jax.common.roles import Role

if TYPE_CHECKING:
    import jax

    from plm_jax.models.settings import AttentionConfig, TransformerConfig

jnp = lazy("jax.numpy")


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


class Position(Role):
    """The base of position schemes. One is a frozen dataclass of its fields, and those of these hooks that it needs.

    Hooks are pure functions of arrays, so JAX has their gradients, and each may be asked about any tile of a text.

    Attributes:
      limit: how many positions there are; None: any number.
      skips_padding: a bidirectional stack counts real tokens alone, as a causal one does.
      tells_places: a text reads otherwise where it stands further back in a row; not where distances alone count.
      counts_blanks: places within a blank are counted apart, and all of a blank has the place of its mask in the text.
    """

    limit: int | None = None
    skips_padding: bool = False
    tells_places: bool = True
    counts_blanks: bool = False

    def check(self, attention: "AttentionConfig") -> None:
        """Raises `UserError` for an attention that the scheme does not work with."""

    def places(self, length: int, mask: Union["jax.Array", None]) -> "jax.Array":
        """Positions int32 [B or 1, L] of a bidirectional stack's tokens under a mask [B, L], 1 for real ones."""
        del mask
        return jnp.arange(length)[None]

    def embedding_tables(self, model: "TransformerConfig") -> dict[str, Table]:
        """The tables that `embed` takes, by the names of their parameters; a text-to-text model has them twice."""
        del model
        return {}

    def embed(
        self,
        x: "jax.Array",
        tables: dict[str, "jax.Array"],
        positions: "jax.Array",
        block_positions: Union["jax.Array", None],
    ) -> "jax.Array":
        """Embeddings [B, L, D] with what tells their places added.

        Args:
          x: [B, L, D].
          tables: those of `embedding_tables`.
          positions: int32 [B or 1, L].
          block_positions: int32 [B, L], places within blanks, from 1 on, 0 outside; None: 0 everywhere.
        """
        del tables, positions, block_positions
        return x

    def rotation(
        self, head_dim: int, positions: "jax.Array", block_positions: Union["jax.Array", None]
    ) -> Callable[["jax.Array"], "jax.Array"] | None:
        """What turns queries and keys [B, N or G, L, H] at these positions, as in `embed`; None: nothing does."""
        del head_dim, positions, block_positions
        return None

    def score_tables(self, model: "TransformerConfig") -> dict[str, Table]:
        """The tables of `distance_bias` and `bias`, by the names of their parameters; a stack's layers share them."""
        del model
        return {}

    def distance_bias(
        self, tables: dict[str, "jax.Array"], distances: "jax.Array", heads: int, causal: bool
    ) -> Union["jax.Array", None]:
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
        del tables, distances, heads, causal
        return None

    def bias(
        self,
        tables: dict[str, "jax.Array"],
        query_places: "jax.Array",
        key_places: "jax.Array",
        heads: int,
        causal: bool,
    ) -> Union["jax.Array", Callable[["jax.Array", "jax.Array"], "jax.Array"], None]:
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
        del tables, query_places, key_places, heads, causal
        return None
