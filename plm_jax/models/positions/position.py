"""The interface of position schemes of transformers.

Shapes: B batch, L length, D width of the model (in `embed`, width of the embedding tables), N heads, G groups of keys
and values, H head_dim, Q queries, K keys.
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
        """Declares the table as a parameter of a module, and returns the parameter."""
        return module.param(name, partitioned(self.init, self.axes), self.shape)


@dataclass(frozen=True)
class SelfAttentionLayer:
    """Data and functions of a self-attention layer, for `Position.layer_bias` and `Position.relative_scores`.

    R is any number of vectors.

    Attributes:
      depth: index of the layer, from 0; an int or int32 [].
      tables: the layer's own tables, from `Position.layer_tables`.
      shared_tables: the tables that all layers of the stack share, from `Position.score_tables`.
      project: function (name, [R, D]) → [N or G, R, H] that applies the layer's projection `query`, `key` or `value` to
        vectors.
      drop: function that applies dropout to vectors [R, D], with the rate `dropout.residual` of the model.
      scale: factor of the scores. The queries that a scheme receives are already multiplied by this factor.
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
    """The base class of position schemes: a frozen dataclass with the hooks that a scheme needs.

    Hooks are pure functions of arrays, which JAX differentiates. A hook may be called for any part of a text.

    Attributes:
      limit: maximum number of positions; None: no maximum.
      skips_padding: whether a bidirectional stack numbers only the non-padding tokens, as a causal stack does.
      uses_absolute_positions: whether positions are treated as absolute. If so, configs that pack several examples of
        an encoder-decoder into one row are rejected. May be False if outputs depend only on distances between tokens.
      counts_blanks: whether a token has two positions, one in the text and one within its blank. In the text, all
        tokens of a blank then have the position of the blank's mask token.
      score_terms: number of products whose sum is a score. Without `attention.score_scale`, scores are divided by
        sqrt(score_terms · head_dim).
      supports_kv_heads: whether several heads may share keys and values (`attention.kv_heads`).
    """

    limit: int | None = None
    skips_padding: bool = False
    uses_absolute_positions: bool = True
    counts_blanks: bool = False
    score_terms: int = 1
    supports_kv_heads: bool = True

    def check(self, head_dim: int) -> None:
        """Raises a `UserError` if the scheme does not support `head_dim`; by default, accepts any `head_dim`."""

    def default_positions(self, length: int, mask: Shaped[Any, "batch length"] | None) -> Integer[Array, "rows length"]:
        """Returns the positions of the tokens in a bidirectional stack, int32 [B or 1, L].

        `mask` [B, L] is 0 at padding; None: no padding.
        """
        return jnp.arange(length)[None]

    def embedding_tables(self, width: int, initializer: Initialization) -> dict[str, Table]:
        """Returns the tables [rows, width] that `embed` reads, by parameter name.

        In an encoder-decoder, the encoder and the decoder have separate copies of these tables, unless they are tied.
        """
        return {}

    def embed(
        self,
        x: Float[Array, "batch length dim"],
        tables: dict[str, Any],
        positions: Integer[Any, "rows length"],
        block_positions: Integer[Any, "batch length"] | None,
    ) -> Float[Array, "batch length dim"]:
        """Returns the embeddings [B, L, D] with position embeddings added. The default adds nothing.

        Args:
          x: [B, L, D].
          tables: the tables of `embedding_tables`.
          positions: int32 [B or 1, L].
          block_positions: int32 [B, L], positions within blanks, which count from 1; 0 outside of blanks. None: 0
            everywhere.
        """
        return x

    def rotation(
        self, head_dim: int, positions: jax.Array, block_positions: jax.Array | None
    ) -> Callable[[jax.Array, Integer[Array, ""] | int], jax.Array] | None:
        """Returns a function that rotates queries or keys at these positions, or None if the scheme does not rotate.

        The function has two arguments: queries or keys [B, N or G, L, H], and the index of the layer, from 0.
        `positions` and `block_positions` are the same as for `embed`.
        """
        return None

    def score_tables(self, width: int, heads: int, head_dim: int, initializer: Initialization) -> dict[str, Table]:
        """Returns the tables that `distance_bias`, `bias` and layers read, by parameter name.

        All layers of a stack share these tables. `width` is the width of the model.
        """
        return {}

    def distance_bias(
        self, tables: dict[str, Any], distances: Integer[Array, " distances"], heads: int, causal: bool
    ) -> Float[Array, "heads distances"] | None:
        """Returns a bias of scores for each distance from query to key. The bias is added before masks are applied.

        Flash kernels add this bias without expanding it to all scores. This method is called once for all layers.

        Args:
          tables: the tables of `score_tables`.
          distances: int32 [R], position of the key minus position of the query; in any order.
          heads: N.
          causal: whether each query attends only to keys up to its own position.

        Returns:
          float32 [N, R], or None if there is no bias.
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
        """Returns a bias of scores that may depend on absolute positions. The bias is added before masks are applied.

        Only the XLA kernel supports this bias. This method is called once for all layers.

        Args:
          tables: the tables of `score_tables`.
          query_positions: int32 [Q], positions of the queries in the row.
          key_positions: int32 [K], positions of the keys in the row or, with a cache, of its slots.
          heads: N.
          causal: whether each query attends only to keys up to its own position.

        Returns:
          float32 [1, N, Q, K], or None if there is no bias.
        """
        return None

    def layer_tables(self, width: int, heads: int, head_dim: int, initializer: Initialization) -> dict[str, Table]:
        """Returns the tables of a layer, by parameter name.

        Layers have separate tables, unless they share all parameters.

        The arguments are those of `score_tables`. These tables are not sharded by heads, even if an axis is "heads".
        """
        return {}

    def layer_bias(
        self,
        layer: SelfAttentionLayer,
        query: Float[Array, "batch heads queries head_dim"],
        key: Float[Array, "batch groups keys head_dim"],
    ) -> Float[Array, "batch heads queries keys"] | None:
        """Returns a bias of scores that depends on the layer and on its queries and keys.

        The bias is added before masks are applied. Layers with a flash kernel call `relative_scores` instead.

        Args:
          layer: the layer.
          query: rotated queries, multiplied by the scale of the scores, [B, N, Q, H].
          key: rotated keys, [B, G, K, H].

        Returns:
          float32 [B or 1, N, Q, K], or None if there is no bias.
        """
        return None

    def macs(self, queries: int, keys: int, width: int) -> int:
        """Returns the number of multiply-accumulate operations of `layer_bias` for one row in one layer.

        Products that all rows of a batch share are not counted. `width` is the number of heads times head_dim.
        """
        return 0

    def relative_scores(
        self,
        layer: SelfAttentionLayer,
        query: Float[Array, "batch heads queries head_dim"],
        key: Float[Array, "batch groups keys head_dim"],
    ) -> tuple[jax.Array, RelativeScores | None]:
        """Returns the terms of `layer_bias` in a form that flash kernels do not expand to all scores.

        A scheme that defines this method also defines `layer_bias`, with the same arguments. Layers with a flash kernel
        call this method instead of `layer_bias`. For such a scheme, a layer has a flash kernel only if the keys come
        from the same tokens as the queries, or if `Context.contiguous` is set.

        Returns:
          A pair: the queries [B, N, Q, H], to which the scheme may add a bias, and the terms; None: no terms.
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
        """Returns whether the scheme defines `layer_bias`, and cannot use `relative_scores` instead.

        Args:
          in_order: whether queries and keys are numbered in the same order, which `relative_scores` requires.
        """
        return self.has_layer_bias and not (in_order and type(self).relative_scores is not Position.relative_scores)
