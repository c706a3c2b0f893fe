"""Sinusoidal positions: a vector of sines and cosines for each position."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from typing_extensions import override

from plm_jax.models.positions.position import Position


@dataclass(frozen=True)
class SinusoidalPositions(Position):
    """Sines and cosines of wavelengths from 2π to 10,000 · 2π, added to the token embeddings (Vaswani et al. 2017)."""

    kind: ClassVar[str] = "sinusoidal"

    @override
    def embed(self, x, tables, positions, block_positions):
        return x + sinusoids(positions, x.shape[-1]).astype(x.dtype)


def sinusoids(positions, width):
    """Returns sines and cosines of positions [...], float32 [..., width].

    For position p, entry 2i is the sine of p / 10,000^(2i/width), and entry 2i + 1 is the cosine of the same angle.
    This is the order of Vaswani et al. 2017 §3.5. The code of that paper (tensorflow/tensor2tensor) puts all sines
    before all cosines.
    """
    index = jnp.arange(width)
    angles = positions[..., None] * 1e4 ** (-(index - index % 2) / width)
    return jnp.where(index % 2 == 0, jnp.sin(angles), jnp.cos(angles))
