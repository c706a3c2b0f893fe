"""What asks a run to stop before its end: a signal, or the platform's word that its machine will be taken away."""

import os
import signal
import threading
import time
import urllib.request
from types import FrameType

# Ends of a machine are told there before they come: https://cloud.google.com/compute/docs/instances/create-use-spot and
# https://cloud.google.com/tpu/docs/maintenance-events.
_METADATA = "http://{host}/computeMetadata/v1/instance/{entry}?wait_for_change=true&timeout_sec=60"
_ENTRIES = {"preempted": "TRUE", "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"}
# Within so many seconds the same signal is the same request.
_SAME = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Interruption:
    """While it lasts SIGTERM, SIGUSR1, Ctrl-C and a preemption notice ask the run to stop; a second signal ends it.

    The same signal again within a second is none: some launchers send it to all processes of a job, of which one may
    pass it on to another.

    Attributes:
      reason: what asked, such as `SIGTERM`; None: nothing did.
    """

    def __init__(self, grace_seconds: float):
        """`grace_seconds` after it was asked the process ends, whether or not its step is saved."""
        self.reason: str | None = None
        self._grace = grace_seconds
        self._over = threading.Event()
        self._first: tuple[int, float] | None = None
        self._before: dict[int, object] = {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._heard) for number in _SIGNALS}
        if os.environ.get("PLM_JAX_PREEMPTION_NOTICE") == "gce":
            for entry, word in _ENTRIES.items():
                threading.Thread(target=self._watch, args=(entry, word), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._first and number == self._first[0] and time.monotonic() - self._first[1] < _SAME:
            return
        if self.reason:
            _end(f"a second signal ended it before its step was saved ({self.reason} was the first)", 128 + number)
        self._first = number, time.monotonic()
        self._ask(signal.Signals(number).name)

    def _ask(self, reason: str) -> None:
        self.reason = reason
        timer = threading.Thread(target=self._limit, daemon=True)
        timer.start()

    def _limit(self) -> None:
        if not self._over.wait(self._grace):
            _end(
                f"{self.reason} came {self._grace:.0f} s ago and the step is not saved yet: the same command goes on "
                "from the checkpoint before; raise config.checkpoint.grace_seconds if there is more time",
                128 + signal.SIGTERM,
            )

    def _watch(self, entry: str, word: str) -> None:
        url = _METADATA.format(host=os.environ.get("GCE_METADATA_HOST", "metadata.google.internal"), entry=entry)
        request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
        while not self._over.is_set():
            try:
                with urllib.request.urlopen(request, timeout=90) as answer:
                    told = answer.read(100).decode("utf-8", "replace").strip()
            except OSError:
                self._over.wait(10.0)
                continue
            if told == word and not self.reason:
                self._ask("a preemption notice")
                return


def _end(line: str, status: int) -> None:
    # Not by an exception: what holds the run up may be in native code.
    os.write(2, f"error: {line}\n".encode())
    os._exit(status)
