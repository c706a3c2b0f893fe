"""Work of processes that start fast: this module imports little."""

import os
import signal
from collections.abc import Callable

from plm_jax.common.errors import UserError


def make(event: str) -> Callable[[int], tuple[int, int]]:
    """Returns a function to the square of a number and the process's id. At 7 it fails if the event is a failure."""

    def apply(item: int) -> tuple[int, int]:
        print("noise on stdout")
        if item == 7 and event == "mistake":
            raise UserError("mend this")
        if item == 7 and event == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return item * item, os.getpid()

    return apply
