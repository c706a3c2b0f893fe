"""Position schemes of users: a bias that depends on distances, and one that depends on the text."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from plm_jax.models.positions import Position, Table


@dataclass(frozen=True)
class Slopes(Position):
    """Scores decrease with the distance, with another slope in each head (Press et al. 2022, "ALiBi")."""

    kind: ClassVar[str] = "slopes"
    uses_absolute_positions = False

    def distance_bias(self, tables, distances, heads, causal):
        slopes = 2.0 ** (-8 * jnp.arange(1, heads + 1) / heads)
        return -slopes[:, None] * jnp.abs(distances)


@dataclass(frozen=True)
class DistanceKeys(Position):
    """Adds the score of the query and a vector for the distance (Shaw et al. 2018)."""

    kind: ClassVar[str] = "distance_keys"
    reach: int = 4
    uses_absolute_positions = False

    def score_tables(self, width, heads, head_dim, initializer):
        return {"distance_keys": Table((2 * self.reach + 1, head_dim), (None, None), initializer.normal(0.3))}

    def layer_bias(self, layer, query, key):
        distances = layer.key_positions[:, None, :] - layer.query_positions[:, :, None]
        vectors_BQKH = layer.shared_tables["distance_keys"][jnp.clip(distances, -self.reach, self.reach) + self.reach]
        vectors_BQKH = jnp.broadcast_to(vectors_BQKH, (len(query), *vectors_BQKH.shape[1:]))
        return jnp.einsum("bnqh,bqkh->bnqk", query.astype(jnp.float32), vectors_BQKH)
