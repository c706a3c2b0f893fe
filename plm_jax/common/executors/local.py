"""Executor on worker processes of this machine."""

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Self

from plm_jax.common import ranges, workers
from plm_jax.common.errors import UserError
from plm_jax.common.tasks import Failure, Job, Mark, Task, run_task

# A task fails after this many processes died while running it.
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
        self._running: list[workers.Worker] = []
        self._is_over = threading.Event()
        return self

    def __exit__(self, *_: Any) -> None:
        self._is_over.set()
        for worker in self._running:
            worker.stop()

    def map(self, job: Job, stage: str, tasks: Sequence[Task]) -> Iterator[Mark | Failure]:
        """Yields the result of each task. Replaces a process that dies, and runs its task again."""
        number = min(self.workers or workers.cores(), len(tasks))
        waiting: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        for task in [*tasks, *[None] * number]:
            waiting.put(task)
        results: queue.SimpleQueue[Mark | Failure | BaseException] = queue.SimpleQueue()
        self._running += [_worker() for _ in range(number - len(self._running))]

        def work(slot: int) -> None:
            try:
                while (task := waiting.get()) is not None:
                    results.put(self._attempt(slot, (job, stage, task)))
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

    def _attempt(self, slot: int, call: tuple[Job, str, Task]) -> Mark | Failure:
        message = ""
        for _ in range(_MOST_DEATHS):
            try:
                return self._running[slot](call)
            except (UserError, RuntimeError) as error:
                message = str(error)
                self._running[slot].stop()
                if self._is_over.is_set():
                    break
                self._running[slot] = _worker()
        return Failure(call[2].name, message)


def _worker() -> workers.Worker:
    return workers.Worker(_caller, ())


def _caller() -> Callable[[tuple[Job, str, Task]], Mark | Failure]:
    return lambda call: run_task(*call)
