"""Bars for a pipeline that runs in this process, one after another.

Of one that runs in other processes nothing is shown here: some runners show it themselves, Beam's own does not.
"""

import collections
import contextlib
import threading
from collections.abc import Iterator

import tqdm


class _Bars:
    def __init__(self, num_files: int):
        self._expected = collections.Counter({"reading": num_files})
        self._lock = threading.Lock()
        self._stage, self._bar = "", None

    def expect(self, stage: str) -> None:
        with self._lock:
            self._expected[stage] += 1

    def step(self, stage: str, number: int) -> None:
        with self._lock:
            if stage != self._stage:
                self.close()
                unit = " files" if stage == "reading" else " pages"
                self._stage, self._bar = stage, tqdm.tqdm(None, stage, self._expected[stage], unit=unit)
            self._bar.update(number)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


_bars: _Bars | None = None


def expect(stage: str) -> None:
    """Says that one more page will come to a stage, which begins when all have been announced."""
    if _bars is not None:
        _bars.expect(stage)


def step(stage: str, number: int = 1) -> None:
    """Counts files or pages that a stage is through with."""
    if _bars is not None:
        _bars.step(stage, number)


@contextlib.contextmanager
def shown(num_files: int, show_progress: bool) -> Iterator[None]:
    """Shows the bars of what this process does meanwhile."""
    global _bars
    _bars = bars = _Bars(num_files) if show_progress else None
    try:
        yield
    finally:
        _bars = None
        if bars is not None:
            bars.close()
