"""Saves of a run: when a save is due, and what happens if it fails."""

import sys
import time
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from plm_jax import config
from plm_jax.common.errors import UserError, describe
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import coordination
from plm_jax.runs.callbacks import Callback, TrainingContext
from plm_jax.runs.checkpoints import Checkpoints
from plm_jax.runs.coordination import Coordinator
from plm_jax.runs.goodput import Goodput
from plm_jax.runs.interruption import Interruption
from plm_jax.runs.metrics_logger import MetricsLogger
from plm_jax.runs.selection import Selection
from plm_jax.runs.task_evaluation import TaskEvaluation
from plm_jax.runs.telemetry import Telemetry
from plm_jax.training import mesh as meshes
from plm_jax.training.program import fitted
from plm_jax.training.state import TrainState


class Coordinate(Callback):
    """Callback with which the processes of a job agree on how to react to failed saves and to requests to stop."""

    def __init__(
        self,
        coordinator: Coordinator,
        checkpoints: Checkpoints,
        interruption: Interruption,
        telemetry: Telemetry | None,
    ):
        """Prepares the callback; `telemetry` reports failures and is None in every process except the first."""
        self._coordinator, self._checkpoints = coordinator, checkpoints
        self._interruption, self._telemetry = interruption, telemetry

    @override
    def after_step(self, context: TrainingContext) -> None:
        """Sets `context.decision`: whether an extra save follows this step, and whether the run ends.

        The decision is the same in all processes.

        Raises:
          UserError: too many saves failed in a row.
        """
        if failure := self._checkpoints.failure():
            _report_failure(self._telemetry, context.step, f"{failure}; training continues")
            self._coordinator.report_failure(failure)
        _report_warning(self._telemetry, context.step, self._checkpoints)
        if self._interruption.reason:
            self._coordinator.request_stop(self._interruption.reason)
        context.decision = self._coordinator.decide(context.step)
        if context.decision.failed:
            raise UserError(
                f"{context.decision.failed}: make sure that {self._checkpoints.directory} can be written, and run "
                "the same command again, which resumes from the last checkpoint"
            )


class Save(Callback):
    """Callback that saves the checkpoints and the best weights of a run.

    A failed save of a checkpoint is retried later, while the run continues. At the end of the run, the callback waits
    and retries at once. A failed save of the best weights is not retried.
    """

    def __init__(
        self,
        settings: config.CheckpointConfig,
        checkpoints: Checkpoints,
        coordinator: Coordinator,
        logger: MetricsLogger,
        goodput: Goodput,
        selection: Selection | None,
        describe: Callable[[TrainingContext], dict[str, Any]],
        tasks: TaskEvaluation,
        telemetry: Telemetry | None,
    ):
        """Prepares to save.

        Args:
          logger: writes the row of metrics of a step before the checkpoint of this step is saved.
          selection: best weights, or None if the run selects none.
          describe: function from the context to the `meta` of a checkpoint.
          tasks: evaluation that scores the saved checkpoints.
          telemetry: files of metrics, or None in every process except the first.
        """
        self._settings, self._checkpoints, self._coordinator = settings, checkpoints, coordinator
        self._logger, self._goodput, self._selection = logger, goodput, selection
        self._describe, self._tasks, self._telemetry = describe, tasks, telemetry

    @override
    def after_step(self, context: TrainingContext) -> None:
        step, decision, selection = context.step, context.decision, self._selection
        is_best = False
        if selection and context.validation is not None:
            is_best = selection.update(step, context.validation)
            if selection.has_stopped(step):
                context.num_steps = step
        is_due = context.is_last_step or decision.save or step % self._settings.save_every == 0
        if is_due:
            self._logger.flush()
        if not (is_due or is_best):
            return
        with self._goodput.measure_save():
            published = fitted(context.state, context.program.published_state, meshes.refitted)
            meta = self._describe(context) | {"selected": selection.state() if selection else {}}
            if selection and is_best:
                selection.save(step, published.params, meta)
            if is_due:
                self.save(step, published, meta, waits=context.is_last_step or bool(decision.stop))

    def save(self, step: int, state: TrainState, meta: dict[str, Any], waits: bool) -> None:
        """Begins to save a checkpoint, and starts the evaluation of tasks.

        Args:
          step: number of finished steps.
          state: state in the shapes of checkpoints.
          meta: `meta` of the checkpoint.
          waits: whether to wait until the save has finished, and to retry a failed save.

        Raises:
          UserError: `waits` is set, and `checkpoint.max_failures` attempts failed.
        """
        self._coordinator.begin_save()
        self._sync(step)
        self._checkpoints.save(step, state, meta)
        if self._telemetry:
            self._tasks.start(self._telemetry.say)
        if waits:
            self._finish(step, state, meta)

    def _sync(self, step: int) -> None:
        """Writes the rows up to a step to disk, or reports that they could not be written."""
        try:
            if self._telemetry:
                self._telemetry.sync()
        except (OSError, UserError) as error:
            line = f"the rows of metrics.jsonl up to step {step} could not be written ({describe(error)})"
            _report_failure(self._telemetry, step, line)

    def _finish(self, step: int, state: TrainState, meta: dict[str, Any]) -> None:
        failure, attempts = None, self._settings.max_failures
        for attempt in range(1, attempts + 1):
            self._checkpoints.wait()
            failure = self._checkpoints.failure()
            if not folders.anywhere(failure is not None):
                _report_warning(self._telemetry, step, self._checkpoints)
                return
            failure = failure or f"checkpoint {step} could not be saved by another process"
            is_last = attempt == attempts
            _report_failure(self._telemetry, step, failure if is_last else f"{failure}; retrying")
            if not is_last:
                time.sleep(min(coordination.BACK_OFF * 2 ** (attempt - 1), coordination.LONGEST))
                self._sync(step)
                self._checkpoints.save(step, state, meta)
        raise UserError(
            f"{failure}, after {attempts} attempts: make sure that {self._checkpoints.directory} can be written, and "
            "run the same command again, which resumes from the last checkpoint"
        )


def _report_warning(telemetry: Telemetry | None, step: int, checkpoints: Checkpoints) -> None:
    if warning := checkpoints.warning():
        _report_failure(telemetry, step, warning)


def _report_failure(telemetry: Telemetry | None, step: int, failure: str) -> None:
    if telemetry:
        telemetry.say(failure)
        telemetry.write({"step": step, "checkpoint/error": failure})
    else:
        print(failure, file=sys.stderr, flush=True)
