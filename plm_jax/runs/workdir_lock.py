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
    """Where the first process of the job that trains in a run directory says that it does."""
    return os.path.join(workdir, "lock")


@contextlib.contextmanager
def held(workdir: str, about: Callable[[], dict[str, Any]] = dict) -> Iterator[None]:
    """Holds a run directory; all processes of a job call it, and all are refused where the first one is.

    Raises:
      UserError: another job trains in it.
      OSError: it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        refused: Exception | None = None
        if jax.process_index() == 0:
            try:
                stack.enter_context(leases.held(folder(workdir), f"trains in {workdir}", about))
            except (UserError, OSError) as error:
                refused = error
        if folders.anywhere(refused is not None):
            raise refused or UserError(f"the job's first process cannot train in {workdir}: see what it says")
        yield
