"""Spikes of the loss and of the gradient norm: values far above the values at the preceding steps.

Spikes are detected on the device. The window of preceding steps is part of the train state, and detection is a pure
function of the state, so a resumed run detects the same spikes as an uninterrupted run.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Lower bounds of the mean distance, as a fraction of the mean and absolutely: if all steps are nearly equal, or all
# losses nearly 0, a tiny difference is no spike.
_LEAST_SHARE, _LEAST = 0.01, 1e-3
# Values of `metrics["incident"]`.
NONE, LOST, SPIKE = 0, 1, 2


@dataclass(frozen=True)
class Watch:
    """Definition of a spike, and whether the update of a step with a spike is skipped.

    Attributes:
      deviations: a value is a spike if it exceeds the mean of the window by more than this number of mean absolute
        deviations.
      skips: whether the update of a step with a spike is skipped.
      first_step: first step of the phase, at which the window is emptied, because losses of different phases are not
        comparable.
      window: number of preceding steps that a step is compared with.
    """

    deviations: float
    skips: bool
    first_step: int = 0
    window: int = 128

    def limits(self, recent: jax.Array) -> jax.Array:
        """Returns the loss and gradient norm above which a step is a spike, [2].

        Both limits are infinite until the window is full.

        Args:
          recent: losses and gradient norms of preceding steps, [2, window], with NaN for missing steps.
        """
        mean = recent.mean(1)
        distance = jnp.abs(recent - mean[:, None]).mean(1)
        limit = mean + self.deviations * jnp.maximum(distance, jnp.maximum(_LEAST_SHARE * jnp.abs(mean), _LEAST))
        return jnp.where(jnp.isnan(limit), jnp.inf, limit)

    def after(self, recent: jax.Array, values: jax.Array, limits: jax.Array) -> jax.Array:
        """Returns the window `recent` after a step with the loss and gradient norm `values`, [2].

        A value above its limit is recorded as the limit. If one of the values is not finite, the window does not
        change.
        """
        moved = jnp.concatenate([recent[:, 1:], jnp.minimum(values, limits)[:, None]], axis=1)
        return jnp.where(jnp.isfinite(values).all(), moved, recent)


def window(size: int) -> jax.Array:
    """Returns an empty window, float32 [2, size], filled with NaN: losses and gradient norms, newest last."""
    return jnp.full((2, size), jnp.nan, jnp.float32)


class Verdict(NamedTuple):
    """Classification of a step by its loss and gradient norm.

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
    """Classifies a step by its loss and gradient norm, `values` [2].

    Args:
      watch: definition of spikes; None: only non-finite values are incidents.
      recent: window before the step.
      step: number of finished steps before the step.
      values: loss and gradient norm.
    """
    is_lost = ~jnp.isfinite(values).all()
    if watch is None:
        return Verdict(jnp.where(is_lost, LOST, NONE), ~is_lost, jnp.full(2, jnp.inf), recent)
    recent = jnp.where(step == watch.first_step, jnp.nan, recent)
    limits = watch.limits(recent)
    is_spike = (values > limits).any() & ~is_lost
    incident = jnp.where(is_lost, LOST, jnp.where(is_spike, SPIKE, NONE))
    is_taken = ~(is_lost | (is_spike & watch.skips))
    return Verdict(incident, is_taken, limits, watch.after(recent, values, limits))
