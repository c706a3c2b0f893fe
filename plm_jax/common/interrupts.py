"""Ctrl-C during the imports of a program, before `command_line.run` handles it."""

import _signal  # pyright: ignore[reportMissingImports]  # `signal` wraps it with much slower imports.
import os

STOPPED = "stopped; run the same command again to resume"


def end_at_interrupt() -> None:
    """Makes Ctrl-C print one line and end this process, until `command_line.run` is called.

    Does nothing if SIGINT is ignored or already has another handler.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # A job in the background ignores it.
        _signal.signal(_signal.SIGINT, _end)


def _end(*_: object) -> None:
    os.write(2, f"{STOPPED}\n".encode())
    os._exit(130)
