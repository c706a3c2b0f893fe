"""The interface of position schemes of transformers.

Shapes: B batch, L length, D width of the embedding tables, N heads, G groups of keys and values, H head_dim, Q queries,
K keys.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Shaped

from plm_jax.common.roles import Role
from plm_jax.models.initializers import Initialization
from plm_jax.models.kernels.context import RelativeScores
from plm_jax.models.partitioning import partitioned


class Table(NamedTuple):
    """A parameter of a position scheme.

    Attributes:
      shape: shape of the parameter.
      axes: logical name of each dimension; None for a dimension that is never sharded.
      init: initializer, as in `flax.linen.initializers`.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    init: Callable

    def declare(self, module: nn.Module, name: str) -> jax.Array:
        """Returns the table as a parameter of a module."""
        return module.param(name, partitioned(self.init, self.axes), self.shape)


@dataclass(frozen=True)
class SelfAttentionLayer:
    """A self-attention layer, as seen by `Position.layer_bias`.

    Attributes:
      depth: number of the layer, from 0; an int or int32 [].
      tables: those of `Position.layer_tables`, of this layer.
      shared_tables: those of `Position.score_tables`, which all layers of the stack share.
      project: applies the layer's own projection `query`, `key` or `value` to vectors: (name, [R, D]) → [N or G, R, H].
      drop: applies dropout at the rate of the sub-layers to vectors [R, D].
      scale: factor of the scores; queries are already multiplied by it.
      query_positions: int32 [B or 1, Q].
      key_positions: int32 [B or 1, K].
      arrays: arrays that the model passes to the layer, as in `Context.arrays`.
    """

    depth: Integer[Array, ""] | int
    tables: Mapping[str, Any]
    shared_tables: Mapping[str, Any]
    project: Callable[[str, jax.Array], jax.Array]
    drop: Callable[[jax.Array], jax.Array]
    scale: jax.Array | float
    query_positions: jax.Array
    key_positions: jax.Array
    arrays: Mapping[str, Any]


