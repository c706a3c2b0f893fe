"""Folders of jobs. One driver at a time works in a folder.

A new job replaces jobs with another identity or version.

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
    """Locks a folder of jobs while the context is active, and then removes the folder if it has no jobs.

    Args:
      what: text for WHAT in the error message "another process WHAT".

    Raises:
      UserError: another process uses the folder, the store cannot be reached, or writing to the folder is not
        permitted.
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
    """Returns the job with this identity and the current version of the package. Removes all other jobs of the folder.

    The job's folder is named after a hash of the identity and the version.
    """
    version = package.version()
    name = hashlib.sha256(f"{identity} {version}".encode()).hexdigest()[:16]
    abandoned = [other for other in storage.names(work) if other not in (name, LEASE)]
    if abandoned:
        print("an unfinished run with other settings, inputs or another version is discarded", file=sys.stderr)
    for other in abandoned:
        storage.remove(os.path.join(work, other))
    return tasks.Job(os.path.join(work, name), identity, version)


def clear(work: str) -> None:
    """Removes all jobs of a folder and keeps the lease. No other run can then begin meanwhile."""
    for name in storage.names(work):
        if name != LEASE:
            storage.remove(os.path.join(work, name))
