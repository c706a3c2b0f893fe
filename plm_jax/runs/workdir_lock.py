"""The lock on a run directory: one job at a time trains in it."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax

from plm_jax.common import leases
from plm_jax.common.errors import UserError
from plm_jax.runs import checkpoint_folders as folders


def folder(workdir: str) -> str:
    """Returns the folder of the lock, which the first process of a job holds."""
    return os.path.join(workdir, "lock")


@contextlib.contextmanager
def lock(workdir: str, about: Callable[[], dict[str, Any]] = dict) -> Iterator[None]:
    """Context manager that locks a run directory.

    Every process of a job must enter it. If the first process cannot lock the directory, every process fails.

    Args:
      about: function that returns further fields for the file of the lock.

    Raises:
      UserError: another job trains in the directory.
      OSError: the lock cannot be written.
    """
    with contextlib.ExitStack() as stack:
        failure: Exception | None = None
        if jax.process_index() == 0:
            try:
                stack.enter_context(leases.held(folder(workdir), f"trains in {workdir}", about))
            except (UserError, OSError) as error:
                failure = error
        if folders.anywhere(failure is not None):
            raise failure or UserError(f"the job's first process cannot train in {workdir}: see its output")
        yield
