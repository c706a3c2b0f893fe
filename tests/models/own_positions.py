"""Position schemes of users: a bias that depends on distances, and one that depends on the text."""

from dataclasses import dataclass
from typing import ClassVar

import jax
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

    def score_tables(self, heads, head_dim, initializer):
        return {"distance_keys": Table((2 * self.reach + 1, head_dim), (None, None), initializer.normal(0.3))}

    def bias(self, tables, query_places, key_places, heads, causal):
        distances = jnp.clip(key_places[None, :] - query_places[:, None], -self.reach, self.reach)
        vectors_QKH = tables["distance_keys"][distances + self.reach]

        def of_text(query_BNQH: jax.Array, key_BGKH: jax.Array) -> jax.Array:
            return jnp.einsum("bnqh,qkh->bnqk", query_BNQH.astype(jnp.float32), vectors_QKH)

        return of_text
