"""What a process says on stderr while something takes long, so that no silence looks like a hang.

On a terminal the seconds count in the last line. A log gets a line every five seconds, and after ten minutes one a
minute. Of a job's processes the first alone speaks.
"""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator

# What lasts less is not worth a word.
SILENCE_SECONDS = 2.0


def is_first() -> bool:
    """Whether this is the first process of its job, as the variables of launchers, of SLURM or of GKE tell."""
    places = [os.environ.get("JAX_PROCESS_ID") or os.environ.get("SLURM_PROCID", "0")]
    if os.environ.get("PLM_JAX_DISTRIBUTED") == "1" and "JAX_PROCESS_ID" not in os.environ:
        places += [os.environ.get(name, "0") for name in ("TPU_WORKER_ID", "MEGASCALE_SLICE_ID")]
    return set(places) == {"0"}


def pause(seconds: float, terminal: bool) -> float:
    """The seconds between two words about what has lasted so many."""
    return 1.0 if terminal else 5.0 if seconds < 600 else 60.0


@contextlib.contextmanager
def beating(tick: Callable[[float], None], first: float, every: Callable[[float], float]) -> Iterator[None]:
    """While it lasts a thread calls `tick` with the seconds so far: after `first`, then as `every` says of them."""
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
    """Says, if it takes long, what is going on, for how long so far, and at the end how long it took."""
    if not is_first():
        yield
        return
    # The import of TensorFlow closes the descriptor itself for a while.
    stderr = os.dup(2)
    terminal, began, said = os.isatty(stderr), time.monotonic(), False
    begin, end = ("\r", "") if terminal else ("", " so far\n")

    def tell(seconds: float) -> None:
        nonlocal said
        said = True
        os.write(stderr, f"{begin}{what}: {seconds:.0f} s{end}".encode())

    try:
        with beating(tell, SILENCE_SECONDS, functools.partial(pause, terminal=terminal)):
            yield
    finally:
        if said:
            os.write(stderr, f"{begin}{what}: {time.monotonic() - began:.0f} s\n".encode())
        os.close(stderr)
