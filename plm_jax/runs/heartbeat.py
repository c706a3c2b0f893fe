"""A run's signs of life.

    W/heartbeat/NUMBER.json            of each start: when it began and was last alive, how it ended, which steps it
                                       made, what it is at, and its seconds by what they went to (`ledger.PARTS`)
    W/heartbeat/stalled-PROCESS.json   what a process waits for whose steps have come to a halt

A thread writes them; the loop is not held up, nor does it fail where they cannot be written. `run_status` reads them.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from typing import Any

from tqdm import tqdm

from plm_jax.common import storage
from plm_jax.common.errors import Interrupted, UserError, one_line
from plm_jax.runs.goodput import Ledger, Slow, State

# Seconds between two signs of life, and between two looks at whether steps go on.
BEAT, _LOOK = 10.0, 0.5
# How a start ended: all steps are made, it was asked to stop and did, or an error ended it.
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
_STALLED = "stalled-{}.json"
_DOING = {
    "start": "starting or ending",
    "compile": "compiling",
    "data": "waiting for data",
    "steps": "waiting for the devices, or for other processes",
    "saves": "saving",
    "validation": "validating",
}
# How many frames of this package a line about a stall names.
_FRAMES = 3


def folder(workdir: str) -> str:
    """Where the signs of life of a run are."""
    return os.path.join(workdir, "heartbeat")


def numbers(workdir: str) -> list[int]:
    """The numbers of the starts that a run has had, ascending; raises as `storage.names`."""
    return storage.numbers(folder(workdir), ".json")


def path(workdir: str, number: int) -> str:
    """The file of a start."""
    return os.path.join(folder(workdir), f"{number}.json")


class Heartbeat:
    """Tells while it lasts what a ledger says, as process `process` of `processes`; in one of them entered by each."""

    def __init__(self, workdir: str, ledger: Ledger, began: float, stall_minutes: float, process: int, processes: int):
        """`began`: when the start did, in seconds since 1970."""
        self._workdir, self._ledger, self._began = workdir, ledger, began
        self._stall_seconds = 60 * stall_minutes
        self._process, self._processes = process, processes
        self._number: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        # Of a stall the step before it, and after how many seconds it is told again.
        self._stalled_after: tuple[int | None] | None = None
        self._tell_at = 0.0

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, error, frames):
        del kind, frames
        self._over.set()
        self._ledger.saved.set()
        self._thread.join()
        self._ledger.close()
        self._go_on()
        self.write(error, ended=True)

    def _run(self) -> None:
        if self._process == 0:
            with contextlib.suppress(UserError, OSError):
                for name in storage.names(folder(self._workdir)):
                    if not name.removesuffix(".json").isdecimal():
                        storage.remove(os.path.join(folder(self._workdir), name))
        written = -BEAT
        while not self._over.is_set():
            saved = self._ledger.saved.is_set()
            self._ledger.saved.clear()
            if saved or time.monotonic() - written >= BEAT:
                written = time.monotonic()
                self.write()
            self._look()
            self._ledger.saved.wait(_LOOK)

    def write(self, error: BaseException | None = None, ended: bool = False) -> None:
        """A sign of life, the last one if the start has `ended`; where it cannot be written there is none."""
        if self._process:
            return
        state = self._ledger.state()
        content = {
            "began": self._began,
            "alive": time.time(),
            "ended": _end(error) if ended else None,
            "error": _said(error) if error else None,
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
        with contextlib.suppress(UserError, OSError):  # The next one may come through.
            if self._number is None:
                self._number = max(numbers(self._workdir), default=0) + 1
            _put(path(self._workdir, self._number), content)

    def _look(self) -> None:
        """Tells of a step that takes long or took long."""
        while not self._ledger.slow.empty():
            self._say(_told(self._ledger.slow.get()))
        state = self._ledger.state()
        if self._stalled_after != (state.step,):
            self._go_on()
        slow = state.slow_at is not None and state.since >= state.slow_at
        still = self._stall_seconds and state.idle >= self._stall_seconds
        if (slow or still) and state.idle >= self._tell_at:
            self._stalled_after, self._tell_at = (state.step,), 2 * state.idle
            line = self._say(f"{_standing(state)}: {_DOING[state.part]}{_where(self._ledger.thread)}")
            with contextlib.suppress(UserError, OSError):
                _put(self._stalled(), {"time": time.time(), "says": line})

    def _go_on(self) -> None:
        if self._stalled_after is not None:
            self._stalled_after, self._tell_at = None, 0.0
            with contextlib.suppress(UserError, OSError):
                storage.remove(self._stalled())

    def _stalled(self) -> str:
        return os.path.join(folder(self._workdir), _STALLED.format(self._process))

    def _say(self, line: str) -> str:
        if self._processes > 1:
            line = f"process {self._process} on {socket.gethostname()}: {line}"
        tqdm.write(line, file=sys.stderr)
        return line


def _put(path: str, content: dict[str, Any]) -> None:
    storage.write(path, json.dumps(content).encode("utf-8"))


def _end(error: BaseException | None) -> str:
    if error is None:
        return FINISHED
    return STOPPED if isinstance(error, Interrupted) else FAILED


def _said(error: BaseException) -> str:
    known = isinstance(error, Interrupted | UserError)
    return one_line(error, None) if known else f"{type(error).__name__}: {one_line(error)}"


def _standing(state: State) -> str:
    after = "" if state.step is None else f" after step {state.step}"
    median = "" if state.median is None else f" (the median is {state.median:.3g} s)"
    return f"no step has ended for {state.idle:.0f} s{after}{median}"


def _told(slow: Slow) -> str:
    return (
        f"step {slow.step} took {slow.seconds:.1f} s (the median is {slow.median:.3g} s), "
        f"of these {slow.data:.1f} s waiting for data"
    )


def _where(thread: int) -> str:
    """What a thread is at: its innermost call, and the innermost ones of this package."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return ""
    calls = traceback.extract_stack(frame)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    ours = [call for call in calls[:-1] if call.filename.startswith(root)]
    places = (
        f"{os.path.basename(call.filename)}:{call.lineno} in {call.name}" for call in [calls[-1], *ours[::-1][:_FRAMES]]
    )
    return f", at {', from '.join(places)}"
