"""Damaged caches, and hostile or malformed corpora, and the outcome of reading each.

A case is a forked child process that runs the real code on a damaged copy and ends like a command. It is `handled` if
it ended with one line and exit status 2, or read the same as from the undamaged copy; `silent` if it read something
else; `hang` if it took more than its seconds; `traceback` otherwise: a crash, several lines, or more than 1 GB of
memory. Every file of a cache is damaged, including the indices of layouts, before it is opened or while a run reads
it. The runs that read caches are in `faults_data_runs.py`, corpora in `faults_data_corpora.py`.
"""

import functools
import os
import pathlib
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import faults_data_corpora as corpora
import faults_data_runs as runs
from faults_case import Campaign, child

SECONDS, SECONDS_OF_PROCESSES = 30.0, 90.0
# One of this number of cases reads with worker processes, which take seconds to start.
_WITH_PROCESSES = 7


def _caches(folder: pathlib.Path) -> pathlib.Path:
    """Prepares the caches that are damaged."""
    subprocess.run([sys.executable, runs.__file__, str(folder / "base")], check=True, stdout=subprocess.DEVNULL)
    return folder / "base"


@functools.cache
def _expected(base: pathlib.Path, name: str) -> str:
    """Returns the output of a run that reads undamaged caches."""
    return _read(base, name)[1]


def _read(base: pathlib.Path, name: str, **options: Any) -> tuple[str, str]:
    """Returns the outcome of a run's reading of caches, and its output or error."""
    log = base.parent / "log"
    seconds = SECONDS_OF_PROCESSES if options.get("processes") else SECONDS
    return child(lambda: runs.read(base, name, **options), seconds, log)


def _damaged(name: str, base: pathlib.Path, number: int, rng: random.Random) -> tuple[str, str]:
    """Returns the outcome of a run that reads a copy with one damage, and a description."""
    expected, folder = _expected(base, name), base.parent / "case"
    shutil.rmtree(folder, ignore_errors=True)
    # Large files are linked; the damage copies the one that it changes.
    shutil.copytree(base, folder, copy_function=_link_or_copy)
    what, damage = runs.damage(folder, name, rng)
    is_under_way = rng.random() < 0.3
    # The simulated bucket exists in one process only.
    processes = number % _WITH_PROCESSES == _WITH_PROCESSES - 1 and name != "afar"
    description = f"{name}: {what}{', under way' * is_under_way}{', processes' * processes}"
    if not is_under_way:
        damage()
    outcome, output = _read(folder, name, damage=damage if is_under_way else None, processes=int(processes))
    if outcome == "ended":
        outcome = "handled" if output == expected else "silent"
    return outcome, f"{description}: {output[-1500:]}"


def _link_or_copy(source: str, target: str) -> None:
    (os.link if os.path.getsize(source) > 2**20 else shutil.copy2)(source, target)


def _folder(folder: pathlib.Path) -> pathlib.Path:
    return folder


def _hostile(
    make: Callable[[pathlib.Path, random.Random], corpora.Case], folder: pathlib.Path, number: int, rng: random.Random
) -> tuple[str, str]:
    """Reads a hostile or malformed file; returns the outcome and a description."""
    del number
    what, path, check = make(folder, rng)
    outcome, output = child(check, corpora.SECONDS, folder / "log")
    if outcome == "ended":
        outcome = "handled" if output.strip().endswith("right") else "silent"
    path.unlink()
    return outcome, f"{what}: {output[-1000:]}"


CAMPAIGNS = [
    *(Campaign(f"caches: {name}", 63, _caches, functools.partial(_damaged, name)) for name in runs.RUNS),
    *(
        Campaign(f"corpora: {name}", 34, _folder, functools.partial(_hostile, make))
        for name, make in corpora.CAMPAIGNS.items()
    ),
]
