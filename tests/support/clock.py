"""A clock that a test sets."""

import time


class Clock:
    """Replacement for the module `time` and for functions that return seconds.

    Attributes:
      now: seconds.
    """

    strftime, gmtime = staticmethod(time.strftime), staticmethod(time.gmtime)

    def __init__(self, now: float = 1.7e9):
        self.now = now

    def __call__(self) -> float:
        return self.now

    time = monotonic = perf_counter = __call__

    def sleep(self, seconds: float) -> None:
        self.now += seconds
