"""Executor on a Spark cluster."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

import pyspark  # pyright: ignore[reportMissingImports]

from plm_jax.common import children
from plm_jax.common.errors import UserError, one_line
from plm_jax.common.tasks import Failure, Job, Mark, Task, follow, run_task


@dataclasses.dataclass
class SparkExecutor:
    """Executor on a Spark cluster.

    Attributes:
      master: URL of the cluster, such as `spark://10.0.0.1:7077`, or `yarn`.
      options: settings of Spark, such as `--spark.executor.memory=4g`.
    """

    kind: ClassVar[str] = "spark"
    master: str = ""
    options: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        if not self.master:
            raise UserError("Spark needs the URL of its master: add -- --master=spark://HOST:7077")
        settings = pyspark.SparkConf().setMaster(self.master).setAppName("plm_jax")
        for option in self.options:
            name, equals, value = option.removeprefix("--").partition("=")
            if not equals:
                raise UserError(f"{option} is not a setting of Spark: write --spark.NAME=VALUE")
            settings.set(name, value)
        try:
            self._context = pyspark.SparkContext(conf=settings)
        except Exception as error:  # Errors of Java arrive as classes of the bridge to it.
            raise UserError(
                f"cannot reach Spark at {self.master} ({one_line(error)}): start it, or pass the right --master "
                "after --"
            ) from error
        return self

    def __exit__(self, *_: Any) -> None:
        self._context.stop()

    def map(self, job: Job, stage: str, tasks: Sequence[Task]) -> Iterator[Mark | Failure]:
        """Yields the result of each task. Spark runs the tasks of dead executors again."""
        rows = self._context.parallelize(list(tasks), len(tasks))
        call = children.in_background(rows.mapPartitions(functools.partial(_run, job, stage)).count)
        yield from follow(job, stage, tasks, lambda: not call.done(), lambda: one_line(call.exception() or ""))


def _run(job: Job, stage: str, tasks: Iterator[Task]) -> Iterator[str]:
    return (run_task(job, stage, task).task for task in tasks)
