"""Executor on a Dask cluster."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

import distributed  # pyright: ignore[reportMissingImports]

from plm_jax.common.errors import UserError, one_line
from plm_jax.common.tasks import Failure, Job, Mark, Task, run_task


@dataclasses.dataclass
class DaskExecutor:
    """Executor on a Dask cluster (`distributed`).

    Attributes:
      scheduler: address of the scheduler, such as `tcp://10.0.0.1:8786`.
    """

    kind: ClassVar[str] = "dask"
    scheduler: str = ""

    def __enter__(self) -> Self:
        if not self.scheduler:
            raise UserError("Dask needs the address of its scheduler: add -- --scheduler=tcp://HOST:8786")
        try:
            self._client = distributed.Client(self.scheduler, set_as_default=False, timeout="30s")
        except (OSError, ValueError, TimeoutError) as error:
            raise UserError(
                f"cannot reach the Dask scheduler at {self.scheduler} ({one_line(error)}): start it, or pass the right "
                "--scheduler after --"
            ) from error
        return self

    def __exit__(self, *_: Any) -> None:
        self._client.close()

    def map(self, job: Job, stage: str, tasks: Sequence[Task]) -> Iterator[Mark | Failure]:
        """Yields the result of each task. Dask runs the tasks of dead workers again.

        Raises:
          UserError: the scheduler has stopped.
        """
        names = {}
        # Keys are shared by all clients of a scheduler.
        prefix = hashlib.sha256(repr(job).encode("utf-8")).hexdigest()
        for task in tasks:
            future = self._client.submit(run_task, job, stage, task, key=f"{prefix}-{stage}-{task.name}")
            names[future] = task.name
        try:
            for future in distributed.as_completed(list(names), loop=self._client.loop):
                if future.cancelled():
                    raise ConnectionError
                error = future.exception()
                yield Failure(names.pop(future), one_line(error)) if error else future.result()
                future.release()
        except OSError as error:
            raise UserError("the Dask scheduler has stopped: start it and run the same command again") from error
