"""Schedules of the learning rate: their settings, and the rate by the number of finished steps.

Whatever the kind, the rate rises linearly from 0 at step 0 to its peak at `warmup_steps`; `rsqrt` alone has no ramp.
Rates are computed on the host, in float32, and passed to the compiled step as a number, so a change of schedule does
not recompile it.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import numpy as np
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.common.phases import Phase
from plm_jax.common.roles import Role

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


@dataclass(frozen=True)
class Schedule(Role):
    """The learning rate as a function of the step.

    Attributes:
      learning_rate: its peak, or what the kind's formula scales.
    """

    learning_rate: Annotated[float, ranges.Range(0, 1e4)]

    def rate(self, total_steps: int, phases: Sequence[Phase] = ()) -> Rate:
        """Returns the learning rate as a function of the number of finished steps.

        The training loop calls the function on the host before each step, so it may be any Python code. For a given
        step it must return the same finite number in every process.

        Args:
          total_steps: `train.steps`.
          phases: phases of the run, for schedules that count tokens.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class RampedSchedule(Schedule):
    """The rate rises to its peak first.

    Attributes:
      warmup_steps: how long.
      warmup_fraction: how long, as a share of all steps; instead of `warmup_steps`.
    """

    warmup_steps: ranges.StepsOrZero = 0
    warmup_fraction: ranges.ShareBelowOne = 0.0

    def __post_init__(self):
        if self.warmup_steps and self.warmup_fraction:
            raise UserError(
                f"config.schedule has warmup_steps {self.warmup_steps} and warmup_fraction {self.warmup_fraction}: "
                "set one of them to 0"
            )

    def warmup(self, total_steps: int) -> int:
        """The step at which the rate is at its peak."""
        return self.warmup_steps or round(self.warmup_fraction * total_steps)


@dataclass(frozen=True)
class ConstantSchedule(RampedSchedule):
    """The peak from the warm-up on.

    Attributes:
      by_tokens: the warm-up goes by the tokens read so far and not evenly from step to step.
    """

    kind: ClassVar[str] = "constant"
    by_tokens: bool = False

    @override
    def rate(self, total_steps: int, phases: Sequence[Phase] = ()) -> Rate:
        return _warmed_up(self, total_steps, _clock(self, phases), lambda now: np.float32(1.0))


@dataclass(frozen=True)
class DecayingSchedule(RampedSchedule):
    """After the warm-up the rate falls, then it is flat.

    Attributes:
      decay_steps: where it has fallen to `final_fraction` of the peak (0: at train.steps).
      decay_counts_warmup: the decay counts from step 0 and not from the warm-up's end, where the rate then steps down
        a little, as BERT's does (google-research/bert, optimization.py).
      by_tokens: warm-up and decay go by the tokens read so far and not evenly from step to step, so that a batch that
        grows does not make the rate fall too soon (GPT-3). Where they end is given in steps all the same.
    """

    decay_steps: ranges.StepsOrZero = 0
    final_fraction: ranges.Share = 0.0
    decay_counts_warmup: bool = False
    by_tokens: bool = False


@dataclass(frozen=True)
class LinearSchedule(DecayingSchedule):
    """The rate falls in a straight line."""

    kind: ClassVar[str] = "linear"

    @override
    def rate(self, total_steps: int, phases: Sequence[Phase] = ()) -> Rate:
        return _decaying(self, total_steps, phases, lambda progress: 1 - progress)


@dataclass(frozen=True)
class CosineSchedule(DecayingSchedule):
    """The rate falls along half a cosine."""

    kind: ClassVar[str] = "cosine"

    @override
    def rate(self, total_steps: int, phases: Sequence[Phase] = ()) -> Rate:
        return _decaying(self, total_steps, phases, lambda progress: 0.5 * (1 + np.cos(np.float32(np.pi) * progress)))


@dataclass(frozen=True)
class RsqrtSchedule(Schedule):
    """learning_rate / sqrt(max(step, warmup_steps)), without a ramp, as T5 had it (Raffel et al. 2020 §3.1.2)."""

    kind: ClassVar[str] = "rsqrt"
    warmup_steps: ranges.StepsOrZero = 0

    @override
    def rate(self, total_steps: int, phases: Sequence[Phase] = ()) -> Rate:
        flat = np.float32(max(self.warmup_steps, 1))
        return lambda step: self.learning_rate / np.sqrt(np.maximum(np.float32(step), flat))


@dataclass(frozen=True)
class RsqrtWarmupSchedule(Schedule):
    """learning_rate · min(step^-0.5, step · warmup_steps^-1.5), with a ramp (Vaswani et al. 2017 §5.3)."""

    kind: ClassVar[str] = "rsqrt_warmup"
    warmup_steps: ranges.StepsOrZero = 0

    @override
    def rate(self, total_steps: int, phases: Sequence[Phase] = ()) -> Rate:
        flat = np.float32(max(self.warmup_steps, 1))

        def rate(step):
            step = np.float32(step)
            return np.minimum(step / flat, 1) * self.learning_rate / np.sqrt(np.maximum(step, flat))

        return rate


def _decaying(schedule: DecayingSchedule, total_steps: int, phases: Sequence[Phase], shape: Callable) -> Rate:
    """The rate that falls to its final fraction as `shape(progress)` does from 1 to 0, of a progress from 0 to 1."""
    clock, floor = _clock(schedule, phases), schedule.final_fraction
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


def _clock(schedule: ConstantSchedule | DecayingSchedule, phases: Sequence[Phase]) -> Callable:
    """A step, a number or an array, → what warm-up and decay count: it, or the tokens read by then.

    The last phase goes on for ever.
    """
    if not schedule.by_tokens:
        return np.float32
    steps = np.array([*(phase.first_step for phase in phases), 2**30])
    tokens = np.cumsum([0.0, *(np.diff(steps) * [phase.batch_size * phase.length for phase in phases])])
    return lambda step: np.float32(np.interp(step, steps, tokens))
