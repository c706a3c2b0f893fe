"""Rotary positions: queries and keys are rotated by angles proportional to their positions (Su et al. 2021).

Scores then depend on the distance between query and key, not on their absolute positions.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax.numpy as jnp
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.positions.position import Position


@dataclass(frozen=True)
class RotaryScaling:
    """LLaMA 3.1's scaling of frequencies for longer texts (meta-llama/llama-models, llama3/model.py).

    Low frequencies are divided by `factor`, and high frequencies are unchanged. In between, the multiplier of a
    frequency changes linearly from 1 / `factor` to 1. The defaults are those of LLaMA 3.1.

    Attributes:
      factor: divisor of low frequencies.
      low_frequency_factor: number of rotations over `original_length` tokens below which a frequency is low.
      high_frequency_factor: number of rotations over `original_length` tokens above which a frequency is high.
      original_length: number of tokens in a row of the original pretraining.
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
                f"rotary scaling by {self.factor} between {low} and {high}: set factor above 0, and "
                "high_frequency_factor above low_frequency_factor"
            )

    def scaled(self, frequency: float) -> float:
        """Returns a frequency after scaling, in radians per position."""
        turns = self.original_length * frequency / (2 * math.pi)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        unscaled = min(max((turns - low) / (high - low), 0.0), 1.0)
        return frequency * (unscaled + (1 - unscaled) / self.factor)


@dataclass(frozen=True)
class Rotary(Position):
    """Rotary positions: pairs of dimensions of queries and keys are rotated by an angle (Su et al. 2021).

    The angle is proportional to the position.

    Attributes:
      theta: base of the frequencies; pair i of d rotated dimensions rotates by theta ** (-2i / d) radians per position,
        before `scaling`.
      thetas: bases by layer, instead of `theta`. Layer i, counted from 0, has the base thetas[i % len(thetas)]. A layer
        with the base 0 does not rotate. If `thetas` is empty, all layers have the base `theta`.
      fraction: fraction of the dimensions of each head that are rotated, from the first dimension; the number of
        rotated dimensions is rounded down to an even number.
      interleaved: whether pairs consist of neighboring dimensions; if not, pair i consists of dimensions i and
        i + d / 2, as in Hugging Face's LLaMA.
      scaling: scaling of the frequencies for longer texts; None: no scaling.
      length: number of tokens that the model is designed for; longer texts are accepted.
    """

    kind: ClassVar[str] = "rotary"
    uses_absolute_positions = False
    theta: Annotated[float, ranges.Range(0, 1e12, above=True)] = 10_000.0
    thetas: tuple[Annotated[float, ranges.Range(0, 1e12)], ...] = ()
    fraction: ranges.ShareAboveZero = 1.0
    interleaved: bool = False
    scaling: RotaryScaling | None = None
    length: ranges.Length = 2048

    def __post_init__(self):
        if self.thetas and self.theta != Rotary.theta:
            raise UserError(f"rotary positions have theta {self.theta} and thetas {self.thetas}: leave out one of them")
        if not (self.theta > 0 and 0 < self.fraction <= 1):
            raise UserError(
                f"rotary positions of theta {self.theta} and fraction {self.fraction}: set theta above 0, and fraction "
                "above 0 and at most 1"
            )

    def rotated(self, head_dim: int) -> int:
        """Returns the number of rotated dimensions of a head."""
        return int(head_dim * self.fraction / 2) * 2

    def frequencies(self, head_dim: int, layer: int = 0) -> list[float]:
        """Returns the scaled frequency of each pair of dimensions in a layer, in radians per position."""
        rotated = self.rotated(head_dim)
        theta = self.thetas[layer % len(self.thetas)] if self.thetas else self.theta
        plain = [theta ** (-i / rotated) if theta else 0.0 for i in range(0, rotated, 2)]
        return plain if self.scaling is None else [self.scaling.scaled(frequency) for frequency in plain]

    @override
    def rotation(self, head_dim, positions, block_positions):
        positions = positions[:, None, :, None].astype(jnp.float32)
        by_layer = [tuple(self.frequencies(head_dim, layer)) for layer in range(len(self.thetas) or 1)]
        distinct = list(dict.fromkeys(by_layer))
        angles = positions * jnp.array(distinct, jnp.float32)[:, None, None, None]
        cosines, sines = jnp.cos(angles), jnp.sin(angles)  # [distinct, B or 1, 1, L, pairs]

        def turn(x_BNLH, depth=0):
            index = 0
            if len(distinct) > 1:
                index = jnp.array([distinct.index(frequencies) for frequencies in by_layer])[depth % len(by_layer)]
            cos, sin = cosines[index], sines[index]
            dtype = x_BNLH.dtype
            x, rest = jnp.split(x_BNLH, [self.rotated(head_dim)], axis=-1)
            x = x.astype(jnp.float32)
            first, second = (x[..., ::2], x[..., 1::2]) if self.interleaved else jnp.split(x, 2, axis=-1)
            turned = first * cos - second * sin, second * cos + first * sin
            x = jnp.stack(turned, axis=-1).reshape(x.shape) if self.interleaved else jnp.concatenate(turned, axis=-1)
            return jnp.concatenate([x.astype(dtype), rest], axis=-1)

        return turn
