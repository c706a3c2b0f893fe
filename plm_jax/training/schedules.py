"""Learning rates by the number of finished steps.

`config.schedules` has the settings and describes each kind; `stages` are those of the run. Rates are computed on the
host, in float32, and passed to the compiled step as a number, so a change of schedule does not recompile it.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from plm_jax.common.errors import UserError
from plm_jax.common.phases import Phase
from plm_jax.config.schedules import (
    ConstantSchedule,
    CosineSchedule,
    DecayingSchedule,
    LinearSchedule,
    RampedSchedule,
    RsqrtSchedule,
    RsqrtWarmupSchedule,
)

Rate = Callable[[Any], Any]


def at(rate: Rate, step: int) -> np.float32:
    """Returns the learning rate after `step` finished steps.

    A rate that uses JAX runs on the host's CPU, so that it does not wait for the accelerator's current step.

    Args:
      rate: any function of the step, which is a NumPy integer.

    Raises:
      UserError: the rate does not return a finite number.
    """
    with _on_host(), np.errstate(all="ignore"):
        value = rate(np.int64(step))
        try:
            number = np.float32(np.asarray(value).item())
        except (TypeError, ValueError):
            number = np.float32(np.nan)
    if not np.isfinite(number):
        raise UserError(f"config.schedule returns {value} as the rate of step {step + 1}: return a finite number")
    return number


def _on_host() -> contextlib.AbstractContextManager:
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS does not include the CPU.
        return contextlib.nullcontext()


def constant(schedule: ConstantSchedule, total_steps: int, stages: Sequence[Phase] = ()) -> Rate:
    """The rate of a constant schedule, once it is warm."""
    return _warmed_up(schedule, total_steps, _clock(schedule, stages), lambda now: np.float32(1.0))


def linear(schedule: LinearSchedule, total_steps: int, stages: Sequence[Phase] = ()) -> Rate:
    """The rate of a schedule that falls in a straight line."""
    return _decaying(schedule, total_steps, stages, lambda progress: 1 - progress)


def cosine(schedule: CosineSchedule, total_steps: int, stages: Sequence[Phase] = ()) -> Rate:
    """The rate of a schedule that falls along half a cosine."""
    return _decaying(schedule, total_steps, stages, lambda progress: 0.5 * (1 + np.cos(np.float32(np.pi) * progress)))


def rsqrt(schedule: RsqrtSchedule) -> Rate:
    """The rate of a schedule that falls with the root of the step and is flat before."""
    flat = np.float32(max(schedule.warmup_steps, 1))
    return lambda step: schedule.learning_rate / np.sqrt(np.maximum(np.float32(step), flat))


def rsqrt_warmup(schedule: RsqrtWarmupSchedule) -> Rate:
    """The rate of a schedule that falls with the root of the step and rises before."""
    flat = np.float32(max(schedule.warmup_steps, 1))

    def rate(step):
        step = np.float32(step)
        return np.minimum(step / flat, 1) * schedule.learning_rate / np.sqrt(np.maximum(step, flat))

    return rate


def _decaying(schedule: DecayingSchedule, total_steps: int, stages: Sequence[Phase], shape: Callable) -> Rate:
    """The rate that falls to its final fraction as `shape(progress)` does from 1 to 0, of a progress from 0 to 1."""
    clock, floor = _clock(schedule, stages), schedule.final_fraction
    begin = 0 if schedule.decay_counts_warmup else clock(schedule.warmup(total_steps))
    decay = clock(schedule.decay_steps or total_steps) - begin

    def factor(now):
        return floor + (1 - floor) * shape(np.clip(np.float32((now - begin) / max(decay, 1)), 0, 1))

    return _warmed_up(schedule, total_steps, clock, factor)


def _warmed_up(schedule: RampedSchedule, total_steps: int, clock: Callable, factor: Callable) -> Rate:
    """The rate that rises to the peak at the end of the warm-up, and is `factor(now)` of it from there on."""
    warmup = clock(schedule.warmup(total_steps))

    def rate(step):
        now = clock(step)
        return schedule.learning_rate * np.where(now < warmup, np.float32(now / max(warmup, 1)), factor(now))

    return rate


def _clock(schedule: ConstantSchedule | DecayingSchedule, stages: Sequence[Phase]) -> Callable:
    """A step, a number or an array, → what warm-up and decay count: it, or the tokens read by then.

    The last stage goes on for ever.
    """
    if not schedule.by_tokens:
        return np.float32
    steps = np.array([*(stage.first_step for stage in stages), 2**30])
    tokens = np.cumsum([0.0, *(np.diff(steps) * [stage.batch_size * stage.length for stage in stages])])
    return lambda step: np.float32(np.interp(step, steps, tokens))
