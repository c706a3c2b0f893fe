"""Callbacks of the training loop, and the context that the loop shares with the callbacks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from plm_jax import config
from plm_jax.common.errors import Interrupted
from plm_jax.runs.coordination import Decision
from plm_jax.training.program import Program
from plm_jax.training.state import TrainState


@dataclass
class TrainingContext:
    """Current point of a run. The loop advances it.

    Callbacks read it and may set `state`, `num_steps`, `decision` and `validation`.

    Attributes:
      phase: phase of the current step.
      program: program of that phase.
      state: state after `step` steps.
      step: number of finished steps.
      num_steps: number of steps after which the run is finished.
      metrics: metrics of the last step, which the devices may still be computing; empty before the first step.
      batch: global batch of the last step; empty before the first step.
      data_wait_seconds: time that this host waited for the last batch.
      decision: agreement of the processes on what to do after this step.
      validation: metrics of the validation after this step, or None if there was none.
    """

    phase: config.Phase
    program: Program
    state: TrainState
    step: int
    num_steps: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    batch: Mapping[str, Any] = field(default_factory=dict)
    data_wait_seconds: float = 0.0
    decision: Decision = field(default_factory=Decision)
    validation: Mapping[str, float] | None = None

    @property
    def is_last_step(self) -> bool:
        """Whether all steps of the run are finished."""
        return self.step == self.num_steps


class Callback:
    """Actions at fixed points of the training loop; each method does nothing by default.

    The loop calls the callbacks in the order of their list, in every process of a job.
    """

    def begin_phase(self, context: TrainingContext) -> None:
        """Runs before the first step of a phase."""

    def before_step(self, context: TrainingContext) -> None:
        """Runs before step `context.step + 1` is dispatched."""

    def after_step(self, context: TrainingContext) -> None:
        """Runs after step `context.step` was dispatched."""

    def end_phase(self, context: TrainingContext) -> None:
        """Runs after the last step of a phase."""


class Stop(Callback):
    """Callback that ends the run after the step at which the processes agreed to stop, by raising `Interrupted`.

    It must follow the callback that saves.
    """

    @override
    def after_step(self, context: TrainingContext) -> None:
        if context.decision.stop and not context.is_last_step:
            reason, step = context.decision.stop, context.step
            raise Interrupted(f"stopped by {reason} after step {step}, which is saved: the same command resumes")
