"""Time accounting of a run: the part that the loop is currently in, and the seconds spent in each part."""

import contextlib
import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

# Parts of a run: its start and end, compilation, waiting for data while the devices are idle, training steps, and the
# saves, validations and audits for which the loop waits.
PARTS = ("start", "compile", "data", "steps", "saves", "validation", "audits")
# Number of recent steps whose median duration is computed, and the minimum number of steps for a median.
_RECENT, _MIN_STEPS = 101, 5
# Maximum number of marks. Above it, every second mark of the older half is dropped, so that the marks of recent saves,
# from which a run normally resumes, are kept.
_MARKS = 64
# A step is slow if it takes this many times the median and at least this many seconds.
SLOW_FACTOR, _MIN_SLOW_SECONDS = 10, 1.0


class SlowStep(NamedTuple):
    """A step that took many times the median duration.

    Attributes:
      step: number of the step.
      seconds: duration of the step.
      median: median duration of the recent steps, in seconds.
      data: seconds that the step waited for data.
    """

    step: int
    seconds: float
    median: float
    data: float


class GoodputSnapshot(NamedTuple):
    """Time accounting at one moment, in seconds.

    Attributes:
      part: current activity of the loop, one of `PARTS`.
      seconds: seconds spent so far in each of `PARTS`.
      first_step: number of finished steps when the loop began; None before that.
      step: last step that the devices finished; equal to `first_step` when the loop begins, and None before that.
      worked: seconds spent in the part `steps` up to the end of `step`.
      marks: one pair [step, worked] per save; pairs of older saves may be missing.
      median: median duration of the recent steps, or None if there are too few steps.
      since: time spent in the parts `steps` and `data` since the last finished step.
      idle: time since the last finished step; before the first one, time since the loop began or, before that, since
        the accounting began.
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
        """Duration above which a step is slow, in seconds; None if there are too few steps for a median."""
        return None if self.median is None else max(SLOW_FACTOR * self.median, _MIN_SLOW_SECONDS)


class Goodput:
    """Time accounting of a run, written by the thread of the loop and read by any thread.

    Attributes:
      thread: identity of the loop's thread.
      slow: slow steps that are still to be reported.
      saved: event that wakes the thread of the heartbeat; set at the beginning of each save.
    """

    def __init__(self, before: float = 0.0, clock: Callable[[], float] = time.monotonic):
        """Starts accounting, `before` seconds after the start of the run; `clock` returns seconds."""
        self.thread = threading.get_ident()
        self.slow: queue.SimpleQueue[SlowStep] = queue.SimpleQueue()
        self.saved = threading.Event()
        self._clock, self._lock = clock, threading.Lock()
        self._seconds = dict.fromkeys(PARTS, 0.0) | {"start": before}
        self._part, self._at = "start", clock()
        self._first_step: int | None = None
        self._step: int | None = None
        self._step_at = self._at
        self._worked, self._data = 0.0, 0.0
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._marks: list[list[float]] = []
        self._running = _Running(clock)

    @contextlib.contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Context manager whose duration is added to the seconds of `part`, one of `PARTS`.

        The duration of an inner context of this kind is added only to the part of the inner context.
        """
        before = self._turn(part)
        try:
            yield
        finally:
            self._turn(before)

    def begin(self, step: int) -> None:
        """Records that the loop begins after step `step`."""
        with self._lock:
            self._first_step = self._step = step
            self._step_at = self._clock()

    def add_dispatched(self, result: Any) -> None:
        """Records a dispatched step; `result.block_until_ready()` returns once the devices have finished the step."""
        self._running.add(result)

    def measure_batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yields batches, and accounts for the time of waiting for them.

        The time counts as `data` while the devices are idle, and as `steps` while they are busy.
        """
        batches = iter(batches)
        while True:
            with self.measure("data"):
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

    def finish_step(self, step: int) -> None:
        """Records that the devices have finished a step; if the step was slow, also adds it to `slow`."""
        with self._lock:
            self._add()
            seconds = self._seconds["steps"] + self._seconds["data"] - self._worked - self._data
            data, self._data, self._worked = self._data, self._seconds["data"], self._seconds["steps"]
            self._step, self._step_at = step, self._at
            if seconds > _MIN_SLOW_SECONDS and (median := self._median()) and seconds > SLOW_FACTOR * median:
                self.slow.put(SlowStep(step, seconds, median, self._data - data))
            self._recent.append(seconds)

    def measure_save(self) -> contextlib.AbstractContextManager[None]:
        """Records a save after the last finished step; returns a context manager that accounts for its duration."""
        with self._lock:
            assert self._step is not None  # Saves follow steps.
            self._marks.append([self._step, self._worked])
            if len(self._marks) > _MARKS:
                half = _MARKS // 2
                self._marks = self._marks[:half:2] + self._marks[half:]
        self.saved.set()
        return self.measure("saves")

    def snapshot(self) -> GoodputSnapshot:
        """Returns the accounting as it is now."""
        with self._lock:
            self._add()
            since = self._seconds["steps"] + self._seconds["data"] - self._worked - self._data
            return GoodputSnapshot(
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
        """Ends the thread that waits for the devices."""
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
        return statistics.median(self._recent) if len(self._recent) >= _MIN_STEPS else None


class _Running:
    """Time at which the devices finished the dispatched steps.

    A thread waits for the steps, because the training loop may be waiting for the next batch.
    """

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._dispatched, self._done, self._done_at = 0, 0, clock()
        self._thread: threading.Thread | None = None

    def add(self, result: Any) -> None:
        if result is not None:
            self._dispatched += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._wait, name="finished steps", daemon=True)
                self._thread.start()
        self._results.put(result)

    def until(self, now: float) -> float:
        """Returns the time when the devices finished the last dispatched step, or `now` if they are still busy."""
        done, at = self._done, self._done_at
        return at if done == self._dispatched else now

    def _wait(self) -> None:
        while (result := self._results.get()) is not None:
            with contextlib.suppress(Exception):  # The loop raises it, too.
                result.block_until_ready()
            del result
            self._done_at = self._clock()
            self._done += 1
