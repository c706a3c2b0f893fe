"""Executor on any runner of Apache Beam, such as Dataflow."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

import apache_beam

from plm_jax.common import beam_pipeline, children
from plm_jax.common.errors import one_line
from plm_jax.common.tasks import Failure, Job, Mark, Task, follow, run_task


@dataclasses.dataclass
class BeamExecutor:
    """Executor on a runner of Apache Beam. Each stage runs as a pipeline.

    Attributes:
      options: options of Beam and its runner, such as `--runner=DataflowRunner`.
    """

    kind: ClassVar[str] = "beam"
    options: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        beam_pipeline.pipeline(self.options)  # Reports wrong options before anything is written.
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def map(self, job: Job, stage: str, tasks: Sequence[Task]) -> Iterator[Mark | Failure]:
        """Yields the result of each task."""
        pipeline = beam_pipeline.pipeline(self.options)
        spread = pipeline | apache_beam.Create(tasks) | apache_beam.Reshuffle()
        _ = spread | apache_beam.Map(lambda task: run_task(job, stage, task).task)
        call = children.in_background(lambda: pipeline.run().wait_until_finish())
        yield from follow(job, stage, tasks, lambda: not call.done(), lambda: one_line(call.exception() or ""))
