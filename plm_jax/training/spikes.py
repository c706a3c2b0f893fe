"""Spikes of the loss and of the gradient norm: what is far above the steps before it, told on the device.

The window of these steps is part of the train state, and what is told a pure function of it. So a run that was cut off
tells the same as one that was not.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Distances from the mean count as at least this share of it, and as this number: where all steps are alike, or all
# losses next to nothing, none is a spike for a trifle.
_LEAST_SHARE, _LEAST = 0.01, 1e-3
# What a step was: as `metrics["incident"]` tells.
NONE, LOST, SPIKE = 0, 1, 2


@dataclass(frozen=True)
class Watch:
    """What a spike is, and whether its update is left out.

    Attributes:
      deviations: how far above the mean of the window, in mean distances from it.
      skips: whether a spike leaves the state as it was.
      first_step: at which the window begins anew: other rows have other losses.
      window: number of steps that a step is compared with.
    """

    deviations: float
    skips: bool
    first_step: int = 0
    window: int = 128

    def limits(self, recent: jax.Array) -> jax.Array:
        """Above which the loss and the gradient norm are spikes, [2]; infinite until the window is full."""
        mean = recent.mean(1)
        distance = jnp.abs(recent - mean[:, None]).mean(1)
        limit = mean + self.deviations * jnp.maximum(distance, jnp.maximum(_LEAST_SHARE * jnp.abs(mean), _LEAST))
        return jnp.where(jnp.isnan(limit), jnp.inf, limit)

    def after(self, recent: jax.Array, values: jax.Array, limits: jax.Array) -> jax.Array:
        """The window after a step with these values [2]; a spike counts as its limit, and lost numbers do not."""
        moved = jnp.concatenate([recent[:, 1:], jnp.minimum(values, limits)[:, None]], axis=1)
        return jnp.where(jnp.isfinite(values).all(), moved, recent)


def window(size: int) -> jax.Array:
    """An empty window, float32 [2, size]: losses and gradient norms, the last at the end, NaN where there is none."""
    return jnp.full((2, size), jnp.nan, jnp.float32)


class Verdict(NamedTuple):
    """Judgement of a step by its loss and gradient norm.

    Attributes:
      incident: NONE, LOST or SPIKE, int32 [].
      is_taken: whether the update is applied, bool [].
      limits: loss and gradient norm above which the step is a spike, [2].
      recent: window after the step.
    """

    incident: jax.Array
    is_taken: jax.Array
    limits: jax.Array
    recent: Any


def judge(watch: Watch | None, recent: Any, step: jax.Array, values: jax.Array) -> Verdict:
    """Judges a step by its loss and gradient norm, `values` [2]; without a watch only numbers that are not finite."""
    is_lost = ~jnp.isfinite(values).all()
    if watch is None:
        return Verdict(jnp.where(is_lost, LOST, NONE), ~is_lost, jnp.full(2, jnp.inf), recent)
    recent = jnp.where(step == watch.first_step, jnp.nan, recent)
    limits = watch.limits(recent)
    is_spike = (values > limits).any() & ~is_lost
    incident = jnp.where(is_lost, LOST, jnp.where(is_spike, SPIKE, NONE))
    is_taken = ~(is_lost | (is_spike & watch.skips))
    return Verdict(incident, is_taken, limits, watch.after(recent, values, limits))
