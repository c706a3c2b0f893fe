"""What the campaigns of faults share: a case in a process of its own, and what is told of all cases."""

import collections
import contextlib
import os
import pathlib
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

from plm_jax.common import command_line

# A case may take so much more memory than it had at its start.
BYTES = 2**30
# A line that is longer is none that a person reads.
_LINE = 2000
_PAGE = os.sysconf("SC_PAGESIZE")


class Row(NamedTuple):
    """What became of the cases of a campaign."""

    campaign: str
    tried: int
    handled: int
    silent: int
    traceback: int
    hang: int


def row(campaign: str, found: collections.Counter) -> Row:
    """That of a campaign whose cases came out so often in each way."""
    return Row(campaign, found.total(), *(found[name] for name in Row._fields[2:]))


def count(counts: collections.Counter, outcome: str, told: str) -> None:
    """Counts a case, and tells of one that was not handled; with FAULTS_VERBOSE set of each."""
    counts[outcome] += 1
    if outcome != "handled" or os.environ.get("FAULTS_VERBOSE"):
        print(outcome, told[-2000:], file=sys.stderr, flush=True)


def child(do: Callable[[], None], seconds: float, log: pathlib.Path) -> tuple[str, str]:
    """Has a process of its own do something as a verb does, and end.

    Returns:
      `ended`, `handled` by one line, `traceback` or `hang`; and what it printed, where it did not end on stderr.
    """
    errors = log.with_suffix(".errors")
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        os.setsid()
        for stream, path in ((1, log), (2, errors)):
            os.dup2(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        _end(do)
    ended = _waited(process, seconds)
    said = errors.read_text(errors="replace")
    if ended == 2 and said.count("\n") == 1 and said.startswith("error: ") and len(said) < _LINE:
        return "handled", said
    if ended == 0:
        return "ended", log.read_text(errors="replace")
    return "hang" if ended == "hang" else "traceback", f"exit {ended}: {said}"


def _waited(process: int, seconds: float) -> int | str:
    """The exit status of a process; `hang` or `memory` where it was killed for taking too much of that."""
    begin, start = time.monotonic(), _resident(process)
    while True:
        pid, status = os.waitpid(process, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        hangs = time.monotonic() - begin > seconds
        if hangs or _resident(process) - start > BYTES:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return "hang" if hangs else "memory"
        time.sleep(0.005)


def _end(do: Callable[[], None]) -> None:
    """Does something as a verb, and ends this process."""
    sys.argv = sys.argv[:1]
    status = 1
    try:
        command_line.run(do)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _resident(process: int) -> int:
    """The bytes of a process that are in memory."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{process}/statm") as file:
        return int(file.read().split()[1]) * _PAGE
    return 0
