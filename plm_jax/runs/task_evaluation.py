"""Evaluation of `evaluation.tasks` by `evaluate --watch`, in a separate process next to a run, on the host's CPU.

The process evaluates each checkpoint of the run while training continues. The process that trains does not import
TensorFlow.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from typing import Self

import jax

from plm_jax.common import children, progress
from plm_jax.common.errors import UserError, nearest


class TaskEvaluation:
    """Evaluation of a run's checkpoints; a context manager whose exit waits until the evaluation has ended.

    If the evaluation has failed before the exit, it is started once more. An error that ends the run also ends the
    evaluation. The next start of the run continues the evaluation.
    """

    def __init__(self, tasks: Sequence[str], sources: Collection[str], workdir: str, module_flags: Sequence[str]):
        """Prepares the evaluation.

        Args:
          tasks: `evaluation.tasks` of the run; empty: no evaluation.
          sources: names of the run's sources.
          module_flags: flags that load the users' code that the run needs.

        Raises:
          UserError: a task names an unknown source.
        """
        for task in tasks:
            name = task.partition(":")[0]
            if name not in sources:
                raise UserError(f"config.evaluation.tasks names '{name}': {nearest(name, sources)}")
        self._flags = [f"--checkpoint={workdir}", f"--tasks={','.join(tasks)}", "--watch", *module_flags]
        self._is_needed = bool(tasks) and jax.process_index() == 0
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _traceback: object) -> None:
        if self._process is None:
            return
        if kind is None:
            if self._process.poll():  # The process failed, and checkpoints are left to score.
                self.start(_print)
            with progress.doing("evaluating the tasks of the last checkpoints"):
                self._process.wait()
            if died := self._died():
                _print(f"{died}; to resume it, run: plm_jax evaluate {' '.join(self._flags)}")
        else:
            self._process.terminate()
            self._process.wait()

    def start(self, report: Callable[[str], None]) -> None:
        """Starts the evaluation unless it is running, and reports an earlier failure; call this when a save has begun.

        Without tasks, and in every process of the job except the first, it does nothing.
        """
        if not self._is_needed or (self._process and self._process.poll() is None):
            return
        if died := self._died():
            report(f"{died}; it is restarted")
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        # Without this setting, TensorFlow would also reserve memory on the GPUs.
        on_host = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        self._process = children.start(
            children.command("evaluate", *self._flags), children.alone() | on_host, self._output.fileno()
        )

    def _died(self) -> str | None:
        """Returns a line if the process has failed, otherwise None; call this after the process has ended."""
        if self._process is None or self._process.returncode == 0:
            return None
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - 4096))
        lines = self._output.read().decode("utf-8", "replace").strip().splitlines()
        last = lines[-1].removeprefix("error: ") if lines else f"status {self._process.returncode}"
        return f"the evaluation of config.evaluation.tasks ended ({last})"


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
