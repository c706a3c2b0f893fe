"""Folders of jobs: one driver at a time works in a folder, and a job of another identity or version replaces it.

WORK/lease/    lease of the driver (`leases.py`)
WORK/HASH/     folder of the job (`tasks.py`)
"""

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator

from plm_jax.common import leases, package, storage, tasks
from plm_jax.common.errors import UserError

LEASE = "lease"


@contextlib.contextmanager
def exclusive(work: str, what: str) -> Iterator[None]:
    """Context manager that locks a folder of jobs. At the end, a folder without jobs is removed.

    Args:
      what: use of the folder in error messages, as in "another process WHAT".

    Raises:
      UserError: another process uses the folder, or it cannot be written.
    """
    lease = os.path.join(work, LEASE)
    try:
        with leases.held(lease, what):
            try:
                yield
            finally:
                if storage.names(work) == [LEASE] and leases.is_mine(lease):
                    storage.remove(work)
    except PermissionError as error:
        raise UserError(f"cannot write {error.filename}: make it writable, or choose another folder") from error


def begin(work: str, identity: str) -> tasks.Job:
    """Returns the job of this identity and version, whose folder has a name of its own. Removes all other jobs."""
    version = package.version()
    name = hashlib.sha256(f"{identity} {version}".encode()).hexdigest()[:16]
    abandoned = [other for other in storage.names(work) if other not in (name, LEASE)]
    if abandoned:
        print("an unfinished run with other settings, inputs or another version is discarded", file=sys.stderr)
    for other in abandoned:
        storage.remove(os.path.join(work, other))
    return tasks.Job(os.path.join(work, name), identity, version)


def clear(work: str) -> None:
    """Removes all jobs of a folder, but not the lease, so that no other run begins meanwhile."""
    for name in storage.names(work):
        if name != LEASE:
            storage.remove(os.path.join(work, name))
