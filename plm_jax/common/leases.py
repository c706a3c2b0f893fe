"""Leases of folders on a local or shared disk or in a bucket: one process at a time may write to a folder.

    FOLDER/NUMBER.json    the holder (host, pid, start time, time of the last heartbeat), or the time of the release

The file with the highest number counts. Every store lets only one process create a file, and numbers are not reused
while the folder exists. A holder on this machine is alive if its process runs. A holder on another machine is alive if
its file changes.
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from plm_jax.common import progress, storage, strict_json
from plm_jax.common.errors import UserError

# Seconds between heartbeats, and seconds without a heartbeat after which another process may take the folder.
_BEAT, _LEASE = 10.0, 60.0
# Seconds after which a local file without readable content counts as left by a killed process. In a bucket, a file that
# exists is complete.
_WRITING = 5.0


def taken(folder: str) -> dict[str, Any] | None:
    """Returns the recorded holder of a folder, which may have died; None if the folder has no holder.

    Returns an empty dict if the record is damaged.

    Raises:
      UserError: the store cannot be reached.
    """
    number = _newest(folder)
    holder = _read(folder, number) if number else None
    return None if holder is None or "released" in holder else holder


def is_alive(folder: str, wait: float = _LEASE) -> bool:
    """Whether a folder has a holder that is alive.

    A holder on another machine is alive if it sends a heartbeat within `wait` seconds.

    Raises:
      UserError: the store cannot be reached.
    """
    holder = taken(folder)
    if holder is None or not is_here(holder):
        return holder is not None and _changes(folder, _newest(folder), wait)
    return _started(holder["pid"]) == holder["process_start"]


@contextlib.contextmanager
def held(folder: str, what: str, about: Callable[[], dict[str, Any]] = dict) -> Iterator[None]:
    """Locks a folder while the context is active.

    If a process on another machine holds the folder, first waits up to a minute for its heartbeat. If another process
    takes the folder while the context is active, prints an error and ends this process with status 2.

    Args:
      what: text for WHAT in the error message "another process WHAT".
      about: function that returns further fields for the lease file; called at each heartbeat and at the release.

    Raises:
      UserError: another process holds the folder, or the store cannot be reached.
      OSError: the folder cannot be written.
    """
    number, mine = _take(folder, what)
    lost = threading.Event()

    def beat(seconds: float) -> None:
        del seconds
        with contextlib.suppress(UserError, OSError):  # The next heartbeat may succeed.
            if not _is_mine(folder, number, mine):
                if storage.exists(os.path.dirname(folder)) and _newest(folder) > number and not lost.is_set():
                    lost.set()
                    os.write(
                        2, f"error: another process {what}, because this one sent no heartbeat for too long\n".encode()
                    )
                    os._exit(2)
                return
            storage.write(_path(folder, number), _encoded(mine | {"alive": time.time()} | about()))

    try:
        with progress.beating(beat, _BEAT, lambda seconds: _BEAT):
            yield
    finally:
        with contextlib.suppress(UserError, OSError):
            if _is_mine(folder, number, mine):
                storage.write(_path(folder, number), _encoded({"released": time.time()} | about()))


def is_mine(folder: str) -> bool:
    """Whether this process holds a folder."""
    number = _newest(folder)
    return bool(number) and _is_mine(folder, number, _identity())


def _is_mine(folder: str, number: int, mine: dict[str, Any]) -> bool:
    """Whether a lease number is the newest one and its holder is this process.

    The number alone does not identify the holder, because numbers start again at 1 if the folder was removed.
    """
    holder = _read(folder, number) if _newest(folder) == number else None
    return holder is not None and all(holder.get(name) == mine[name] for name in ("host", "pid", "process_start"))


def _take(folder: str, what: str) -> tuple[int, dict[str, Any]]:
    mine = _identity()
    while True:
        last = _newest(folder)
        holder = _read(folder, last) if last else None
        if holder == {} and not storage.is_remote(folder) and _changes(folder, last, _WRITING):
            continue
        if holder:
            _refuse_unless_free(folder, last, holder, what)
        path = _path(folder, last + 1)
        with contextlib.suppress(FileExistsError):
            storage.create(path, _encoded(mine | {"alive": time.time()}))
            # A process that was suspended for long may create a number that others have passed meanwhile.
            if _newest(folder) == last + 1:
                for older in _numbers(folder):
                    if older <= last:
                        storage.remove(_path(folder, older))
                return last + 1, mine
            storage.remove(path)


def _refuse_unless_free(folder: str, number: int, holder: dict[str, Any], what: str) -> None:
    if "released" in holder:
        return
    here = is_here(holder)
    if here and _started(holder["pid"]) != holder["process_start"]:
        return
    who = f"process {holder.get('pid')} on {holder.get('host')}, started {holder.get('began')}"
    if not here:
        with progress.doing(f"checking whether {who} is alive"):
            if not _changes(folder, number, _LEASE):
                return
    raise UserError(f"another process {what} ({who}): wait until it has ended, or stop it")


def _changes(folder: str, number: int, seconds: float) -> bool:
    """Whether the holder sends a heartbeat within `seconds`."""
    first, deadline = _read(folder, number), time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(min(1.0, seconds))
        now = _read(folder, number)
        if now is None or "released" in now:
            return False
        if now != first:
            return True
    return False


def _identity() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": os.getpid(),
        "process_start": _started(os.getpid()),
        "began": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()) + " UTC",
    }


def _machine() -> str | None:
    """Returns the machine's boot id and the PID namespace as one string; None if the system does not provide them."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return None


def is_here(holder: dict[str, Any]) -> bool:
    """Whether a holder, as returned by `taken`, is known to be a process of this machine."""
    return holder.get("machine") is not None and holder["machine"] == _machine()


def _started(pid: int) -> str | None:
    """Returns the start time of a process in ticks since boot; None if there is no such process or it has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    return None


def _path(folder: str, number: int) -> str:
    return os.path.join(folder, f"{number}.json")


def _numbers(folder: str) -> list[int]:
    return storage.numbers(folder, ".json")


def _newest(folder: str) -> int:
    return max(_numbers(folder), default=0)


def _read(folder: str, number: int) -> dict[str, Any] | None:
    """Returns the contents of a file; None if it is gone, and {} if it is incomplete or damaged."""
    try:
        content = strict_json.read(_path(folder, number))
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _encoded(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode("utf-8")
