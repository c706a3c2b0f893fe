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
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import faults_data_corpora as corpora_cases
import faults_data_runs as runs
from faults_case import Row, child, count, row

SECONDS, SECONDS_OF_PROCESSES = 30.0, 90.0
# One in so many cases reads with worker processes, which take seconds to start.
_WITH_PROCESSES = 50


def caches(number: int, seed: int) -> list[Row]:
    """Damages caches so many times; the same seed damages them alike."""
    counts = {name: collections.Counter() for name in runs.RUNS}
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder, "base")
        subprocess.run([sys.executable, runs.__file__, str(base)], check=True, stdout=subprocess.DEVNULL)
        wanted = {name: _read(base, name)[1] for name in runs.RUNS}
        for case in range(number):
            name, rng = list(runs.RUNS)[case % len(runs.RUNS)], random.Random(f"{seed} {case}")
            count(counts[name], *_damaged(base, pathlib.Path(folder, "case"), name, rng, case, wanted[name]))
    return [row(f"caches: {name}", found) for name, found in counts.items()]


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
            count(counts[name], outcome, f"{what}: {told[-1000:]}")
            path.unlink()
    return [row(f"corpora: {name}", found) for name, found in counts.items()]


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
