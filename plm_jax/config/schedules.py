"""The learning rate of each step.

Whatever the kind, the rate rises linearly from 0 at step 0 to its peak at `warmup_steps`; `rsqrt` alone has no ramp.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.common.phases import Phase
from plm_jax.common.roles import Role


@dataclass(frozen=True)
class Schedule(Role):
    """The learning rate as a function of the step.

    Attributes:
      learning_rate: its peak, or what the kind's formula scales.
    """

    learning_rate: Annotated[float, ranges.Range(0, 1e4)]

    def rate(self, total_steps: int, stages: Sequence[Phase] = ()) -> Callable[[Any], Any]:
        """Returns the learning rate as a function of the number of finished steps; JAX is imported here.

        The training loop calls the function on the host before each step, so it may be any Python code. For a given
        step it must return the same finite number in every process.

        Args:
          total_steps: `train.steps`.
          stages: stages of the run, for schedules that count tokens.
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

    def rate(self, total_steps: int, stages: Sequence[Phase] = ()) -> Callable[[Any], Any]:
        """As the base says."""
        from plm_jax.training import schedules

        return schedules.constant(self, total_steps, stages)


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

    def rate(self, total_steps: int, stages: Sequence[Phase] = ()) -> Callable[[Any], Any]:
        """As the base says."""
        from plm_jax.training import schedules

        return schedules.linear(self, total_steps, stages)


@dataclass(frozen=True)
class CosineSchedule(DecayingSchedule):
    """The rate falls along half a cosine."""

    kind: ClassVar[str] = "cosine"

    def rate(self, total_steps: int, stages: Sequence[Phase] = ()) -> Callable[[Any], Any]:
        """As the base says."""
        from plm_jax.training import schedules

        return schedules.cosine(self, total_steps, stages)


@dataclass(frozen=True)
class RsqrtSchedule(Schedule):
    """learning_rate / sqrt(max(step, warmup_steps)), without a ramp, as T5 had it (Raffel et al. 2020 §3.1.2)."""

    kind: ClassVar[str] = "rsqrt"
    warmup_steps: ranges.StepsOrZero = 0

    def rate(self, total_steps: int, stages: Sequence[Phase] = ()) -> Callable[[Any], Any]:
        """As the base says."""
        from plm_jax.training import schedules

        return schedules.rsqrt(self)


@dataclass(frozen=True)
class RsqrtWarmupSchedule(Schedule):
    """learning_rate · min(step^-0.5, step · warmup_steps^-1.5), with a ramp (Vaswani et al. 2017 §5.3)."""

    kind: ClassVar[str] = "rsqrt_warmup"
    warmup_steps: ranges.StepsOrZero = 0

    def rate(self, total_steps: int, stages: Sequence[Phase] = ()) -> Callable[[Any], Any]:
        """As the base says."""
        from plm_jax.training import schedules

        return schedules.rsqrt_warmup(self)
