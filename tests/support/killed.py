"""Drivers of jobs that are killed between two tasks."""

import itertools
import os
import signal
from collections.abc import Iterator

from plm_jax.common.executors import in_process


def before_task(number: int) -> Iterator[int]:
    """Kills this process when `InProcessExecutor` begins its task `number`, counted from 1; 0 never does.

    Returns:
      Counter, whose next value is one more than the number of tasks that have begun.
    """
    run_task, counter = in_process.run_task, itertools.count(1)

    def run_or_kill(*arguments):
        if next(counter) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return run_task(*arguments)

    in_process.run_task = run_or_kill
    return counter
