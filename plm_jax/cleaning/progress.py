"""Bars for a pipeline on this machine, in this process or in others that it starts, one stage after another.

Other processes add a line for each call to a file that this one reads. Elsewhere a runner shows what it does.
"""

import collections
import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from typing import TextIO

import tqdm

# The file, for processes that inherit the environment.
_FILE = "PLM_JAX_CLEANING_PROGRESS"
_LOOK_SECONDS = 0.5


class _Bars:
    def __init__(self, num_files: int):
        self._expected = collections.Counter({"reading": num_files})
        self._lock = threading.Lock()
        self._stage, self._bar = "", None

    def add(self, stage: str, expected: int, done: int) -> None:
        with self._lock:
            self._expected[stage] += expected
            if not done:
                return
            if stage != self._stage or self._bar is None:
                self.close()
                unit = " files" if stage == "reading" else " pages"
                self._stage, self._bar = stage, tqdm.tqdm(None, stage, self._expected[stage], unit=unit)
            self._bar.update(done)

    def follow(self, file: TextIO, over: threading.Event) -> None:
        """Adds what other processes write, until it is over."""
        last, rest = False, ""
        while not last:
            last = over.wait(_LOOK_SECONDS)
            *lines, rest = (rest + file.read()).split("\n")
            for stage, expected, done in (line.split("\t") for line in lines):
                self.add(stage, int(expected), int(done))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


_bars: _Bars | None = None


def expect(stage: str) -> None:
    """Says that one more page will come to a stage, which begins when all have been announced."""
    _add(stage, expected=1)


def step(stage: str, number: int = 1) -> None:
    """Counts files or pages that a stage is through with."""
    _add(stage, done=number)


def _add(stage: str, expected: int = 0, done: int = 0) -> None:
    if _bars is not None:
        _bars.add(stage, expected, done)
    elif _FILE in os.environ:
        # One that outlives the run finds its file gone, and makes no other.
        with open(os.open(os.environ[_FILE], os.O_WRONLY | os.O_APPEND), "w", encoding="utf-8") as file:
            file.write(f"{stage}\t{expected}\t{done}\n")


@contextlib.contextmanager
def shown(num_files: int, show_progress: bool) -> Iterator[None]:
    """Shows the bars meanwhile."""
    if not show_progress:
        yield
        return
    global _bars
    _bars, over = _Bars(num_files), threading.Event()
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as file:
        os.environ[_FILE] = file.name
        follower = threading.Thread(target=_bars.follow, args=(file, over), daemon=True)
        follower.start()
        try:
            yield
        finally:
            over.set()
            follower.join()
            del os.environ[_FILE]
            _bars.close()
            _bars = None
