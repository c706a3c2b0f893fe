"""MPNet's positions: trained vectors of absolute positions, and T5's biases of scores."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.models.positions.learned import LearnedPositions
from plm_jax.models.positions.relative_bias import RelativeBias


@dataclass(frozen=True)
class LearnedRelativeBias(LearnedPositions):
    """Learned absolute positions combined with the score bias of `RelativeBias` (MPNet, Song et al. 2020).

    Attributes:
      buckets: number of buckets that distances are divided into, at least 4.
      max_distance: distances of at least this size share one bucket in each direction; must be above buckets / 2.
    """

    kind: ClassVar[str] = "learned_relative_bias"
    buckets: ranges.Width = 32
    max_distance: ranges.Length = 128

    def __post_init__(self):
        _ = self.relative  # Its constructor checks the settings.

    @property
    def relative(self) -> RelativeBias:
        """Position scheme of the score bias."""
        return RelativeBias(self.buckets, self.max_distance)

    @override
    def score_tables(self, width, heads, head_dim, initializer):
        """Returns `relative_bias` [buckets, N]."""
        return self.relative.score_tables(width, heads, head_dim, initializer)

    @override
    def distance_bias(self, tables, distances, heads, causal):
        return self.relative.distance_bias(tables, distances, heads, causal)
