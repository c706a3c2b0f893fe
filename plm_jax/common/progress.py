"""Progress messages on stderr during long operations.

On a terminal, the last line counts the seconds. A log gets a line every five seconds, and after ten minutes one per
minute. Only the first process of a job prints messages.
"""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator

# Shorter operations are not reported.
SILENCE_SECONDS = 2.0


def is_first() -> bool:
    """Whether this is the first process of its job, according to environment variables of launchers, SLURM or GKE."""
    ranks = [os.environ.get("JAX_PROCESS_ID") or os.environ.get("SLURM_PROCID", "0")]
    if os.environ.get("PLM_JAX_DISTRIBUTED") == "1" and "JAX_PROCESS_ID" not in os.environ:
        ranks += [os.environ.get(name, "0") for name in ("TPU_WORKER_ID", "MEGASCALE_SLICE_ID")]
    return set(ranks) == {"0"}


def pause(seconds: float, terminal: bool) -> float:
    """Returns the seconds until the next message about an operation that has taken `seconds` so far."""
    return 1.0 if terminal else 5.0 if seconds < 600 else 60.0


@contextlib.contextmanager
def beating(tick: Callable[[float], None], first: float, every: Callable[[float], float]) -> Iterator[None]:
    """Calls `tick(seconds)` repeatedly in a thread, where `seconds` is the time since the context was entered.

    The first call comes after `first` seconds, and each further call `every(seconds)` seconds after the previous one.
    """
    began, over = time.monotonic(), threading.Event()

    def beat() -> None:
        wait = first
        while not over.wait(wait):
            seconds = time.monotonic() - began
            tick(seconds)
            wait = every(seconds)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Prints the duration so far of a long operation, and the total duration at its end.

    Prints nothing for an operation of less than `SILENCE_SECONDS`, or if this process is not the first of its job.

    Args:
      what: text in front of the duration.
    """
    if not is_first():
        yield
        return
    # The import of TensorFlow temporarily closes descriptor 2.
    stderr = os.dup(2)
    terminal, began, reported = os.isatty(stderr), time.monotonic(), False
    begin, end = ("\r", "") if terminal else ("", " so far\n")

    def report(seconds: float) -> None:
        nonlocal reported
        reported = True
        os.write(stderr, f"{begin}{what}: {seconds:.0f} s{end}".encode())

    try:
        with beating(report, SILENCE_SECONDS, functools.partial(pause, terminal=terminal)):
            yield
    finally:
        if reported:
            os.write(stderr, f"{begin}{what}: {time.monotonic() - began:.0f} s\n".encode())
        os.close(stderr)
