"""The saves of a run: when they are due, and what becomes of those that fail."""

import time
from typing import Any

from plm_jax import config
from plm_jax.common.errors import UserError, told
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import coordination as decisions
from plm_jax.runs.checkpoints import Checkpoints
from plm_jax.runs.coordination import Decision, Decisions
from plm_jax.runs.interruption import Interruption
from plm_jax.runs.task_evaluation import TaskEvaluation
from plm_jax.runs.telemetry import Telemetry
from plm_jax.training.state import TrainState


class Saving:
    """Saves as the config, the clock and signals have it, and again where it failed, while the run goes on."""

    def __init__(
        self,
        settings: config.CheckpointConfig,
        checkpoints: Checkpoints,
        telemetry: Telemetry | None,
        interruption: Interruption,
        name: str,
        tasks: TaskEvaluation,
    ):
        """`name` is one that no other run of the job has; `tasks` scores what is saved."""
        self._settings, self._checkpoints, self._telemetry = settings, checkpoints, telemetry
        self._interruption, self._decisions = interruption, Decisions(settings, name)
        self._step, self._tasks = 0, tasks

    def after(self, step: int) -> Decision:
        """What is to be done after a step, the same in all processes.

        Raises:
          UserError: too many saves failed in a row.
        """
        self._step = step
        if failure := self._checkpoints.failure():
            self._failed(f"{failure}; training goes on")
            self._decisions.save_failed(failure)
        self._tell_left()
        if self._interruption.reason:
            self._decisions.ask_to_stop(self._interruption.reason)
        decision = self._decisions.after(step)
        if decision.failed:
            raise UserError(
                f"{decision.failed}: see to it that {self._checkpoints.directory} can be written, and run "
                "the same command again, which goes on from the last checkpoint"
            )
        return decision

    def save(self, step: int, state: TrainState, meta: dict[str, Any], is_last: bool) -> None:
        """Begins to save; of the last step it returns when that is done.

        Raises:
          UserError: that of the last step failed too often.
        """
        self._decisions.saving()
        self._sync()
        self._checkpoints.save(step, state, meta)
        if self._telemetry:
            self._tasks.look(self._telemetry.say)
        if is_last:
            self._insist(step, state, meta)

    def _sync(self) -> None:
        """Rows up to the step are on disk before its checkpoint begins."""
        try:
            if self._telemetry:
                self._telemetry.sync()
        except (OSError, UserError) as error:
            self._failed(f"the rows of metrics.jsonl up to step {self._step} could not be written ({told(error)})")

    def _insist(self, step: int, state: TrainState, meta: dict[str, Any]) -> None:
        for number in range(1, self._settings.max_failures + 1):
            self._checkpoints.wait()
            failure = self._checkpoints.failure()
            if not folders.anywhere(failure is not None):
                self._tell_left()
                return
            failure = failure or f"checkpoint {step} could not be saved by another process"
            self._failed(failure if number == self._settings.max_failures else f"{failure}; it is tried again")
            if number < self._settings.max_failures:
                time.sleep(min(decisions.BACK_OFF * 2 ** (number - 1), decisions.LONGEST))
                self._sync()
                self._checkpoints.save(step, state, meta)
        raise UserError(
            f"{failure}, after {number} attempts: see to it that {self._checkpoints.directory} can be written, and run "
            "the same command again, which goes on from the last checkpoint"
        )

    def _tell_left(self) -> None:
        if left := self._checkpoints.left():
            self._failed(left)

    def _failed(self, failure: str) -> None:
        if self._telemetry:
            self._telemetry.say(failure)
            self._telemetry.write({"step": self._step, "checkpoint/error": failure})
