"""Executor in this process, for stores that only this process sees, and for debuggers."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Self

from plm_jax.common.tasks import Failure, Job, Mark, Task, run_task


@dataclasses.dataclass
class InProcessExecutor:
    """Executor that runs one task after another in this process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def map(self, job: Job, stage: str, tasks: Sequence[Task]) -> Iterator[Mark | Failure]:
        """Yields the result of each task."""
        yield from (run_task(job, stage, task) for task in tasks)
