"""Requests to stop a run before its end: a signal, or a preemption notice of the platform."""

import os
import signal
import threading
import time
import urllib.request
from types import FrameType
from typing import Any, Self

# Google Cloud announces the end of a machine there: https://cloud.google.com/compute/docs/instances/create-use-spot and
# https://cloud.google.com/tpu/docs/maintenance-events.
_METADATA = "http://{host}/computeMetadata/v1/instance/{entry}?wait_for_change=true&timeout_sec=60"
_ENTRIES = {"preempted": "TRUE", "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"}
# Seconds within which the same signal is the same request.
_SAME_SIGNAL_SECONDS = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Interruption:
    """Context manager in which SIGTERM, SIGUSR1, Ctrl-C or a preemption notice asks the run to stop.

    A signal after the first request ends the process at once. However, the same signal within a second is ignored,
    because some launchers send it to every process of a job, and one process may forward it to another. Signals are
    handled only if the main thread enters the context, and preemption notices are read only if
    PLM_JAX_PREEMPTION_NOTICE is `gce`.

    Attributes:
      reason: cause of the request, such as `SIGTERM`, or None.
    """

    def __init__(self, grace_seconds: float):
        """Prepares the context.

        Args:
          grace_seconds: seconds after a request at which the process ends, unless the context has exited by then.
        """
        self.reason: str | None = None
        self._grace = grace_seconds
        self._over = threading.Event()
        self._first: tuple[int, float] | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        if os.environ.get("PLM_JAX_PREEMPTION_NOTICE") == "gce":
            for entry, expected in _ENTRIES.items():
                threading.Thread(target=self._watch, args=(entry, expected), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._first and number == self._first[0] and time.monotonic() - self._first[1] < _SAME_SIGNAL_SECONDS:
            return
        if self.reason:
            _end(f"a second signal ended it before its step was saved ({self.reason} was the first)", 128 + number)
        self._first = number, time.monotonic()
        self._request_stop(signal.Signals(number).name)

    def _request_stop(self, reason: str) -> None:
        self.reason = reason
        timer = threading.Thread(target=self._end_after_grace, daemon=True)
        timer.start()

    def _end_after_grace(self) -> None:
        if not self._over.wait(self._grace):
            _end(
                f"{self.reason} came {self._grace:.0f} s ago and the step is not saved yet: the same command resumes "
                "from the previous checkpoint; raise config.checkpoint.grace_seconds if more time is available",
                128 + signal.SIGTERM,
            )

    def _watch(self, entry: str, expected: str) -> None:
        url = _METADATA.format(host=os.environ.get("GCE_METADATA_HOST", "metadata.google.internal"), entry=entry)
        request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
        while not self._over.is_set():
            try:
                with urllib.request.urlopen(request, timeout=90) as response:
                    value = response.read(100).decode("utf-8", "replace").strip()
            except OSError:
                self._over.wait(10.0)
                continue
            if value == expected and not self.reason:
                self._request_stop("a preemption notice")
                return


def _end(line: str, status: int) -> None:
    # An exception would not interrupt native code.
    os.write(2, f"error: {line}\n".encode())
    os._exit(status)
