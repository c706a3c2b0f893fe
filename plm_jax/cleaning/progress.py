"""Progress bars of a pipeline on this machine, in this process or its child processes, one stage after another.

Child processes append a line per call to a file that this process reads. Remote runners show their own progress.
"""

import collections
import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from typing import TextIO

import tqdm

# Environment variable with the path of that file, for child processes.
_FILE = "PLM_JAX_CLEANING_PROGRESS"
_POLL_SECONDS = 0.5


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

    def follow(self, file: TextIO, finished: threading.Event) -> None:
        """Adds the lines of other processes until the event is set."""
        last, rest = False, ""
        while not last:
            last = finished.wait(_POLL_SECONDS)
            *lines, rest = (rest + file.read()).split("\n")
            for stage, expected, done in (line.split("\t") for line in lines):
                self.add(stage, int(expected), int(done))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


_bars: _Bars | None = None


def expect(stage: str) -> None:
    """Announces one more page of a stage. A stage begins when all its pages have been announced."""
    _add(stage, expected=1)


def step(stage: str, number: int = 1) -> None:
    """Counts files or pages that a stage has processed."""
    _add(stage, done=number)


def _add(stage: str, expected: int = 0, done: int = 0) -> None:
    if _bars is not None:
        _bars.add(stage, expected, done)
    elif _FILE in os.environ:
        # Without O_CREAT: a process that outlives the run must not create the removed file again.
        with open(os.open(os.environ[_FILE], os.O_WRONLY | os.O_APPEND), "w", encoding="utf-8") as file:
            file.write(f"{stage}\t{expected}\t{done}\n")


@contextlib.contextmanager
def shown(num_files: int, show_progress: bool) -> Iterator[None]:
    """Context manager in which the bars are shown."""
    if not show_progress:
        yield
        return
    global _bars
    _bars, finished = _Bars(num_files), threading.Event()
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as file:
        os.environ[_FILE] = file.name
        follower = threading.Thread(target=_bars.follow, args=(file, finished), daemon=True)
        follower.start()
        try:
            yield
        finally:
            finished.set()
            follower.join()
            del os.environ[_FILE]
            _bars.close()
            _bars = None
