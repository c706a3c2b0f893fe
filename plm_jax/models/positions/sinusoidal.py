"""Sinusoidal positions: a vector of sines and cosines for each."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from plm_jax.models.positions.position import Position


@dataclass(frozen=True)
class SinusoidalPositions(Position):
    """Sines and cosines of wavelengths from 2π to 10,000 · 2π, added to the token embeddings (Vaswani et al. 2017)."""

    kind: ClassVar[str] = "sinusoidal"

    def embed(self, x, tables, positions, block_positions):
        """The sinusoids of the positions are added."""
        return x + sinusoids(positions, x.shape[-1]).astype(x.dtype)


def sinusoids(positions, width):
    """Positions [...] as float32 [..., width]: sin(p / 10,000^(2i/width)) at place 2i, its cosine at place 2i + 1.

    So Vaswani et al. 2017 §3.5 write them; their code (tensorflow/tensor2tensor) puts all sines before all cosines.
    """
    places = jnp.arange(width)
    angles = positions[..., None] * 1e4 ** (-(places - places % 2) / width)
    return jnp.where(places % 2 == 0, jnp.sin(angles), jnp.cos(angles))
