"""T5's positions: a trained bias is added to each score, selected by the distance from query to key."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.positions.position import Position, Table


@dataclass(frozen=True)
class RelativeBias(Position):
    """T5's relative positions: a trained bias [buckets, heads] per stack, added to scores (Raffel et al. 2020 §2.1).

    In each direction, half of the buckets are for single distances. The other half are for ranges of distances up to
    `max_distance`; larger distances have wider ranges.

    Attributes:
      buckets: number of buckets that distances are divided into, at least 4; a bidirectional stack has half of them in
        each direction.
      max_distance: distances of at least this size share one bucket in each direction; must be above buckets / 2.
    """

    kind: ClassVar[str] = "relative_bias"
    buckets: ranges.Width = 32
    max_distance: ranges.Length = 128
    uses_absolute_positions = False

    def __post_init__(self):
        if self.buckets < 4 or self.max_distance <= self.buckets // 2:
            raise UserError(
                f"relative bias with {self.buckets} buckets and a max_distance of {self.max_distance}: set buckets to "
                "at least 4, and max_distance to more than buckets / 2"
            )

    @override
    def score_tables(self, width, heads, head_dim, initializer):
        """Returns `relative_bias` [buckets, N]."""
        return {"relative_bias": Table((self.buckets, heads), (None, "heads"), initializer.score_bias())}

    @override
    def distance_bias(self, tables, distances, heads, causal):
        # A matrix product instead of a look-up, because the gradient of a look-up is a scatter.
        one_hot_RB = jax.nn.one_hot(relative_buckets(distances, self, causal), self.buckets)
        return jnp.einsum("rb,bn->nr", one_hot_RB, tables["relative_bias"])


def relative_buckets(distances, position: RelativeBias, causal: bool):
    """Returns the bucket of each distance (position of the key minus position of the query).

    In a bidirectional stack, the upper half of the buckets is for keys after the query. In a causal stack, all buckets
    are for keys up to the position of the query, and keys after the query have bucket 0. In each direction, the first
    half of the buckets are for single distances. The second half are for ranges of distances up to `max_distance`;
    larger distances have wider ranges.

    Source: Raffel et al. 2020 §2.1; google-research/t5x.
    """
    buckets = position.buckets if causal else position.buckets // 2
    first = 0 if causal else jnp.where(distances > 0, buckets, 0)
    distances = jnp.maximum(-distances, 0) if causal else jnp.abs(distances)
    exact = buckets // 2
    share = jnp.log(jnp.maximum(distances, 1) / exact + jnp.finfo(jnp.float32).eps)
    share = share / math.log(position.max_distance / exact)
    far = exact + (share * (buckets - exact)).astype(jnp.int32)
    return first + jnp.where(distances < exact, distances, jnp.minimum(far, buckets - 1))
