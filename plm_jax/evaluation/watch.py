"""Following a run: each checkpoint that it seals is evaluated once, in their order, until the run is finished.

    W/evaluation.jsonl   a row a checkpoint, written at once when all its tasks are done
    W/samples.jsonl      what the model of each checkpoint writes (`samples`)
    W/evaluation/        the rows for TensorBoard, in a folder of its own: it reads one file a folder at a time
    W/watch/             who follows (`common.leases`)

A row says that its checkpoint is done; nothing else is remembered. So a watch that is killed anywhere begins again.
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

# Seconds between two looks at a run directory, and at one in a bucket.
_LOOK, _LOOK_REMOTE = 1.0, 15.0


def follow(
    workdir: str,
    given: config.Run | None = None,
    tasks: Sequence[str] = (),
    found: Callable[[prepared.Metrics], None] = lambda metrics: None,
) -> None:
    """Evaluates the checkpoints of a run directory that are not evaluated yet, and those to come, until it is finished.

    A run that ended before its last step is waited for. A checkpoint that the run removed before it was evaluated, or
    that is damaged, is told and left out.

    Args:
      given: a config whose data they are evaluated on; None: the run's own.
      tasks: as of `prepared.tasks_of`.
      found: is given the metrics of each checkpoint.

    Raises:
      UserError: there is no run, another process follows it, or a task cannot be evaluated.
    """
    if not {"lock", "heartbeat", "checkpoints"} & set(storage.names(workdir)):
        raise UserError(f"{workdir} has no run to watch: give --checkpoint=W, the --workdir of one that has begun")
    with leases.held(os.path.join(workdir, "watch"), f"watches {workdir}"), _Events(workdir) as events:
        _Watch(workdir, given, tasks, found, events).follow()


class _Watch:
    """What is done of a run."""

    def __init__(
        self,
        workdir: str,
        given: config.Run | None,
        tasks: Sequence[str],
        found: Callable[[prepared.Metrics], None],
        events: "_Events",
    ):
        self._workdir, self._given, self._tasks, self._found = workdir, given, tasks, found
        self._directory, self._events = folders.of_run(workdir), events
        # Steps of the checkpoints that there were at the last look, and of them those that are done or left out.
        self._seen: set[int] = set()
        self._left: set[int] = set()
        self._said = ""
        # The tasks, once their caches have been looked at.
        self._checked: list[str] = []

    def follow(self) -> None:
        """Returns when the run is finished, and all is done."""
        look = _LOOK_REMOTE if storage.is_remote(self._workdir) else _LOOK
        while True:
            standing = run_status.standing(self._workdir)  # Before looking: what it saved is there then.
            steps = folders.finished(self._directory)
            for step in sorted(self._seen - self._left - {*steps}):
                self._leave(step, "the run removed it before it was evaluated: raise its config.checkpoint.keep_last")
            self._seen = {*steps}
            self._left &= self._seen  # One that comes again is another.
            missing = self._missing(steps)
            if missing:
                self._evaluate(missing[0])
            elif standing.finished:
                return
            else:
                if not standing.alive:
                    self._say("the run is not running, nor finished: waiting until it is started again")
                time.sleep(look)

    def _missing(self, steps: Sequence[int]) -> list[int]:
        """Those of the steps that are not evaluated."""
        steps = [step for step in steps if step not in self._left]
        if steps:
            wanted = self._wanted()
            rows = read_lines(os.path.join(self._workdir, "evaluation.jsonl"))
            done = {row["step"] for row in rows if all(any(key.startswith(f"{t}/") for key in row) for t in wanted)}
            self._left |= done
        return [step for step in steps if step not in self._left]

    def _wanted(self) -> list[str]:
        """The tasks by their names, of a run that has saved something and so its config."""
        if self._tasks:
            return list(self._tasks)
        if self._given:
            return list(config.read_sources(config.expand_mixtures(self._given)))
        described = run_directory.read(self._workdir)
        if described is None:
            raise UserError(f"{self._workdir} has checkpoints and no config.json: put it back")
        return list(config.read_sources(config.from_saved(described["config"], described.get("modules"))))

    def _evaluate(self, step: int) -> None:
        checkpoint = str(self._directory / str(step))
        self._say(f"evaluating checkpoint {step}")
        try:
            lm = language_model.load(checkpoint)
        except (UserError, FileNotFoundError) as error:
            if step not in folders.finished(self._directory):
                return  # The next look tells.
            damaged = isinstance(error, sealing.DamagedError)
            if not damaged and storage.exists(os.path.join(checkpoint, "params")):
                raise
            self._leave(step, error.reason if damaged else "its weights are gone")
            return
        run = prepared.run_of(lm, self._given)
        tasks = self._checked = self._checked or prepared.tasks_of(run, self._tasks)
        metrics = prepared.evaluate(lm, run, tasks)
        try:
            written = {task: samples.of_task(lm, run, task) for task in tasks if metrics[task].get("tokens") != 0}
            if any(written.values()):
                samples.record(self._workdir, step, written)
        except UserError as error:
            self._say(f"there are no samples of checkpoint {step}: {error}")
        perplexity.EvaluationLog(self._workdir, step).write(metrics)
        self._left.add(step)
        self._events.add(step, metrics)
        self._found(metrics)

    def _leave(self, step: int, why: str) -> None:
        self._left.add(step)
        self._say(f"checkpoint {step} is left out: {why}")

    def _say(self, line: str) -> None:
        if line != self._said:
            print(line, file=sys.stderr, flush=True)
        self._said = line


class _Events:
    """The rows of evaluation.jsonl for TensorBoard, where what there was is written anew; a context manager."""

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
        """Adds a checkpoint's metrics."""
        numbers = {f"{task}/{name}": value for task, found in metrics.items() for name, value in found.items()}
        self._events.add(step, {name: value for name, value in numbers.items() if isinstance(value, float)})
        self._events.flush()
        if self._local != self._folder:
            storage.upload(self._local, storage.names(self._local), self._folder)
