"""Heartbeats of a run, in its run directory W.

    W/heartbeat/NUMBER.json            per start: when it began, when it was last alive, how it ended, its steps,
                                       its current part, and its seconds by part (`goodput.PARTS`)
    W/heartbeat/stalled-PROCESS.json   while a process finishes no steps: what it is waiting for

A thread writes these files. It does not delay the loop, and it ignores files that cannot be written. `run_status` reads
the files.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from typing import Any, Self

from tqdm import tqdm

from plm_jax.common import storage
from plm_jax.common.errors import Interrupted, UserError, one_line
from plm_jax.runs.goodput import Goodput, GoodputSnapshot, SlowStep

# Seconds between two heartbeats, and between two checks for slow steps.
BEAT, _CHECK = 10.0, 0.5
# Seconds before each further attempt to record that a run is finished.
_PAUSES = (1.0, 5.0, 25.0)
# End of a start: every step is finished, it stopped on request, or an error ended it.
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
_STALLED = "stalled-{}.json"
_DOING = {
    "start": "starting or ending",
    "compile": "compiling",
    "data": "waiting for data",
    "steps": "waiting for the devices, or for other processes",
    "saves": "saving",
    "validation": "validating",
    "audits": "auditing the devices",
}
# Number of stack frames of this package that a line about a stall names.
_FRAMES = 3


def folder(workdir: str) -> str:
    """Returns the folder of the heartbeats of a run."""
    return os.path.join(workdir, "heartbeat")


def numbers(workdir: str) -> list[int]:
    """Returns the sorted numbers of the starts of a run that have a heartbeat file.

    Each start or resume of the run has a number.

    Raises:
      UserError: the store cannot be reached.
    """
    return storage.numbers(folder(workdir), ".json")


def path(workdir: str, number: int) -> str:
    """Returns the path of the heartbeat file of a start."""
    return os.path.join(folder(workdir), f"{number}.json")


class Heartbeat:
    """Thread that writes the time accounting of a run to files, and reports stalls.

    It is a context manager, which every process of a job enters. Only the first process writes heartbeats.
    """

    def __init__(
        self,
        workdir: str,
        goodput: Goodput,
        began: float,
        stall_minutes: float,
        process: int,
        num_processes: int,
    ):
        """Prepares the thread.

        Args:
          goodput: time accounting of the run.
          began: time of the start, in seconds since 1970.
          stall_minutes: minutes without a finished step after which a stall is reported; 0: no such limit. A step that
            takes much longer than the median is reported in any case (`GoodputSnapshot.slow_at`).
          process: index of this process, from 0.
          num_processes: number of processes of the job.
        """
        self._workdir, self._goodput, self._began = workdir, goodput, began
        self._stall_seconds = 60 * stall_minutes
        self._process, self._num_processes = process, num_processes
        self._number: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        # Last finished step before a reported stall, in a tuple of one item (None: no stall is reported), and the
        # seconds after which the stall is reported again.
        self._stalled_after: tuple[int | None] | None = None
        self._report_at = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._over.set()
        self._goodput.saved.set()
        self._thread.join()
        self._goodput.close()
        self._end_stall()
        # Without the record of its end, the evaluation of a finished run would wait for the next start of the run, and
        # this process would wait for the evaluation.
        for seconds in _PAUSES if error is None else ():
            if self.write(ended=True):
                return
            time.sleep(seconds)
        if not self.write(error, ended=True):
            print(f"the end of the run could not be recorded in {self._workdir}", file=sys.stderr, flush=True)

    def _run(self) -> None:
        if self._process == 0:
            with contextlib.suppress(UserError, OSError):
                for name in storage.names(folder(self._workdir)):
                    if not name.removesuffix(".json").isdecimal():
                        storage.remove(os.path.join(folder(self._workdir), name))
        written = -BEAT
        while not self._over.is_set():
            saved = self._goodput.saved.is_set()
            self._goodput.saved.clear()
            if saved or time.monotonic() - written >= BEAT:
                written = time.monotonic()
                self.write()
            self._check()
            self._goodput.saved.wait(_CHECK)

    def write(self, error: BaseException | None = None, ended: bool = False) -> bool:
        """Writes a heartbeat in the first process of the job; returns False if it could not be written.

        Args:
          error: error that ended the start, or None.
          ended: whether the start has ended; if so, the heartbeat records how.
        """
        if self._process:
            return True
        state = self._goodput.snapshot()
        content = {
            "began": self._began,
            "alive": time.time(),
            "ended": _end(error) if ended else None,
            "error": _describe_error(error) if error else None,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "doing": _DOING[state.part],
            "first_step": state.first_step,
            "step": state.step,
            "step_seconds": state.median,
            "seconds": state.seconds,
            "worked": state.worked,
            "saves": state.marks,
        }
        with contextlib.suppress(UserError, OSError):  # The next heartbeat may succeed.
            if self._number is None:
                self._number = max(numbers(self._workdir), default=0) + 1
            _put(path(self._workdir, self._number), content)
            return True
        return False

    def _check(self) -> None:
        """Reports slow steps and stalls."""
        while not self._goodput.slow.empty():
            self._report(_describe_slow(self._goodput.slow.get()))
        state = self._goodput.snapshot()
        if self._stalled_after != (state.step,):
            self._end_stall()
        slow = state.slow_at is not None and state.since >= state.slow_at
        still = self._stall_seconds and state.idle >= self._stall_seconds
        if (slow or still) and state.idle >= self._report_at:
            self._stalled_after, self._report_at = (state.step,), 2 * state.idle
            line = self._report(
                f"{_describe_stall(state)}: {_DOING[state.part]}{_describe_calls(self._goodput.thread)}"
            )
            with contextlib.suppress(UserError, OSError):
                _put(self._stalled(), {"time": time.time(), "says": line})

    def _end_stall(self) -> None:
        if self._stalled_after is not None:
            self._stalled_after, self._report_at = None, 0.0
            with contextlib.suppress(UserError, OSError):
                storage.remove(self._stalled())

    def _stalled(self) -> str:
        return os.path.join(folder(self._workdir), _STALLED.format(self._process))

    def _report(self, line: str) -> str:
        if self._num_processes > 1:
            line = f"process {self._process} on {socket.gethostname()}: {line}"
        tqdm.write(line, file=sys.stderr)
        return line


def _put(path: str, content: dict[str, Any]) -> None:
    storage.write(path, json.dumps(content).encode("utf-8"))


def _end(error: BaseException | None) -> str:
    if error is None:
        return FINISHED
    return STOPPED if isinstance(error, Interrupted) else FAILED


def _describe_error(error: BaseException) -> str:
    known = isinstance(error, Interrupted | UserError)
    return one_line(error, None) if known else f"{type(error).__name__}: {one_line(error)}"


def _describe_stall(state: GoodputSnapshot) -> str:
    after = "" if state.step is None else f" after step {state.step}"
    median = "" if state.median is None else f" (the median is {state.median:.3g} s)"
    return f"no step has ended for {state.idle:.0f} s{after}{median}"


def _describe_slow(slow: SlowStep) -> str:
    return (
        f"step {slow.step} took {slow.seconds:.1f} s (the median is {slow.median:.3g} s), "
        f"of these {slow.data:.1f} s waiting for data"
    )


def _describe_calls(thread: int) -> str:
    """Returns a description of the innermost call of a thread, and of the innermost calls in this package.

    The description is empty if the thread has ended.
    """
    frame = sys._current_frames().get(thread)
    if frame is None:
        return ""
    calls = traceback.extract_stack(frame)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    ours = [call for call in calls[:-1] if call.filename.startswith(root)]
    locations = (
        f"{os.path.basename(call.filename)}:{call.lineno} in {call.name}" for call in [calls[-1], *ours[::-1][:_FRAMES]]
    )
    return f", at {', from '.join(locations)}"
