"""Random parameters of models."""

import jax
import numpy as np

from plm_jax.models import registry
from plm_jax.models.protocol import ModelConfig


def random_params(model: ModelConfig, seed: int = 1, scale: float = 0.25) -> dict:
    """Returns normally distributed float32 parameters, including norms and biases, without compilation."""
    rng = np.random.default_rng(seed)

    def draw(leaf):
        return (scale * rng.normal(size=leaf.shape)).astype(np.float32)

    return jax.tree.map(draw, registry.shapes(model))
