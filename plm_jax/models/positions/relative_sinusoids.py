"""XLNet's positions: scores depend on projected sinusoids of distances, and on the segments of query and key."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.models.kernels.context import RelativeScores
from plm_jax.models.positions.position import Position, Table


@dataclass(frozen=True)
class RelativeSinusoids(Position):
    """Transformer-XL's relative positions: scores depend on projected sinusoids of distances (Dai et al. 2019 §3.3).

    Each layer has its own projection, and trained biases that are added to queries.

    Within a row, the positions of any two keys must differ by less than the number of keys. Each layer draws one
    dropout mask of the sinusoids for all rows. In zihangdai/xlnet, each row has its own mask, and all layers share
    these masks.

    Attributes:
      clamp: distances of at least this size have the same vector in each direction (XLNet's `clamp_len`); None: every
        distance has its own vector.
      segments: whether a score also depends on whether query and key have the same token type (Yang et al. 2019 §2.5).
        Models pass the token types to layers as the arrays `query_segments` and `key_segments`. Without these arrays,
        scores do not depend on token types.
    """

    kind: ClassVar[str] = "relative_sinusoids"
    uses_absolute_positions = False
    supports_kv_heads = False
    clamp: ranges.Length | None = None
    segments: bool = True

    def reach(self, keys: int) -> int:
        """Returns the distance to which larger distances are clipped, for a given number of keys."""
        return keys if self.clamp is None else min(self.clamp, keys)

    @override
    def macs(self, queries, keys, width):
        return width * (queries * (2 * self.reach(keys) + 1 + 2 * self.segments) + keys)

    @override
    def layer_tables(self, width, heads, head_dim, initializer):
        """Returns the projection `distance` [D, N · H], and `content_bias` and `distance_bias`, both [N, H].

        If `segments` is set, also returns `segment_bias` [N, H] and `segment` [2, N, H]. The two vectors in `segment`
        are for keys in the segment of the query and for keys in other segments.
        """
        init = initializer.matrix()
        bias = Table((heads, head_dim), (None, None), init)
        tables = {"distance": Table((width, heads * head_dim), ("embed", "heads"), init)}
        tables |= {"content_bias": bias, "distance_bias": bias}
        if self.segments:
            tables |= {"segment_bias": bias, "segment": Table((2, heads, head_dim), (None, None, None), init)}
        return tables

    @override
    def layer_bias(self, layer, query, key):
        tables, reach = _in_dtype(layer, query.dtype), self.reach(key.shape[2])
        distances = layer.query_positions[:, None, :, None] - layer.key_positions[:, None, None, :]
        rows = jnp.clip(distances, -reach, reach) + reach
        queries = query + tables["distance_bias"][:, None] * layer.scale
        vectors = _vectors(layer, tables, reach)
        by_distance = jnp.einsum("bnqh,rnh->bnqr", queries, vectors, preferred_element_type=jnp.float32)
        bias = jnp.take_along_axis(by_distance, rows, axis=3)
        bias += jnp.einsum("nh,bnkh->bnk", tables["content_bias"] * layer.scale, key)[:, :, None]
        if self.segments and layer.arrays:
            scores = _segment_scores(layer, tables, query)
            of_queries, of_keys = layer.arrays["query_segments"], layer.arrays["key_segments"]
            is_same = of_queries[:, None, :, None] == of_keys[:, None, None, :]
            bias += jnp.where(is_same, scores[..., :1], scores[..., 1:])
        return bias

    @override
    def relative_scores(self, layer, query, key):
        tables, reach = _in_dtype(layer, query.dtype), self.reach(key.shape[2])
        of_queries, of_keys = layer.query_positions, layer.key_positions
        earlier = jnp.abs(of_queries[0, 0] - of_keys[0, 0])
        distances = earlier + query.shape[2] - 1 - jnp.arange(query.shape[2] + key.shape[2] - 1)
        vectors = _vectors(layer, tables, reach)

        def key_vectors(step):
            return vectors[jnp.clip(step * distances, -reach, reach) + reach].swapaxes(0, 1)

        is_reverse = of_keys[:, -1] < of_keys[:, 0]
        if len(is_reverse) == 1:
            relative = RelativeScores(key_vectors(jnp.where(is_reverse[0], -1, 1)))
        else:
            relative = RelativeScores(
                key_vectors(1), reverse_key_vectors=key_vectors(-1), reverse=is_reverse.astype(jnp.int32)
            )
        if self.segments and layer.arrays:
            segments = layer.arrays["query_segments"], layer.arrays["key_segments"]
            relative = relative.replace(segment_scores=_segment_scores(layer, tables, query), segments=segments)
        # Kernels multiply keys and vectors with the same queries, whose biases differ.
        query = query + tables["distance_bias"][:, None] * layer.scale
        difference = (tables["content_bias"] - tables["distance_bias"]) * layer.scale
        key_bias = jnp.einsum("nh,bnkh->bnk", difference, key, preferred_element_type=jnp.float32)
        return query, relative.replace(key_bias=key_bias)


def _in_dtype(layer, dtype):
    return {name: jnp.asarray(table, dtype) for name, table in layer.tables.items()}


def _vectors(layer, tables, reach):
    """Returns the projected vectors of the distances from -reach to reach, [2 · reach + 1, N, H], after dropout."""
    vectors_RD = layer.drop(sinusoids(reach, len(tables["distance"])).astype(tables["distance"].dtype))
    return (vectors_RD @ tables["distance"]).reshape(-1, *tables["distance_bias"].shape)


def _segment_scores(layer, tables, query):
    """Returns, for each query, the scores of keys in the same segment and in other segments, float32 [B, N, Q, 2]."""
    queries = query + tables["segment_bias"][:, None] * layer.scale
    return jnp.einsum("bnqh,snh->bnqs", queries, tables["segment"], preferred_element_type=jnp.float32)


def sinusoids(reach: int, width: int):
    """Returns the vectors of the distances from -reach to reach, float32 [2 · reach + 1, width].

    The first half of each vector contains sines; the second half contains the cosines of the same angles. `width` must
    be even.
    """
    frequencies = [10_000.0 ** (-i / width) for i in range(0, width, 2)]  # In double precision.
    angles = jnp.arange(-reach, reach + 1)[:, None] * jnp.array(frequencies, jnp.float32)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)
