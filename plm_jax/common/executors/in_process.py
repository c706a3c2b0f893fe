"""Executor in this process, for stores that only this process sees, and for debuggers."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from plm_jax.common.tasks import Failure, Mark, Task


@dataclasses.dataclass
class InProcessExecutor:
    """Executor that runs one task after another in this process."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def map(self, function: Callable[[Task], Mark | Failure], tasks: Sequence[Task]) -> Iterator[Mark | Failure]:
        """Yields the result of each task."""
        yield from map(function, tasks)
