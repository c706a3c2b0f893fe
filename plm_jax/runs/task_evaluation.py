"""`evaluation.tasks`: `evaluate --watch` beside a run, in a process of its own, on the host's CPU.

It scores each checkpoint that the run seals, while the run goes on; what it may need of TensorFlow stays out of here.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable

import jax

from plm_jax import config
from plm_jax.common import children, progress, users
from plm_jax.common.errors import UserError, nearest


class TaskEvaluation:
    """Scores the checkpoints of a run; a context manager, which at the end of a run waits until all are scored.

    What ends the run otherwise ends it, too: begun again, it goes on where it was.
    """

    def __init__(self, run: config.Run, workdir: str):
        """Raises `UserError` if `evaluation.tasks` names no source."""
        for task in run.evaluation.tasks:
            name = task.partition(":")[0]
            if name not in run.data.sources:
                raise UserError(f"config.evaluation.tasks names '{name}': {nearest(name, run.data.sources)}")
        tasks = ",".join(run.evaluation.tasks)
        self._flags = [f"--checkpoint={workdir}", f"--tasks={tasks}", "--watch", *users.flags(run)]
        self._is_asked = bool(run.evaluation.tasks) and jax.process_index() == 0
        self._process: subprocess.Popen | None = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, frames):
        del error, frames
        if self._process is None:
            return
        if kind is None:
            if self._process.poll():  # There is something left to score.
                self.look(_say)
            with progress.doing("evaluating the tasks of the last checkpoints"):
                self._process.wait()
            if died := self._died():
                _say(f"{died}; to go on: plm_jax evaluate {' '.join(self._flags)}")
        else:
            self._process.terminate()
            self._process.wait()

    def look(self, say: Callable[[str], None]) -> None:
        """Begins, and begins again what has died, which is said: to be called when there is something to score."""
        if not self._is_asked or (self._process and self._process.poll() is None):
            return
        if died := self._died():
            say(f"{died}; it begins again")
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        # TensorFlow, too, would take memory of the GPUs.
        on_host = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        self._process = children.start(
            children.command("evaluate", *self._flags), children.alone() | on_host, self._output.fileno()
        )

    def _died(self) -> str | None:
        """What is to be said of a process that has ended before the run."""
        if self._process is None or self._process.returncode == 0:
            return None
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - 4096))
        lines = self._output.read().decode("utf-8", "replace").strip().splitlines()
        last = lines[-1].removeprefix("error: ") if lines else f"status {self._process.returncode}"
        return f"the evaluation of config.evaluation.tasks ended ({last})"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
