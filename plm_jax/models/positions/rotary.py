"""Rotary positions: queries and keys turn by angles that grow with their positions (Su et al. 2021).

The score of a query and a key then depends on how far apart they are, and not on where.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax.numpy as jnp

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.positions.position import Position


@dataclass(frozen=True)
class RotaryScaling:
    """LLaMA 3.1's scaling of frequencies, for longer texts (meta-llama/llama-models, llama3/model.py).

    Pairs that turn at least `high_frequency_factor` times over `original_length` tokens keep their frequency, those
    that turn at most `low_frequency_factor` times have it divided by `factor`; between the two it changes linearly.
    The defaults are LLaMA 3.1's.
    """

    kind: ClassVar[str] = "llama3"
    factor: ranges.Positive = 8.0
    low_frequency_factor: ranges.Positive = 1.0
    high_frequency_factor: ranges.Positive = 4.0
    original_length: ranges.Length = 8192

    def __post_init__(self):
        low, high = self.low_frequency_factor, self.high_frequency_factor
        if not (self.factor > 0 and low < high):
            raise UserError(
                f"rotary scaling by {self.factor} between {low} and {high}: give a factor above 0 and a "
                "high_frequency_factor above low_frequency_factor"
            )

    def scaled(self, frequency: float) -> float:
        """A frequency, radians a position, as it is here."""
        turns = self.original_length * frequency / (2 * math.pi)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        return frequency * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class Rotary(Position):
    """Rotary positions: pairs of dimensions of queries and keys are rotated by the position (Su et al. 2021).

    Attributes:
      theta: pair i of a head's d rotated dimensions turns by theta ** (-2i / d) radians a position.
      fraction: the share of a head's dimensions that are rotated, its first ones, an even number of them.
      interleaved: a pair is two neighbouring dimensions; if not, pair i is dimensions i and i + d / 2, as Hugging Face
        lays LLaMA out.
      scaling: of the frequencies; None: as they are.
      length: tokens that the model is meant for; nothing refuses more.
    """

    kind: ClassVar[str] = "rotary"
    theta: Annotated[float, ranges.Range(0, 1e12, above=True)] = 10_000.0
    fraction: ranges.ShareAboveZero = 1.0
    interleaved: bool = False
    scaling: RotaryScaling | None = None
    length: ranges.Length = 2048

    def __post_init__(self):
        if not (self.theta > 0 and 0 < self.fraction <= 1):
            raise UserError(
                f"rotary positions of theta {self.theta} and fraction {self.fraction}: give a theta above 0 and a "
                "fraction above 0 up to 1"
            )

    def rotated(self, head_dim: int) -> int:
        """How many of a head's dimensions are rotated."""
        return int(head_dim * self.fraction / 2) * 2

    def frequencies(self, head_dim: int) -> list[float]:
        """The radians that each pair turns by a position."""
        rotated = self.rotated(head_dim)
        plain = [self.theta ** (-i / rotated) for i in range(0, rotated, 2)]
        return plain if self.scaling is None else [self.scaling.scaled(frequency) for frequency in plain]

    def rotation(self, head_dim, positions, block_positions):
        """Turns the first dimensions of each head, in float32, and leaves the others."""
        angles = positions[:, None, :, None].astype(jnp.float32) * jnp.array(self.frequencies(head_dim), jnp.float32)
        cos, sin = jnp.cos(angles), jnp.sin(angles)  # [B or 1, 1, L, pairs]

        def turn(x_BNLH):
            dtype = x_BNLH.dtype
            x, rest = jnp.split(x_BNLH, [self.rotated(head_dim)], axis=-1)
            x = x.astype(jnp.float32)
            first, second = (x[..., ::2], x[..., 1::2]) if self.interleaved else jnp.split(x, 2, axis=-1)
            turned = first * cos - second * sin, second * cos + first * sin
            x = jnp.stack(turned, axis=-1).reshape(x.shape) if self.interleaved else jnp.concatenate(turned, axis=-1)
            return jnp.concatenate([x.astype(dtype), rest], axis=-1)

        return turn
