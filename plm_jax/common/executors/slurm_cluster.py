"""Executor on a SLURM cluster: each stage is a job array, and each element of the array runs some tasks."""

import dataclasses
import os
import pickle
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Self

from plm_jax.common import ranges, storage
from plm_jax.common.errors import UserError
from plm_jax.common.tasks import Failure, Job, Mark, Task, follow, run_task


@dataclasses.dataclass
class SlurmExecutor:
    """Executor on a SLURM cluster.

    Attributes:
      elements: largest number of elements in a job array; SLURM's default limit is 1,001.
      options: options of `sbatch`, such as `--partition=cpu` or `--mem=3G`.
    """

    kind: ClassVar[str] = "slurm"
    elements: Annotated[int, ranges.Range(1, 10**6)] = 500
    options: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        self._array = ""
        return self

    def __exit__(self, *_: Any) -> None:
        if self._array:
            subprocess.run(["scancel", self._array], check=False)

    def map(self, job: Job, stage: str, tasks: Sequence[Task]) -> Iterator[Mark | Failure]:
        """Yields the result of each task. A task fails if its array element ends before the task is complete.

        Raises:
          UserError: `sbatch` cannot be run on this machine.
        """
        number = min(self.elements, len(tasks))
        path = os.path.join(job.folder, f"{stage}.tasks")
        storage.write(path, pickle.dumps((job, stage, [list(tasks[i::number]) for i in range(number)])))
        script = shlex.join([sys.executable, "-P", "-m", __name__, path])
        command = ["sbatch", "--parsable", "--wait", f"--array=0-{number - 1}", f"--job-name={stage}", *self.options]
        try:
            process = subprocess.Popen([*command, "--wrap", script], stdout=subprocess.PIPE, text=True)
        except OSError as error:
            raise UserError(f"cannot run sbatch ({error.strerror}): run this command on a login node") from error
        with process:
            assert process.stdout is not None
            self._array = process.stdout.readline().strip().partition(";")[0]
            yield from follow(job, stage, tasks, lambda: process.poll() is None)
            self._array = ""


if __name__ == "__main__":
    _job, _stage, _chunks = pickle.loads(storage.read(sys.argv[1]))
    for _task in _chunks[int(os.environ["SLURM_ARRAY_TASK_ID"])]:
        run_task(_job, _stage, _task)
