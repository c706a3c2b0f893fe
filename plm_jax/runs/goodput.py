"""Where the time of a run goes: what its loop is at, and the seconds of each part, which sum to all of them."""

import contextlib
import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

# What a start does before its first step and at its end, what XLA compiles of a step, batches for which the devices
# stand still, steps, saves and validations in which the loop stands still.
PARTS = ("start", "compile", "data", "steps", "saves", "validation")
# Of how many steps the median is taken, and so many there must be.
_RECENT, _ENOUGH = 101, 5
# The marks of the last saves are exact; a start goes on from one of them unless checkpoints were removed by hand.
_MARKS = 64
# A step is slow at so many times its median, and what lasts less than a second is no matter of a person's.
SLOW, _SECOND = 10, 1.0


class Slow(NamedTuple):
    """A step that took many times the median, and what of it were waits for data, in seconds."""

    step: int
    seconds: float
    median: float
    data: float


class State(NamedTuple):
    """What a ledger says at one time; seconds.

    Attributes:
      part: what the loop is at.
      seconds: those of each part so far.
      first_step: the step that the start went on from; None: it has not begun.
      step: the last step that the devices finished.
      worked: the seconds of the part `steps` up to then.
      marks: [step, worked] of the last saves.
      median: of the last steps; None: there are too few.
      since: the last step, but for saves, validations and compiling.
      idle: since the last step or, before the first, since the start.
    """

    part: str
    seconds: dict[str, float]
    first_step: int | None
    step: int | None
    worked: float
    marks: list[list[float]]
    median: float | None
    since: float
    idle: float

    @property
    def slow_at(self) -> float | None:
        """The seconds from which on a step is slow; None: steps are too few to say."""
        return None if self.median is None else max(SLOW * self.median, _SECOND)


class Ledger:
    """Kept by the thread of the loop, read by any.

    Attributes:
      thread: that of the loop.
      slow: steps that were, for whoever reports them.
      saved: set when a save began.
    """

    def __init__(self, before: float = 0.0, clock: Callable[[], float] = time.monotonic):
        """`before`: the seconds that the start has taken already; `clock` gives seconds."""
        self.thread = threading.get_ident()
        self.slow: queue.SimpleQueue[Slow] = queue.SimpleQueue()
        self.saved = threading.Event()
        self._clock, self._lock = clock, threading.Lock()
        self._seconds = dict.fromkeys(PARTS, 0.0) | {"start": before}
        self._part, self._at = "start", clock()
        self._first_step, self._step, self._step_at = None, None, self._at
        self._worked, self._data = 0.0, 0.0
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._marks: list[list[float]] = []
        self._running = _Running(clock)

    @contextlib.contextmanager
    def spending(self, part: str) -> Iterator[None]:
        """While it lasts the loop is at one of `PARTS`."""
        before = self._turn(part)
        try:
            yield
        finally:
            self._turn(before)

    def begin(self, step: int) -> None:
        """The loop begins after a step."""
        with self._lock:
            self._first_step = self._step = step
            self._step_at = self._clock()

    def dispatched(self, result: Any) -> None:
        """A step was given to the devices; `result.block_until_ready()` returns when they have finished it."""
        self._running.add(result)

    def awaited(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Batches; while the devices have nothing to do the time that they take is that of the part `data`."""
        batches = iter(batches)
        while True:
            with self.spending("data"):
                with self._lock:
                    began, before = self._at, self._seconds["data"]
                batch = next(batches, None)
            if batch is None:
                return
            with self._lock:
                waited = self._at - began
                busy = min(waited, max(0.0, self._running.until(self._at) - began))
                # A difference of sums could decrease because of rounding.
                self._seconds["data"] = before + (waited - busy)
                self._seconds["steps"] += busy
            yield batch

    def stepped(self, step: int) -> None:
        """The devices have finished a step."""
        with self._lock:
            self._add()
            seconds = self._seconds["steps"] + self._seconds["data"] - self._worked - self._data
            data, self._data, self._worked = self._data, self._seconds["data"], self._seconds["steps"]
            self._step, self._step_at = step, self._at
            if seconds > _SECOND and (median := self._median()) and seconds > SLOW * median:
                self.slow.put(Slow(step, seconds, median, self._data - data))
            self._recent.append(seconds)

    def saves(self) -> contextlib.AbstractContextManager:
        """While it lasts the loop waits for a save of the last step to begin."""
        with self._lock:
            self._marks.append([self._step, self._worked])
            if len(self._marks) > _MARKS:
                half = _MARKS // 2
                self._marks = self._marks[:half:2] + self._marks[half:]
        self.saved.set()
        return self.spending("saves")

    def state(self) -> State:
        """What it says now."""
        with self._lock:
            self._add()
            since = self._seconds["steps"] + self._seconds["data"] - self._worked - self._data
            return State(
                self._part,
                dict(self._seconds),
                self._first_step,
                self._step,
                self._worked,
                [list(mark) for mark in self._marks],
                self._median(),
                since,
                self._at - self._step_at,
            )

    def close(self) -> None:
        """Ends its thread."""
        self._running.add(None)

    def _turn(self, part: str) -> str:
        with self._lock:
            self._add()
            before, self._part = self._part, part
            return before

    def _add(self) -> None:
        now = self._clock()
        self._seconds[self._part] += now - self._at
        self._at = now

    def _median(self) -> float | None:
        return statistics.median(self._recent) if len(self._recent) >= _ENOUGH else None


class _Running:
    """Until when the devices had work. A thread waits for it: the loop's own is held up by the next batch meanwhile."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._given, self._done, self._done_at = 0, 0, clock()
        self._thread: threading.Thread | None = None

    def add(self, result: Any) -> None:
        if result is not None:
            self._given += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._wait, name="finished steps", daemon=True)
                self._thread.start()
        self._results.put(result)

    def until(self, now: float) -> float:
        """When the devices had finished all that was given to them, or `now` if they have not."""
        done, at = self._done, self._done_at
        return at if done == self._given else now

    def _wait(self) -> None:
        while (result := self._results.get()) is not None:
            with contextlib.suppress(Exception):  # The loop meets it, too.
                result.block_until_ready()
            del result
            self._done_at = self._clock()
            self._done += 1
