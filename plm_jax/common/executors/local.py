"""Executor on worker processes of this machine."""

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Self

from plm_jax.common import ranges, workers
from plm_jax.common.errors import UserError
from plm_jax.common.tasks import Failure, Job, Mark, Task, run_task

# Processes that a task may end before it counts as failed.
_MOST_DEATHS = 3


@dataclasses.dataclass
class LocalExecutor:
    """Executor on worker processes of this machine, which live as long as its context.

    Attributes:
      workers: number of processes; 0: one per core.
    """

    kind: ClassVar[str] = "local"
    workers: Annotated[int, ranges.Range(0, 4096)] = 0

    def __enter__(self) -> Self:
        self._idle: list[workers.Worker] = []
        return self

    def __exit__(self, *_: Any) -> None:
        for worker in self._idle:
            worker.stop()

    def map(self, job: Job, stage: str, tasks: Sequence[Task]) -> Iterator[Mark | Failure]:
        """Yields the result of each task. A process that dies is replaced, and its task runs again."""
        number = min(self.workers or workers.cores(), len(tasks))
        waiting: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        for task in [*tasks, *[None] * number]:
            waiting.put(task)
        results: queue.SimpleQueue[Mark | Failure | BaseException] = queue.SimpleQueue()
        running = [self._idle.pop() if self._idle else _worker() for _ in range(number)]

        def work(slot: int) -> None:
            try:
                while (task := waiting.get()) is not None:
                    results.put(_attempt(running, slot, (job, stage, task)))
            except BaseException as error:
                results.put(error)

        threads = [threading.Thread(target=work, args=(slot,), daemon=True) for slot in range(number)]
        for thread in threads:
            thread.start()
        try:
            for _ in tasks:
                result = results.get()
                if isinstance(result, BaseException):
                    raise result
                yield result
        except BaseException:
            for _ in range(waiting.qsize()):
                waiting.get_nowait()
            raise
        finally:
            self._idle += running


def _attempt(running: list[workers.Worker], slot: int, call: tuple[Job, str, Task]) -> Mark | Failure:
    message = ""
    for _ in range(_MOST_DEATHS):
        try:
            return running[slot](call)
        except (UserError, RuntimeError) as error:
            message = str(error)
            running[slot].stop()
            running[slot] = _worker()
    return Failure(call[2].name, message)


def _worker() -> workers.Worker:
    return workers.Worker(_caller, ())


def _caller() -> Callable[[tuple[Job, str, Task]], Mark | Failure]:
    return lambda call: run_task(*call)
