"""XLNet's positions: scores with projected sinusoids of distances, and with the segments of query and key."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.models.positions.position import Position, Table


@dataclass(frozen=True)
class RelativeSinusoids(Position):
    """Scores with sinusoids of distances, which each layer projects, and trained biases of queries (Dai et al. 2019
    §3.3).

    The positions of a row's keys must differ by less than the number of keys.

    Attributes:
      clamp: distance from which all distances in a direction are treated alike (XLNet's `clamp_len`); None: there is no
        such distance.
      segments: whether scores also depend on whether query and key have the same token type (Yang et al. 2019 §2.5).
        Models pass the types as the arrays `query_segments` and `key_segments`; without them this part is left out.
    """

    kind: ClassVar[str] = "relative_sinusoids"
    uses_absolute_positions = False
    clamp: ranges.Length | None = None
    segments: bool = True

    def reach(self, keys: int) -> int:
        """Returns the largest distance with a vector of its own, given the number of keys."""
        return keys if self.clamp is None else min(self.clamp, keys)

    @override
    def macs(self, queries, keys, width):
        return width * (queries * (2 * self.reach(keys) + 1 + 2 * self.segments) + keys)

    @override
    def layer_tables(self, width, heads, head_dim, initializer):
        """Returns the projection `distance` [D, N · H] and a bias [N, H] of queries for each part of a score.

        With segments, also `segment` [2, N, H], the vectors of the same and of another segment.
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
        tables = {name: jnp.asarray(table, query.dtype) for name, table in layer.tables.items()}

        def scores(equation, bias, vectors):
            queries = query + tables[bias][:, None] * layer.scale
            return jnp.einsum(equation, queries, vectors, preferred_element_type=jnp.float32)

        reach = self.reach(key.shape[2])
        vectors_RD = layer.drop(sinusoids(reach, len(tables["distance"])).astype(query.dtype))
        vectors_RNH = (vectors_RD @ tables["distance"]).reshape(-1, *tables["distance_bias"].shape)
        distances = layer.query_positions[:, None, :, None] - layer.key_positions[:, None, None, :]
        rows = jnp.clip(distances, -reach, reach) + reach
        bias = jnp.take_along_axis(scores("bnqh,rnh->bnqr", "distance_bias", vectors_RNH), rows, axis=3)
        bias += jnp.einsum("nh,bnkh->bnk", tables["content_bias"] * layer.scale, key)[:, :, None]
        if self.segments and layer.arrays:
            same, other = scores("bnqh,snh->sbnq", "segment_bias", tables["segment"])[..., None]
            of_queries, of_keys = layer.arrays["query_segments"], layer.arrays["key_segments"]
            bias += jnp.where(of_queries[:, None, :, None] == of_keys[:, None, None, :], same, other)
        return bias


def sinusoids(reach: int, width: int):
    """Returns the vectors of the distances from -reach to reach, float32 [2 · reach + 1, width].

    The first half of a vector are sines, the second half are the cosines of the same angles.
    """
    frequencies = [10_000.0 ** (-i / width) for i in range(0, width, 2)]  # In double precision.
    angles = jnp.arange(-reach, reach + 1)[:, None] * jnp.array(frequencies, jnp.float32)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)
