"""Damaged caches, and hostile or malformed corpora: what becomes of each. Prints a table.

    python benchmarks/faults_data.py --caches=500 --corpora=200 --seed=0

A case is a child process, forked where all is imported, that runs the real code on a damaged copy and ends as a verb
does. It is `handled` if it ended with one line and exit status 2, or read what the undamaged one gives; `silent` if it
read something else; `hang` beyond its seconds; `traceback` otherwise: a crash, several lines, or more than 1 GB above
the start. Of caches every file is damaged, the indices that layouts make beside them too, before they are opened or
while a run reads them; what they are read for is in `faults_data_runs.py`, corpora are in `faults_data_corpora.py`.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import faults_data_corpora as corpora_cases
import faults_data_runs as runs

from plm_jax.common import command_line

SECONDS, SECONDS_OF_PROCESSES, BYTES = 30.0, 90.0, 2**30
_PAGE = os.sysconf("SC_PAGESIZE")
# One in so many cases reads with worker processes, which take seconds to start.
_WITH_PROCESSES = 50


class Row(NamedTuple):
    """What became of the cases of a campaign."""

    campaign: str
    tried: int
    handled: int
    silent: int
    traceback: int
    hang: int


def caches(number: int, seed: int) -> list[Row]:
    """Damages caches so many times; the same seed damages them alike."""
    counts = {name: collections.Counter() for name in runs.RUNS}
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder, "base")
        subprocess.run([sys.executable, runs.__file__, str(base)], check=True, stdout=subprocess.DEVNULL)
        wanted = {name: _read(base, name)[1] for name in runs.RUNS}
        for case in range(number):
            name, rng = list(runs.RUNS)[case % len(runs.RUNS)], random.Random(f"{seed} {case}")
            _count(counts[name], _damaged(base, pathlib.Path(folder, "case"), name, rng, case, wanted[name]))
    return [_row(f"caches: {name}", found) for name, found in counts.items()]


def corpora(number: int, seed: int) -> list[Row]:
    """Has so many hostile or malformed JSONL, WET, WARC and HTML files read; the same seed makes them alike."""
    counts = {name: collections.Counter() for name in corpora_cases.CAMPAIGNS}
    with tempfile.TemporaryDirectory() as folder:
        for case in range(number):
            name, rng = list(counts)[case % len(counts)], random.Random(f"{seed} {case}")
            what, path, check = corpora_cases.CAMPAIGNS[name](pathlib.Path(folder), rng)
            outcome, told = child(check, corpora_cases.SECONDS, pathlib.Path(folder, "log"))
            if outcome == "ended":
                outcome = "handled" if told.strip().endswith("right") else "silent"
            _count(counts[name], (outcome, f"{what}: {told[-1000:]}"))
            path.unlink()
    return [_row(f"corpora: {name}", found) for name, found in counts.items()]


def _row(campaign: str, found: collections.Counter) -> Row:
    return Row(campaign, found.total(), *(found[name] for name in Row._fields[2:]))


def _count(counts: collections.Counter, outcome: tuple[str, str]) -> None:
    counts[outcome[0]] += 1
    if outcome[0] != "handled" or os.environ.get("FAULTS_VERBOSE"):
        print(*outcome, file=sys.stderr, flush=True)


def _read(base: pathlib.Path, name: str, **options: Any) -> tuple[str, str]:
    """How a run's reading of caches ends, and what it read, or said."""
    log = base.parent / "log"
    seconds = SECONDS_OF_PROCESSES if options.get("processes") else SECONDS
    return child(lambda: runs.read(base, name, **options), seconds, log)


def _damaged(
    base: pathlib.Path, folder: pathlib.Path, name: str, rng: random.Random, case: int, wanted: str
) -> tuple[str, str]:
    """What becomes of a run that reads a copy with one thing damaged."""
    shutil.rmtree(folder, ignore_errors=True)
    # A real copy of what is small; of what is large nothing but what is damaged, which is copied then.
    shutil.copytree(base, folder, copy_function=_link_or_copy)
    what, damage = runs.damage(folder, name, rng)
    is_under_way = rng.random() < 0.3
    processes = case % _WITH_PROCESSES == _WITH_PROCESSES - 1 and name != "afar"  # Whose bucket is of one process.
    told = f"{name}: {what}{', under way' * is_under_way}{', processes' * processes}"
    if not is_under_way:
        damage()
    outcome, said = _read(folder, name, damage=damage if is_under_way else None, processes=int(processes))
    if outcome == "ended":
        outcome = "handled" if said == wanted else "silent"
    return outcome, f"{told}: {said[-1500:]}"


def _link_or_copy(source: str, target: str) -> None:
    (os.link if os.path.getsize(source) > 2**20 else shutil.copy2)(source, target)


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
    begin, start, ended = time.monotonic(), _resident(process), None
    while ended is None:
        pid, status = os.waitpid(process, os.WNOHANG)
        if pid:
            ended = os.waitstatus_to_exitcode(status)
            break
        if time.monotonic() - begin > seconds or _resident(process) - start > BYTES:
            ended = "hang" if time.monotonic() - begin > seconds else "memory"
            os.killpg(process, 9)
            os.waitpid(process, 0)
        time.sleep(0.005)
    said = errors.read_text(errors="replace")
    if ended == 2 and said.count("\n") == 1 and said.startswith("error: "):
        return "handled", said
    if ended == 0:
        return "ended", log.read_text(errors="replace")
    return "hang" if ended == "hang" else "traceback", f"exit {ended}: {said}"


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


def main() -> None:
    """Parses the flags and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caches", type=int, default=500, help="damages of caches")
    parser.add_argument("--corpora", type=int, default=200, help="hostile or malformed files")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    rows = caches(flags.caches, flags.seed) if flags.caches else []
    rows += corpora(flags.corpora, flags.seed) if flags.corpora else []
    print(json.dumps([row._asdict() for row in rows], indent=2))


if __name__ == "__main__":
    main()
