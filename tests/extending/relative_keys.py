"""A position scheme with scores that depend on the text: vectors of distances (Shaw et al. 2018, arXiv:1803.02155)."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from plm_jax import config
from plm_jax.common import ranges
from plm_jax.configs import demo
from plm_jax.models.positions import Position, Table


@dataclass(frozen=True)
class RelativeKeys(Position):
    """Scores of queries with a vector for the distance to the key; each layer has its own vectors for all heads.

    Attributes:
      reach: distance from which all distances in a direction count as the same.
    """

    kind = "relative_keys"
    uses_absolute_positions = False
    reach: ranges.Length = 16

    def layer_tables(self, width, heads, head_dim, initializer):
        """Returns the vectors of the distances from -reach to reach, [2 · reach + 1, H]."""
        return {"relative_keys": Table((2 * self.reach + 1, head_dim), (None, None), initializer.matrix())}

    def layer_bias(self, layer, query, key):
        distances = layer.key_positions[:, None, :] - layer.query_positions[:, :, None]
        rows = jnp.clip(distances, -self.reach, self.reach) + self.reach
        scores = jnp.einsum("bnqh,rh->bnqr", query, layer.tables["relative_keys"], preferred_element_type=jnp.float32)
        return jnp.take_along_axis(scores, rows[:, None], axis=3)


def get_config():
    """Returns the demo's BERT with this scheme in place of learned positions."""
    run = demo.bert()
    attention = replace(run.model.attention, position=RelativeKeys())
    return config.to_config_dict(replace(run, model=replace(run.model, attention=attention)))
