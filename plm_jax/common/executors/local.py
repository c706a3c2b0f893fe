"""Executor on worker processes of this machine."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Self

from plm_jax.common import ranges, workers
from plm_jax.common.tasks import Failure, Job, Mark, Task, run_task


@dataclasses.dataclass
class LocalExecutor:
    """Executor on worker processes of this machine. The processes end when the executor's context exits.

    Attributes:
      workers: number of processes; 0 for one process per core.
    """

    kind: ClassVar[str] = "local"
    workers: Annotated[int, ranges.Range(0, 4096)] = 0

    def __enter__(self) -> Self:
        self._pool = workers.Pool(_caller, self.workers or workers.cores())
        return self

    def __exit__(self, *_: Any) -> None:
        self._pool.stop()

    def map(self, job: Job, stage: str, tasks: Sequence[Task]) -> Iterator[Mark | Failure]:
        """Yields the result of each task. If a process dies, its task runs again, at most three times in total."""
        for (_, _, task), result in self._pool.unordered([(job, stage, task) for task in tasks]):
            yield Failure(task.name, str(result)) if isinstance(result, Exception) else result


def _caller() -> Callable[[tuple[Job, str, Task]], Mark | Failure]:
    return lambda call: run_task(*call)
