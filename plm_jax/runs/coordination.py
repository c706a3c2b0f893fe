"""Which steps are saved beside those of `checkpoint.save_every`, and where a run stops: agreed by all its processes.

The first process decides, by its clock and by what the others ask for, and announces it for two steps later: a process
has read the losses of step k - 1, which all have dispatched by then, before it asks what is to be done after step k. So
none is more than a step ahead of another, and all hear of it in time. The word goes by the job's coordination service,
which takes well below a millisecond and no device.
"""

import json
import time
from typing import NamedTuple

import jax

from plm_jax import config

_AHEAD = 2
# Seconds until a failed save is tried again; each further failure doubles them up to the limit.
BACK_OFF, LONGEST = 10.0, 600.0


class Decision(NamedTuple):
    """What is to be done after a step.

    Attributes:
      stop: why the run ends there; None: it goes on.
      failed: why saves fail, where that ends the run.
    """

    save: bool = False
    stop: str | None = None
    failed: str | None = None


class Decisions:
    """The decisions of one run, whose `name` no other run of the job has; `after` is asked after each step."""

    def __init__(self, settings: config.CheckpointConfig, name: str):
        self._settings = settings
        self._service = _Service(f"plm_jax/{name}") if jax.process_count() > 1 else _Alone()
        self._ahead = _AHEAD if jax.process_count() > 1 else 0
        self._process = jax.process_index()
        self._saves, self._saved_at = 0, time.monotonic()
        self._counted: set[int] = set()
        self._in_a_row, self._retry_at = 0, None
        self._number, self._coming = 0, None

    def ask_to_stop(self, reason: str) -> None:
        """This process was asked to stop."""
        self._service.put(f"stop/{self._process}", reason)

    def saving(self) -> None:
        """A save begins, in all processes."""
        self._saves, self._saved_at, self._retry_at = self._saves + 1, time.monotonic(), None

    def save_failed(self, reason: str) -> None:
        """The last save failed in this process."""
        self._service.put(f"failed/{self._saves}/{self._process}", reason)

    def after(self, step: int) -> Decision:
        """What is to be done after a step; all processes are told the same."""
        if self._coming is None and self._process == 0:
            decision = self._decided()
            if decision != Decision():
                self._service.put(f"decided/{self._number}", json.dumps([step + self._ahead, *decision]))
        if self._coming is None and (told := self._service.get(f"decided/{self._number}")):
            self._coming = json.loads(told)
            self._number += 1
        if self._coming is None or self._coming[0] != step:
            return Decision()
        decision, self._coming = Decision(*self._coming[1:]), None
        return decision

    def _decided(self) -> Decision:
        now, settings = time.monotonic(), self._settings
        failed = self._service.below("failed/")
        for path, reason in sorted(failed.items(), key=lambda item: int(item[0].split("/")[1])):
            number = int(path.split("/")[1])
            if number in self._counted:
                continue
            self._in_a_row = self._in_a_row + 1 if number - 1 in self._counted else 1
            self._counted.add(number)
            self._retry_at = now + min(BACK_OFF * 2 ** (self._in_a_row - 1), LONGEST)
            if self._in_a_row >= settings.max_failures:
                return Decision(failed=f"{reason}, the last of {self._in_a_row} saves that failed in a row")
        for reason in self._service.below("stop/").values():
            return Decision(save=True, stop=reason)
        is_time = settings.save_minutes and now - self._saved_at >= 60 * settings.save_minutes
        return Decision(save=bool(is_time or (self._retry_at and now >= self._retry_at)))


class _Alone:
    """What a job of one process tells itself."""

    def __init__(self):
        self._told: dict[str, str] = {}

    def put(self, path: str, value: str) -> None:
        self._told[path] = value

    def get(self, path: str) -> str | None:
        return self._told.get(path)

    def below(self, path: str) -> dict[str, str]:
        return {name: value for name, value in self._told.items() if name.startswith(path)}


class _Service:
    """What the processes of a job tell each other by its coordination service, below a path of their own."""

    def __init__(self, root: str):
        from jax._src import distributed  # There is no other way to the service that `jax.distributed` starts.

        self._client, self._root = distributed.global_state.client, root
        self._told: set[str] = set()

    def put(self, path: str, value: str) -> None:
        if path not in self._told:
            self._told.add(path)
            self._client.key_value_set(f"{self._root}/{path}", value)

    def get(self, path: str) -> str | None:
        try:
            return self._client.key_value_try_get(f"{self._root}/{path}")
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" in str(error):
                return None
            raise

    def below(self, path: str) -> dict[str, str]:
        found = self._client.key_value_dir_get(f"{self._root}/{path}")
        return {name.removeprefix(f"{self._root}/"): value for name, value in found}
