"""Runner of fault-injection campaigns, and of single cases in child processes."""

import collections
import contextlib
import os
import pathlib
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from plm_jax.common import command_line

# Largest increase of a case's memory since its start.
BYTES = 2**30
# Longest error line that a person can read.
_LINE = 2000
_PAGE, _TICKS = os.sysconf("SC_PAGESIZE"), os.sysconf("SC_CLK_TCK")
# Limits are CPU seconds, so that a busy machine does not change outcomes; wall time may be this many times as long.
_WALL = 5


class Campaign(NamedTuple):
    """A fault-injection campaign.

    Attributes:
      name: name in the results.
      times: number of cases of a full run.
      base: creates the files that cases share, in an empty folder; called once for campaigns with the same `base`.
      case: runs a case from the result of `base`, the number of the case and its random generator; returns the outcome
        and a description.
    """

    name: str
    times: int
    base: Callable[[pathlib.Path], Any]
    case: Callable[[Any, int, random.Random], tuple[str, str]]


class Row(NamedTuple):
    """Outcomes of the cases of a campaign."""

    campaign: str
    tried: int
    handled: int
    silent: int
    traceback: int
    hang: int


class Ended(NamedTuple):
    """Result of a child process.

    Attributes:
      status: exit status, negative for a signal.
      outcome: `ended`, or `hang` or `memory` if it was killed for taking too much time or memory.
      seconds: CPU seconds.
      bytes: peak memory above that at its start.
      output, errors: text on stdout and stderr.
    """

    status: int
    outcome: str
    seconds: float
    bytes: int
    output: str
    errors: str

    def describe(self) -> str:
        """Returns the figures and the end of stderr."""
        return (
            f"{self.outcome}, status {self.status}, {self.seconds:.1f} s, {self.bytes >> 20} MB: {self.errors[-1500:]}"
        )


def run(campaigns: Iterable[Campaign], folder: pathlib.Path, share: float, seed: int) -> list[Row]:
    """Runs a share of the cases of each campaign, at least one; the same seed makes the same cases."""
    rows, bases = [], {}
    for campaign in campaigns:
        if campaign.base not in bases:
            base_folder = folder / str(len(bases))
            base_folder.mkdir(parents=True)
            bases[campaign.base] = campaign.base(base_folder)
        counts: collections.Counter = collections.Counter()
        for number in range(max(1, round(share * campaign.times))):
            rng = random.Random(f"{seed} {campaign.name} {number}")
            count(counts, *campaign.case(bases[campaign.base], number, rng))
        rows.append(Row(campaign.name, counts.total(), *(counts[name] for name in Row._fields[2:])))
        print(f"{campaign.name}: {dict(counts)}", file=sys.stderr, flush=True)
    return rows


def count(counts: collections.Counter, outcome: str, description: str) -> None:
    """Counts a case, and prints it if it was not handled or FAULTS_VERBOSE is set."""
    counts["traceback" if outcome == "memory" else outcome] += 1
    if outcome != "handled" or os.environ.get("FAULTS_VERBOSE"):
        print(outcome, description[-2500:], file=sys.stderr, flush=True)


def child(do: Callable[[], None], seconds: float, log: pathlib.Path) -> tuple[str, str]:
    """Runs a call in a child process, with errors handled as in a command.

    Returns:
      The outcome (`ended`, `handled` if it ended with one error line, `traceback` or `hang`) and the output, or the
      errors if it did not end normally.
    """
    ended = forked(lambda: command_line.run(do), seconds, log)
    errors = ended.errors
    if ended.status == 2 and errors.count("\n") == 1 and errors.startswith("error: ") and len(errors) < _LINE:
        return "handled", errors
    if ended.outcome == "ended" and ended.status == 0:
        return "ended", ended.output
    return "hang" if ended.outcome == "hang" else "traceback", ended.describe()


def to_its_end(do: Callable[[], None], seconds: float, log: pathlib.Path) -> None:
    """Runs a call that must succeed in a child process."""
    outcome, output = child(do, seconds, log)
    if outcome != "ended":
        raise RuntimeError(f"{outcome} without any fault: {output}")


def forked(do: Callable[[], None], seconds: float, log: pathlib.Path) -> Ended:
    """Runs a call in a child process without arguments, which is killed if it takes too much time or memory."""
    errors = log.with_suffix(".errors")
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream, path in ((1, log), (2, errors)):
            os.dup2(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        _end(do)
    status, outcome, took, most = _waited(process, seconds)
    return Ended(status, outcome, took, most, *(path.read_text(errors="replace") for path in (log, errors)))


def _waited(process: int, seconds: float) -> tuple[int, str, float, int]:
    """Waits for a process; returns its exit status, outcome, CPU seconds, and peak memory above that at its start."""
    begin, start, most, took, outcome = time.monotonic(), _resident(process), 0, 0.0, "ended"
    while True:
        pid, status = os.waitpid(process, os.WNOHANG)
        if pid:
            with contextlib.suppress(ProcessLookupError):  # Kills the children that it has left.
                os.killpg(process, signal.SIGKILL)
            return os.waitstatus_to_exitcode(status), outcome, took, most
        most, took = max(most, _resident(process) - start), max(took, _computed(process))
        hangs = took > seconds or time.monotonic() - begin > _WALL * seconds
        if outcome == "ended" and (hangs or most > BYTES):
            outcome = "hang" if hangs else "memory"
            os.killpg(process, signal.SIGKILL)
        time.sleep(0.005)


def _end(do: Callable[[], None]) -> None:
    """Runs a call and ends this process as Python would."""
    sys.argv = sys.argv[:1]
    status = 1
    try:
        do()
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _computed(process: int) -> float:
    """Returns the CPU seconds of a process and its finished children."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{process}/stat") as file:
        return sum(map(int, file.read().rpartition(")")[2].split()[11:15])) / _TICKS
    return 0.0


def _resident(process: int) -> int:
    """Returns the resident bytes of a process."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{process}/statm") as file:
        return int(file.read().split()[1]) * _PAGE
    return 0
