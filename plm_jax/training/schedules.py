"""The learning rate as a function of the step: that of the update which follows so many finished ones.

`config.schedules` holds the settings and says of each kind what it is; `stages` are a run's.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.config.schedules import (
    ConstantSchedule,
    CosineSchedule,
    DecayingSchedule,
    LinearSchedule,
    RampedSchedule,
    RsqrtSchedule,
    RsqrtWarmupSchedule,
)
from plm_jax.config.training import Stage

Rate = Callable[[jax.Array], jax.Array]


def constant(schedule: ConstantSchedule, total_steps: int, stages: Sequence[Stage] = ()) -> Rate:
    """The rate of a constant schedule, once it is warm."""
    return _warmed_up(schedule, total_steps, _clock(schedule, stages), lambda now: 1.0)


def linear(schedule: LinearSchedule, total_steps: int, stages: Sequence[Stage] = ()) -> Rate:
    """The rate of a schedule that falls in a straight line."""
    return _decaying(schedule, total_steps, stages, lambda progress: 1 - progress)


def cosine(schedule: CosineSchedule, total_steps: int, stages: Sequence[Stage] = ()) -> Rate:
    """The rate of a schedule that falls along half a cosine."""
    return _decaying(schedule, total_steps, stages, lambda progress: 0.5 * (1 + jnp.cos(jnp.pi * progress)))


def rsqrt(schedule: RsqrtSchedule) -> Rate:
    """The rate of a schedule that falls with the root of the step and is flat before."""
    flat = max(schedule.warmup_steps, 1)
    return lambda step: schedule.learning_rate / jnp.sqrt(jnp.maximum(jnp.asarray(step, jnp.float32), flat))


def rsqrt_warmup(schedule: RsqrtWarmupSchedule) -> Rate:
    """The rate of a schedule that falls with the root of the step and rises before."""
    flat = max(schedule.warmup_steps, 1)

    def rate(step):
        step = jnp.asarray(step, jnp.float32)
        return jnp.minimum(step / flat, 1.0) * schedule.learning_rate / jnp.sqrt(jnp.maximum(step, flat))

    return rate


def _decaying(schedule: DecayingSchedule, total_steps: int, stages: Sequence[Stage], shape: Callable) -> Rate:
    """The rate that falls to its final fraction as `shape(progress)` does from 1 to 0, of a progress from 0 to 1."""
    clock, floor = _clock(schedule, stages), schedule.final_fraction
    begin = 0 if schedule.decay_counts_warmup else clock(schedule.warmup(total_steps))
    decay = clock(schedule.decay_steps or total_steps) - begin

    def factor(now):
        return floor + (1 - floor) * shape(jnp.clip((now - begin) / max(decay, 1), 0.0, 1.0))

    return _warmed_up(schedule, total_steps, clock, factor)


def _warmed_up(schedule: RampedSchedule, total_steps: int, clock: Callable, factor: Callable) -> Rate:
    """The rate that rises to the peak at the end of the warm-up, and is `factor(now)` of it from there on."""
    warmup = clock(schedule.warmup(total_steps))

    def rate(step):
        now = clock(jnp.asarray(step, jnp.float32))
        return schedule.learning_rate * jnp.where(now < warmup, now / max(warmup, 1), factor(now))

    return rate


def _clock(schedule: ConstantSchedule | DecayingSchedule, stages: Sequence[Stage]) -> Callable:
    """A step, a number or an array, → what warm-up and decay count: it, or the tokens read by then.

    The last stage goes on for ever.
    """
    if not schedule.by_tokens:
        return lambda step: step
    steps = np.array([*(stage.first_step for stage in stages), 2**30])
    tokens = np.cumsum([0.0, *(np.diff(steps) * [stage.batch_size * stage.length for stage in stages])])
    return lambda step: (jnp if isinstance(step, jax.Array) else np).interp(step, steps, tokens)
