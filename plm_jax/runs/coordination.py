"""Decisions on extra saves and on when to stop, which all processes of a job take after the same step.

The first process decides, by its clock and by the requests of all processes. If the job has several processes, it
announces a decision two steps before the decision takes effect. Before a process asks for the decision after step N, it
waits for the losses of step N - 1. These exist only once every process has started step N - 1. Processes are therefore
at most one step apart, and each of them learns of a decision in time. Messages go through the job's coordination
service, which takes less than a millisecond and uses no device.
"""

import json
import time
from typing import NamedTuple, Protocol

import jax

from plm_jax import config

_STEPS_AHEAD = 2
# Seconds until a failed save is tried again; each further failure doubles them up to the limit.
BACK_OFF, LONGEST = 10.0, 600.0


class Decision(NamedTuple):
    """Agreed action of every process after a step.

    Attributes:
      save: whether to save a checkpoint of the step, even if no regular save is due.
      stop: reason to end the run, or None.
      failed: error message with which the run ends if too many saves in a row have failed; otherwise None.
    """

    save: bool = False
    stop: str | None = None
    failed: str | None = None


class Coordinator:
    """Decisions of one run, the same in every process."""

    def __init__(self, settings: config.CheckpointConfig, name: str):
        """Connects to the job's other processes; `name` must be unique among the runs of the job."""
        self._settings = settings
        self._service: _Messages = _Service(f"plm_jax/{name}") if jax.process_count() > 1 else _SingleProcess()
        self._ahead = _STEPS_AHEAD if jax.process_count() > 1 else 0
        self._process = jax.process_index()
        self._saves, self._saved_at = 0, time.monotonic()
        self._counted: set[int] = set()
        self._failures_in_a_row = 0
        self._retry_at: float | None = None
        self._number = 0
        self._coming: list | None = None

    def request_stop(self, reason: str) -> None:
        """Asks all processes to stop the run; `reason` becomes `Decision.stop`."""
        self._service.put(f"stop/{self._process}", reason)

    def begin_save(self) -> None:
        """Records that a save begins; every process calls it."""
        self._saves, self._saved_at, self._retry_at = self._saves + 1, time.monotonic(), None

    def report_failure(self, reason: str) -> None:
        """Reports that the last save failed in this process."""
        self._service.put(f"failed/{self._saves}/{self._process}", reason)

    def decide(self, step: int) -> Decision:
        """Returns the decision after a step; every process calls it after each step.

        If there is nothing to do, the decision is `Decision()`.
        """
        if self._coming is None and self._process == 0:
            decision = self._next_decision()
            if decision != Decision():
                self._service.put(f"decided/{self._number}", json.dumps([step + self._ahead, *decision]))
        if self._coming is None and (message := self._service.get(f"decided/{self._number}")):
            self._coming = json.loads(message)
            self._number += 1
        if self._coming is None or self._coming[0] != step:
            return Decision()
        decision, self._coming = Decision(*self._coming[1:]), None
        return decision

    def _next_decision(self) -> Decision:
        now, settings = time.monotonic(), self._settings
        failures = self._service.below("failed/")
        for path, reason in sorted(failures.items(), key=lambda item: int(item[0].split("/")[1])):
            number = int(path.split("/")[1])
            if number in self._counted:
                continue
            self._failures_in_a_row = self._failures_in_a_row + 1 if number - 1 in self._counted else 1
            self._counted.add(number)
            self._retry_at = now + min(BACK_OFF * 2 ** (self._failures_in_a_row - 1), LONGEST)
            if self._failures_in_a_row >= settings.max_failures:
                return Decision(failed=f"{reason}, the last of {self._failures_in_a_row} saves that failed in a row")
        for reason in self._service.below("stop/").values():
            return Decision(save=True, stop=reason)
        is_time = settings.save_minutes and now - self._saved_at >= 60 * settings.save_minutes
        return Decision(save=bool(is_time or (self._retry_at and now >= self._retry_at)))


class _Messages(Protocol):
    """Messages between the processes of a job, by path."""

    def put(self, path: str, value: str) -> None: ...

    def get(self, path: str) -> str | None: ...

    def below(self, path: str) -> dict[str, str]: ...


class _SingleProcess:
    """Messages of a job with a single process."""

    def __init__(self):
        self._values: dict[str, str] = {}

    def put(self, path: str, value: str) -> None:
        self._values[path] = value

    def get(self, path: str) -> str | None:
        return self._values.get(path)

    def below(self, path: str) -> dict[str, str]:
        return {name: value for name, value in self._values.items() if name.startswith(path)}


class _Service:
    """Messages through the job's coordination service; `root` is the prefix of the run's paths."""

    def __init__(self, root: str):
        # JAX has no public access to the service that `jax.distributed` starts.
        from jax._src import distributed

        client = distributed.global_state.client
        assert client is not None  # Jobs of several processes have one.
        # The service drops empty parts of paths, such as that of `plm_jax//home/user/runs/a`.
        self._client, self._root = client, "/".join(filter(None, root.split("/")))
        self._sent: set[str] = set()

    def put(self, path: str, value: str) -> None:
        if path not in self._sent:
            self._sent.add(path)
            self._client.key_value_set(f"{self._root}/{path}", value)

    def get(self, path: str) -> str | None:
        try:
            return self._client.key_value_try_get(f"{self._root}/{path}")
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" in str(error):
                return None
            raise

    def below(self, path: str) -> dict[str, str]:
        entries = self._client.key_value_dir_get(f"{self._root}/{path}")
        return {name.removeprefix(f"{self._root}/"): value for name, value in entries}