class Position(Role):
    """The base of position schemes: a frozen dataclass with the hooks that a scheme needs.

    Hooks are pure functions of arrays, differentiated by JAX, and may be called for any tile of a text.

    Attributes:
      limit: maximum number of positions; None for any number.
      skips_padding: whether a bidirectional stack counts non-padding tokens only, like a causal one.
      uses_absolute_positions: whether outputs depend on absolute positions, not only on distances between tokens.
      counts_blanks: whether a token has two positions, one in the text and one within its blank; in the text, all
        tokens of a blank then have the position of its mask.
      score_terms: number of products that are summed to a score; without `attention.score_scale`, scores are divided by
        the square root of this number times head_dim.
      supports_kv_heads: whether heads may share keys and values (`attention.kv_heads`).
    """

    limit: int | None = None
    skips_padding: bool = False
    uses_absolute_positions: bool = True
    counts_blanks: bool = False
    score_terms: int = 1
    supports_kv_heads: bool = True

    def check(self, head_dim: int) -> None:
        """Raises `UserError` for a `head_dim` that the scheme does not support."""

    def default_positions(self, length: int, mask: Shaped[Any, "batch length"] | None) -> Integer[Array, "rows length"]:
        """Returns positions int32 [B or 1, L] for a bidirectional stack; `mask` [B, L] is 0 at padding."""
        return jnp.arange(length)[None]

    def embedding_tables(self, width: int, initializer: Initialization) -> dict[str, Table]:
        """Returns the tables [rows, width] that `embed` reads, by parameter name; an encoder-decoder has them twice."""
        return {}

    def embed(
        self,
        x: Float[Array, "batch length dim"],
        tables: dict[str, Any],
        positions: Integer[Any, "rows length"],
        block_positions: Integer[Any, "batch length"] | None,
    ) -> Float[Array, "batch length dim"]:
        """Returns the embeddings [B, L, D] with position embeddings added.

        Args:
          x: [B, L, D].
          tables: those of `embedding_tables`.
          positions: int32 [B or 1, L].
          block_positions: int32 [B, L], positions within blanks from 1, 0 outside; None: 0 everywhere.
        """
        return x

    def rotation(
        self, head_dim: int, positions: jax.Array, block_positions: jax.Array | None
    ) -> Callable[[jax.Array, Integer[Array, ""] | int], jax.Array] | None:
        """Returns the rotation of queries or keys at these positions, or None if there is none.

        The rotation is a function of queries or keys [B, N or G, L, H] and of the number of the layer, from 0.
        """
        return None

    def score_tables(self, width: int, heads: int, head_dim: int, initializer: Initialization) -> dict[str, Table]:
        """Returns the tables for biases of scores, which all layers of a stack share, by parameter name.

        `width` is the model's, D.
        """
        return {}

    def distance_bias(
        self, tables: dict[str, Any], distances: Integer[Array, " distances"], heads: int, causal: bool
    ) -> Float[Array, "heads distances"] | None:
        """Returns the bias of scores by the distance from query to key, before masks; computed once for all layers.

        Flash kernels add it without expanding it to all scores.

        Args:
          tables: those of `score_tables`.
          distances: int32 [R], position of the key minus that of the query, in any order.
          heads: N.
          causal: whether queries attend to no later keys.

        Returns:
          float32 [N, R], or None without a bias.
        """
        return None

    def bias(
        self,
        tables: dict[str, jax.Array],
        query_positions: jax.Array,
        key_positions: jax.Array,
        heads: int,
        causal: bool,
    ) -> jax.Array | None:
        """Returns a bias that is added to attention scores before masking and may depend on more than distances.

        Only the XLA kernel supports it. This method is called once for all layers.

        Args:
          tables: those of `score_tables`.
          query_positions: int32 [Q], positions in the row, or in the slots of a cache.
          key_positions: int32 [K].
          heads: N.
          causal: whether queries attend to no later keys.

        Returns:
          float32 [1, N, Q, K], or None if there is no bias.
        """
        return None

    def layer_tables(self, width: int, heads: int, head_dim: int, initializer: Initialization) -> dict[str, Table]:
        """Returns the tables that each layer has of its own, by parameter name; arguments as `score_tables`.

        They are not sharded by heads.
        """
        return {}

    def layer_bias(
        self,
        layer: SelfAttentionLayer,
        query: Float[Array, "batch heads queries head_dim"],
        key: Float[Array, "batch groups keys head_dim"],
    ) -> Float[Array, "batch heads queries keys"] | None:
        """Returns a bias of scores that depends on the layer and on its queries and keys, before masks.

        Only the XLA kernel supports it, unless the scheme also has `relative_scores`. Each layer calls this method.

        Args:
          layer: the layer.
          query: rotated queries, multiplied by the scale of the scores, [B, N, Q, H].
          key: rotated keys, [B, G, K, H].

        Returns:
          float32 [B or 1, N, Q, K], or None without a bias.
        """
        return None

    def macs(self, queries: int, keys: int, width: int) -> int:
        """Returns the multiply-accumulates of `layer_bias` for a row in a layer whose heads have this width together.

        Products that the rows of a batch share are not counted.
        """
        return 0

    def relative_scores(
        self,
        layer: SelfAttentionLayer,
        query: Float[Array, "batch heads queries head_dim"],
        key: Float[Array, "batch groups keys head_dim"],
    ) -> tuple[jax.Array, RelativeScores | None]:
        """Returns the terms of `layer_bias` in a form that flash kernels do not expand to all scores.

        A scheme that defines this method also defines `layer_bias`. Flash kernels call it if queries and keys are
        numbered from the same token, as in the stack of an encoder, or if `Context.contiguous` is set. Arguments as
        `layer_bias`.

        Returns:
          The queries [B, N, Q, H], to which the scheme may add a bias, and the terms; None: no terms.
        """
        return query, None

    @property
    def max_length(self) -> int | None:
        """Number of tokens in a row that the scheme is designed for; None if unknown."""
        return getattr(self, "length", None)

    @property
    def has_layer_bias(self) -> bool:
        """Whether the scheme defines `layer_bias`."""
        return type(self).layer_bias is not Position.layer_bias

    def expands_scores(self, in_order: bool) -> bool:
        """Whether `layer_bias` must be expanded to all scores.

        This is so if the scheme has no `relative_scores`, or if the positions are not in order.
        """
        return self.has_layer_bias and not (in_order and type(self).relative_scores is not Position.relative_scores)
