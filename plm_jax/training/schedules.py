"""Schedules of the learning rate: their settings, and the rate as a function of the number of finished steps.

All kinds except `rsqrt` can begin with a linear warm-up, in which the rate rises from 0 at step 0. Rates are computed
on the host, in float32, and passed to the compiled step as a number. A change of schedule therefore does not recompile
the step.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

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

    A rate that uses JAX runs on the host's CPU, if JAX has it as a platform. It then does not wait for the
    accelerator's current step.

    Args:
      rate: any function of the step; the step is passed as a NumPy integer.

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
      learning_rate: peak learning rate; for `rsqrt` and `rsqrt_warmup`, the factor in the formula.
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
    """The base of schedules that begin with a linear warm-up.

    Attributes:
      warmup_steps: number of steps in which the rate rises linearly from 0 to its peak; 0: no warm-up, unless
        `warmup_fraction` is set.
      warmup_fraction: length of the warm-up as a fraction of all steps, as an alternative to `warmup_steps`.
      learning_rate: peak learning rate.
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
        """Returns the number of steps of the warm-up, 0 without a warm-up."""
        return self.warmup_steps or round(self.warmup_fraction * total_steps)


@dataclass(frozen=True)
class ConstantSchedule(RampedSchedule):
    """A linear warm-up, then a constant rate.

    Attributes:
      by_tokens: whether the warm-up progresses with the number of tokens read instead of the number of steps.
    """

    kind: ClassVar[str] = "constant"
    by_tokens: bool = False

    @override
    def rate(self, total_steps: int, phases: Sequence[Phase] = ()) -> Rate:
        return _warmed_up(self, total_steps, _clock(self, phases), lambda now: np.float32(1.0))


@dataclass(frozen=True)
class DecayingSchedule(RampedSchedule):
    """The base of schedules in which the rate falls after the warm-up and then stays constant.

    Attributes:
      decay_steps: step, counted from the start of the run, at which the rate reaches `final_fraction` of its peak; 0:
        the last step.
      final_fraction: final rate as a fraction of the peak.
      decay_counts_warmup: whether the decay starts at step 0 instead of at the end of the warm-up; the rate then drops
        slightly when the warm-up ends, as in BERT (google-research/bert, optimization.py).
      by_tokens: whether warm-up and decay progress with the number of tokens read instead of the number of steps, so
        that the rate does not fall too early if the batch size grows (GPT-3). The end of the warm-up and the end of the
        decay are still set in steps.
    """

    decay_steps: ranges.StepsOrZero = 0
    final_fraction: ranges.Share = 0.0
    decay_counts_warmup: bool = False
    by_tokens: bool = False


@dataclass(frozen=True)
class LinearSchedule(DecayingSchedule):
    """A linear warm-up, then a linear decay."""

    kind: ClassVar[str] = "linear"

    @override
    def rate(self, total_steps: int, phases: Sequence[Phase] = ()) -> Rate:
        return _decaying(self, total_steps, phases, lambda progress: 1 - progress)


@dataclass(frozen=True)
class CosineSchedule(DecayingSchedule):
    """A linear warm-up, then a cosine decay."""

    kind: ClassVar[str] = "cosine"

    @override
    def rate(self, total_steps: int, phases: Sequence[Phase] = ()) -> Rate:
        return _decaying(self, total_steps, phases, lambda progress: 0.5 * (1 + np.cos(np.float32(np.pi) * progress)))


