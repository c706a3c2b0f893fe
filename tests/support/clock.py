"""A clock that moves only when it is told to."""

import time


class Clock:
    """Stands in for the module `time`, and for a function that gives seconds.

    Attributes:
      now: seconds.
    """

    strftime, gmtime = staticmethod(time.strftime), staticmethod(time.gmtime)

    def __init__(self, now: float = 1.7e9):
        self.now = now

    def __call__(self) -> float:
        return self.now

    time = monotonic = perf_counter = __call__
