"""Continuous evaluation: evaluates the checkpoints of a run, in order, until the run is finished.

Files in the run directory W:

    W/evaluation.jsonl   a row is added after a checkpoint is evaluated on all tasks
    W/samples.jsonl      samples of checkpoints (`samples`)
    W/evaluation/        the rows as TensorBoard events; TensorBoard reads only one events file per folder at a time
    W/watch/             lease of the watching process (`common.leases`)

A row with metrics of all tasks marks its checkpoint as done. A watch that was killed can therefore be started again.
"""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from plm_jax import config
from plm_jax.common import leases, sealing, storage
from plm_jax.common.errors import UserError
from plm_jax.evaluation import perplexity, prepared, samples
from plm_jax.inference import language_model
from plm_jax.runs import checkpoint_folders as folders
from plm_jax.runs import run_directory, run_status
from plm_jax.runs.telemetry import Events, read_lines

# Seconds between two checks of a run directory on a file system, and in a bucket.
_POLL_SECONDS, _REMOTE_POLL_SECONDS = 1.0, 15.0


def follow(
    workdir: str,
    run: config.Run | None = None,
    tasks: Sequence[str] = (),
    report: Callable[[prepared.Metrics], None] = lambda metrics: None,
) -> None:
    """Evaluates the checkpoints of a run that are not evaluated yet, including future ones, until the run is finished.

    If the run stops before its last step, waits until it is started again. Reports and skips checkpoints that are
    damaged, or that the run removed before they were evaluated.

    Args:
      workdir: run directory of the watched run.
      run: config on whose data checkpoints are evaluated; None for the config of the watched run.
      tasks: names of tasks; empty for the default tasks of `prepared.resolve_tasks`.
      report: called with the metrics of a checkpoint after its evaluation.

    Raises:
      UserError: there is no run, another process watches the run, or a task cannot be evaluated.
    """
    if not {"lock", "heartbeat", "checkpoints"} & set(storage.names(workdir)):
        raise UserError(f"{workdir} has no run to watch: pass the --workdir of a started run as --checkpoint")
    with leases.held(os.path.join(workdir, "watch"), f"watches {workdir}"), _Events(workdir) as events:
        _Watch(workdir, run, tasks, report, events).follow()


class _Watch:
    """State of a watch: the checkpoints that are evaluated or skipped."""

    def __init__(
        self,
        workdir: str,
        run: config.Run | None,
        tasks: Sequence[str],
        report: Callable[[prepared.Metrics], None],
        events: "_Events",
    ):
        self._workdir, self._run, self._tasks, self._report = workdir, run, tasks, report
        self._directory, self._events = folders.of_run(workdir), events
        # Steps of the checkpoints at the last check, and those among them that are evaluated or skipped.
        self._steps: set[int] = set()
        self._done: set[int] = set()
        self._last_line = ""
        # Tasks, once their caches are checked.
        self._checked: list[str] = []

    def follow(self) -> None:
        """Evaluates checkpoints until the run is finished and every checkpoint is evaluated or skipped."""
        poll_seconds = _REMOTE_POLL_SECONDS if storage.is_remote(self._workdir) else _POLL_SECONDS
        while True:
            status = run_status.standing(self._workdir)  # Read first: a finished run has saved all its checkpoints.
            steps = folders.finished(self._directory)
            for step in sorted(self._steps - self._done - {*steps}):
                self._skip(
                    step, "the run removed it before it was evaluated: raise config.checkpoint.keep_last of the run"
                )
            self._steps = {*steps}
            self._done &= self._steps  # A step that is saved again is another checkpoint.
            missing = self._missing(steps)
            if missing:
                self._evaluate(missing[0])
            elif status.finished:
                return
            else:
                if not status.alive:
                    self._print("the run is neither running nor finished: waiting until it is started again")
                time.sleep(poll_seconds)

    def _missing(self, steps: Sequence[int]) -> list[int]:
        """Returns the steps that are neither evaluated nor skipped."""
        steps = [step for step in steps if step not in self._done]
        if steps:
            expected_tasks = self._expected_tasks()
            rows = read_lines(os.path.join(self._workdir, "evaluation.jsonl"))
            done = {
                row["step"] for row in rows if all(any(key.startswith(f"{t}/") for key in row) for t in expected_tasks)
            }
            self._done |= done
        return [step for step in steps if step not in self._done]

    def _expected_tasks(self) -> list[str]:
        """Returns the names of the tasks; by default, the sources of the given config or of the run's saved config."""
        if self._tasks:
            return list(self._tasks)
        if self._run:
            return list(config.read_sources(config.expand_mixtures(self._run)))
        described = run_directory.read(self._workdir)
        if described is None:
            raise UserError(f"{self._workdir} has checkpoints but no config.json: restore that file")
        return list(config.read_sources(config.from_saved(described["config"], described.get("modules"))))

    def _evaluate(self, step: int) -> None:
        checkpoint = str(self._directory / str(step))
        self._print(f"evaluating checkpoint {step}")
        try:
            lm = language_model.load(checkpoint)
        except (UserError, FileNotFoundError) as error:
            if step not in folders.finished(self._directory):
                return  # The next check reports it.
            damaged = isinstance(error, sealing.DamagedError)
            if not damaged and storage.exists(os.path.join(checkpoint, "params")):
                raise
            self._skip(step, error.reason if damaged else "its weights are gone")
            return
        run = prepared.resolve_run(lm, self._run)
        tasks = self._checked = self._checked or prepared.resolve_tasks(run, self._tasks)
        metrics = prepared.evaluate(lm, run, tasks)
        try:
            task_samples = {
                task: samples.sample_task(lm, run, task) for task in tasks if metrics[task].get("tokens") != 0
            }
            if any(task_samples.values()):
                samples.write(self._workdir, step, task_samples)
        except UserError as error:
            self._print(f"checkpoint {step} has no samples: {error}")
        perplexity.EvaluationLog(self._workdir, step).write(metrics)
        self._done.add(step)
        self._events.add(step, metrics)
        self._report(metrics)

    def _skip(self, step: int, reason: str) -> None:
        self._done.add(step)
        self._print(f"checkpoint {step} is skipped: {reason}")

    def _print(self, line: str) -> None:
        if line != self._last_line:
            print(line, file=sys.stderr, flush=True)
        self._last_line = line


class _Events:
    """Context manager that writes existing rows of evaluation.jsonl as TensorBoard events, and adds further events."""

    def __init__(self, workdir: str):
        self._rows, self._folder = os.path.join(workdir, "evaluation.jsonl"), os.path.join(workdir, "evaluation")

    def __enter__(self) -> "_Events":
        with contextlib.ExitStack() as stack:
            storage.remove(self._folder)
            self._local = self._folder
            if storage.is_remote(self._folder):
                self._local = stack.enter_context(tempfile.TemporaryDirectory())
            os.makedirs(self._local, exist_ok=True)
            self._events = Events(self._local, purge_step=None)
            for row in read_lines(self._rows):
                self._events.add(row["step"], {name: value for name, value in row.items() if isinstance(value, float)})
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._exit.close()

    def add(self, step: int, metrics: prepared.Metrics) -> None:
        """Adds the metrics of a checkpoint as events."""
        numbers = {
            f"{task}/{name}": value for task, task_metrics in metrics.items() for name, value in task_metrics.items()
        }
        self._events.add(step, {name: value for name, value in numbers.items() if isinstance(value, float)})
        self._events.flush()
        if self._local != self._folder:
            storage.upload(self._local, storage.names(self._local), self._folder)