@dataclass(frozen=True)
class WsdSchedule(RampedSchedule):
    """A linear warm-up, then a constant rate, and a decay at the end: warmup-stable-decay (Hu et al. 2024).

    Attributes:
      cooldown_steps: number of steps at the end of the run in which the rate falls.
      cooldown_fraction: length of the cooldown as a fraction of all steps, as an alternative to `cooldown_steps`.
      shape: shape of the decay: `linear`, or `sqrt` for 1 − √progress (Hägele et al. 2024; ModernBERT).
      final_fraction: final rate as a fraction of the peak.
      by_tokens: whether warm-up and decay progress with the number of tokens read instead of the number of steps.
    """

    kind: ClassVar[str] = "wsd"
    cooldown_steps: ranges.StepsOrZero = 0
    cooldown_fraction: ranges.ShareBelowOne = 0.0
    shape: Literal["linear", "sqrt"] = "linear"
    final_fraction: ranges.Share = 0.0
    by_tokens: bool = False

    def __post_init__(self):
        super().__post_init__()
        if bool(self.cooldown_steps) == bool(self.cooldown_fraction):
            raise UserError(
                f"config.schedule has cooldown_steps {self.cooldown_steps} and cooldown_fraction "
                f"{self.cooldown_fraction}: set one of them above 0"
            )

    @override
    def rate(self, total_steps: int, phases: Sequence[Phase] = ()) -> Rate:
        clock, floor = _clock(self, phases), self.final_fraction
        cooldown = self.cooldown_steps or round(self.cooldown_fraction * total_steps)
        begin, end = clock(max(0, total_steps - cooldown)), clock(total_steps)

        def factor(now):
            progress = np.clip(np.float32((now - begin) / max(end - begin, 1)), 0, 1)
            return 1 - (1 - floor) * (progress if self.shape == "linear" else np.sqrt(progress))

        return _warmed_up(self, total_steps, clock, factor)


@dataclass(frozen=True)
class RsqrtSchedule(Schedule):
    """learning_rate / sqrt(max(step, warmup_steps)), without a linear warm-up (T5, Raffel et al. 2020 §3.1.2).

    Attributes:
      learning_rate: factor in the formula, not the peak.
      warmup_steps: number of steps in which the rate is constant before it decays; 0 counts as 1.
    """

    kind: ClassVar[str] = "rsqrt"
    warmup_steps: ranges.StepsOrZero = 0

    @override
    def rate(self, total_steps: int, phases: Sequence[Phase] = ()) -> Rate:
        flat = np.float32(max(self.warmup_steps, 1))
        return lambda step: self.learning_rate / np.sqrt(np.maximum(np.float32(step), flat))


@dataclass(frozen=True)
class RsqrtWarmupSchedule(Schedule):
    """learning_rate · min(step^-0.5, step · warmup_steps^-1.5), with a linear warm-up (Vaswani et al. 2017 §5.3).

    Attributes:
      learning_rate: factor in the formula, not the peak.
      warmup_steps: number of steps in which the rate rises linearly from 0 to its peak; 0 counts as 1.
    """

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
    """Returns a rate with a warm-up and a decay from the peak to the final rate.

    Args:
      shape: function that falls from 1 to 0 while its argument, the progress of the decay, rises from 0 to 1.
    """
    clock, floor = _clock(schedule, phases), schedule.final_fraction
    begin = 0 if schedule.decay_counts_warmup else clock(schedule.warmup(total_steps))
    decay = clock(schedule.decay_steps or total_steps) - begin

    def factor(now):
        return floor + (1 - floor) * shape(np.clip(np.float32((now - begin) / max(decay, 1)), 0, 1))

    return _warmed_up(schedule, total_steps, clock, factor)


def _warmed_up(schedule: RampedSchedule, total_steps: int, clock: Callable, factor: Callable) -> Rate:
    """Returns a rate that rises linearly to the peak and, after the warm-up, is `factor(now)` times the peak."""
    warmup = clock(schedule.warmup(total_steps))

    def rate(step):
        now = clock(step)
        return schedule.learning_rate * np.where(now < warmup, np.float32(now / max(warmup, 1)), factor(now))

    return rate


def _clock(schedule: ConstantSchedule | DecayingSchedule | WsdSchedule, phases: Sequence[Phase]) -> Callable:
    """Returns a function from a number of steps to the time of a schedule: tokens with `by_tokens`, otherwise steps.

    A step after the end of the last phase has as many tokens as a step of the last phase.
    """
    if not schedule.by_tokens:
        return np.float32
    steps = np.array([*(phase.first_step for phase in phases), 2**30])
    tokens = np.cumsum([0.0, *(np.diff(steps) * [phase.batch_size * phase.length for phase in phases])])
    return lambda step: np.float32(np.interp(step, steps, tokens))
