"""Disentangled attention: scores depend on contents and on distances (He et al. 2021)."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.kernels.context import RelativeScores
from plm_jax.models.positions.learned import LearnedPositions
from plm_jax.models.positions.position import Position, SelfAttentionLayer, Table


@dataclass(frozen=True)
class Disentangled(Position):
    """Disentangled attention: scores also depend on embeddings of distances, which all layers share.

    A score is the sum of query · key and the `terms`. By default, scores are divided by sqrt(head_dim · (1 + number of
    terms)). A distance is the position of the query minus the position of the key. The default settings are those of
    DeBERTa-v2.

    Source: He et al. 2021 §3.1, arXiv:2006.03654; microsoft/DeBERTa, disentangled_attention.py.

    Attributes:
      length: distances of at least this size share one vector in each direction.
      buckets: number of rows of the table for each direction, an even number. Half of the rows are for single
        distances. The other half are for ranges of distances up to `length`; larger distances have wider ranges. 0: one
        row for each distance up to `length`.
      terms: terms that are added to query · key. `c2p`: query · projected embedding of the distance. `p2c`: key ·
        projected embedding of the distance.
      shared: whether each layer projects the embeddings of distances with its query and key projections. If not, each
        layer has separate projections for them. The projection for `p2c` has a bias; the projection for `c2p` has a
        bias if `key_bias` is set.
      key_bias: whether the separate projection for `c2p` has a bias; ignored if `shared` is set.
      norm: whether a layer norm is applied to the embeddings of distances.
      epsilon: constant added to the variance in the norm of the embeddings of distances.
      input_positions: number of absolute positions whose embeddings are added to the token embeddings
        (`position_biased_input`); 0: no absolute positions.
      num_tokens: number of tokens in a row that the model is designed for, if it has no absolute positions; longer rows
        are accepted; 0: `length`.
    """

    kind: ClassVar[str] = "disentangled"
    supports_kv_heads = False
    length: ranges.Length = 512
    buckets: ranges.LengthOrZero = 256
    terms: tuple[Literal["c2p", "p2c"], ...] = ("c2p", "p2c")
    shared: bool = True
    key_bias: bool = True
    norm: bool = True
    epsilon: ranges.Share = 1e-7
    input_positions: ranges.LengthOrZero = 0
    num_tokens: ranges.LengthOrZero = 0

    def __post_init__(self):
        if self.buckets and (self.buckets % 2 or self.length <= self.buckets // 2 + 1):
            raise UserError(
                f"disentangled positions have {self.buckets} buckets and a length of {self.length}: set buckets to an "
                "even number, and length to more than buckets / 2 + 1"
            )
        if len(set(self.terms)) < len(self.terms):
            raise UserError(f"disentangled positions with the terms {self.terms}: name each term once")

    @property
    @override
    def limit(self):
        return self.input_positions or None

    @property
    @override
    def max_length(self):
        return self.input_positions or self.num_tokens or self.length

    @property
    @override
    def uses_absolute_positions(self):
        return self.input_positions > 0

    @property
    @override
    def score_terms(self):
        return 1 + len(self.terms)

    @property
    def reach(self) -> int:
        """Number of rows of the table for each direction."""
        return self.buckets or self.length

    @override
    def macs(self, queries, keys, width):
        return len(self.terms) * width * queries * min(2 * self.reach, queries + keys - 1)

    @override
    def embedding_tables(self, width, initializer):
        """Returns the table `position_embedding` [input_positions, width]; no table without absolute positions."""
        if not self.input_positions:
            return {}
        table = Table((self.input_positions, width), ("positions", "embed"), initializer.table())
        return {"position_embedding": table}

    @override
    def embed(self, x, tables, positions, block_positions):
        if not self.input_positions:
            return x
        return LearnedPositions(self.input_positions).embed(x, tables, positions, block_positions)

    @override
    def score_tables(self, width, heads, head_dim, initializer):
        """Returns `relative_embedding` [2 · reach, D] and, if `norm` is set, the norm's scale and bias, both [D]."""
        tables = {"relative_embedding": Table((2 * self.reach, width), (None, "embed"), initializer.table())}
        if self.norm:
            tables["relative_norm_scale"] = Table((width,), ("embed",), nn.initializers.ones)
            tables["relative_norm_bias"] = Table((width,), ("embed",), nn.initializers.zeros)
        return tables

    @override
    def layer_tables(self, width, heads, head_dim, initializer):
        """Returns the projections of the terms: `distance_key` for `c2p`, `distance_query` for `p2c`, both [D, N · H].

        Biases [N · H] are `distance_query_bias` and, if `key_bias` is set, `distance_key_bias`. A term that is not in
        `terms` has no projection. If `shared` is set, there are no tables.
        """
        tables, joined = {}, heads * head_dim
        for name in [] if self.shared else self._projections():
            tables[f"distance_{name}"] = Table((width, joined), ("embed", "heads"), initializer.matrix())
            if name == "query" or self.key_bias:
                tables[f"distance_{name}_bias"] = Table((joined,), ("heads",), nn.initializers.zeros)
        return tables

    def bucket_of_distance(self) -> list[int]:
        """Returns a list whose entry d is the bucket of distance d, for each d from 0 to `length`, inclusive.

        Source: microsoft/DeBERTa, DeBERTa/deberta/da_utils.py.
        """
        half, last = self.buckets // 2, self.length - 1

        def bucket(distance: int) -> int:
            if not half or distance <= half:
                return distance
            return half + math.ceil(math.log(distance / half) / math.log(last / half) * (half - 1))

        return [bucket(distance) for distance in range(self.length + 1)]

    def rows(self, distances: Integer[Array, "..."]) -> Integer[Array, "..."]:
        """Returns the row of the table for each distance (position of the query minus position of the key)."""
        buckets = jnp.asarray(self.bucket_of_distance())[jnp.minimum(jnp.abs(distances), self.length)]
        return jnp.clip(jnp.sign(distances) * buckets + self.reach, 0, 2 * self.reach - 1)

    @override
    def layer_bias(self, layer, query, key):
        of_queries, of_keys = layer.query_positions, layer.key_positions
        if query.shape[2] == key.shape[2]:  # Tokens are numbered as in `relative_scores` and in transformers.
            of_queries = of_keys = jnp.arange(key.shape[2])[None]
        rows = self.rows(of_queries[:, :, None] - of_keys[:, None, :])[:, None]
        vectors, scores = self._vectors(layer, query.shape[1]), jnp.float32(0)
        if "key" in vectors:
            of_queries = jnp.einsum("bnqh,nrh->bnqr", query, vectors["key"], preferred_element_type=jnp.float32)
            scores += jnp.take_along_axis(of_queries, rows, axis=3)
        if "query" in vectors:
            of_keys = jnp.einsum("bnkh,nrh->bnkr", key, vectors["query"], preferred_element_type=jnp.float32)
            scores += jnp.take_along_axis(of_keys, rows.swapaxes(2, 3), axis=3).swapaxes(2, 3)
        return scores if vectors else None

    @override
    def relative_scores(self, layer, query, key):
        (_, heads, queries, _), keys = query.shape, key.shape[2]
        rows = self.rows(queries - 1 - jnp.arange(queries + keys - 1))
        vectors = {name: table[:, rows] for name, table in self._vectors(layer, heads).items()}
        return query, RelativeScores(key_vectors=vectors.get("key"), query_vectors=vectors.get("query"))

    def _projections(self) -> list[str]:
        """Returns the names of the projections of distances: `key` for the term `c2p`, `query` for the term `p2c`."""
        return [name for term, name in (("c2p", "key"), ("p2c", "query")) if term in self.terms]

    def _vectors(self, layer: SelfAttentionLayer, heads: int) -> dict[str, Float[Array, "heads rows head_dim"]]:
        """Returns the projected tables of distances, by the name of the projection.

        The result for `query` is multiplied by the scale of the scores.
        """
        table = layer.shared_tables["relative_embedding"]
        if self.norm:
            table = jax.nn.standardize(table, epsilon=self.epsilon)
            table = table * layer.shared_tables["relative_norm_scale"] + layer.shared_tables["relative_norm_bias"]
        table = layer.drop(table)

        def project(name: str) -> Any:
            if self.shared:
                return layer.project(name, table)
            projected = table @ layer.tables[f"distance_{name}"]
            projected += layer.tables.get(f"distance_{name}_bias", jnp.float32(0))
            return projected.reshape(len(table), heads, -1).swapaxes(0, 1)

        vectors = {name: project(name) for name in self._projections()}
        return vectors | {"query": vectors["query"] * layer.scale} if "query" in vectors else vectors
