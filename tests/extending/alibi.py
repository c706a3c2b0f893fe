"""A position scheme of one's own: ALiBi (Press et al. 2022), scores that fall with the distance of query and key."""

import math
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np

from plm_jax import config
from plm_jax.configs import demo
from plm_jax.models.positions import Position


@dataclass(frozen=True)
class Alibi(Position):
    """Attention scores reduced by a slope per head times the distance; no parameters, any length."""

    kind = "alibi"
    uses_absolute_positions = False

    def distance_bias(self, tables, distances, heads, causal):
        """Returns the bias of each of N heads at R distances, float32 [N, R]."""
        return -slopes(heads)[:, None] * jnp.abs(distances)


def slopes(heads: int) -> np.ndarray:
    """Float32 [N]: 2^(-8 n / N) for n from 1 to N; where N is no power of two, those of the one below and, of the next
    one, every other (ofirpress/attention_with_linear_biases).
    """
    power = 2 ** int(math.log2(heads))
    first = 2.0 ** (-8 / power * np.arange(1, power + 1))
    others = 2.0 ** (-4 / power * np.arange(1, 2 * power, 2))
    return np.concatenate([first, others])[:heads].astype(np.float32)


def get_config():
    """The demo's GPT-2 without its table of positions."""
    run = demo.gpt2()
    attention = replace(run.model.attention, position=Alibi())
    return config.to_config_dict(replace(run, model=replace(run.model, attention=attention)))
