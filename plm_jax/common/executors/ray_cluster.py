"""Executor on a Ray cluster."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

import ray  # pyright: ignore[reportMissingImports]

from plm_jax.common.errors import UserError, one_line
from plm_jax.common.tasks import Failure, Job, Mark, Task, run_task

# Tasks in the queue of the cluster at a time.
_MOST_QUEUED = 4096


@dataclasses.dataclass
class RayExecutor:
    """Executor on a Ray cluster.

    Attributes:
      address: address of the cluster, such as `10.0.0.1:6379`, or `auto` for the cluster of this machine.
    """

    kind: ClassVar[str] = "ray"
    address: str = "auto"

    def __enter__(self) -> Self:
        try:
            ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(
                f"cannot reach a Ray cluster at {self.address} ({one_line(error)}): start it, or pass the right "
                "--address after --"
            ) from error
        return self

    def __exit__(self, *_: Any) -> None:
        ray.shutdown()

    def map(self, job: Job, stage: str, tasks: Sequence[Task]) -> Iterator[Mark | Failure]:
        """Yields the result of each task. Ray repeats the task of a dead worker up to three times."""
        remote, names, waiting = ray.remote(num_cpus=1, max_retries=3)(run_task), {}, list(tasks)[::-1]
        while waiting or names:
            while waiting and len(names) < _MOST_QUEUED:
                task = waiting.pop()
                names[remote.remote(job, stage, task)] = task.name
            for reference in ray.wait(list(names), num_returns=1)[0]:
                name = names.pop(reference)
                try:
                    yield ray.get(reference)
                except ray.exceptions.RayError as error:
                    yield Failure(name, one_line(error))
