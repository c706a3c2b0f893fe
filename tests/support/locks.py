"""Locks of files as on network disks, in place of `fcntl.flock`."""

import errno
import fcntl
import os

_flock = fcntl.flock


def _on_nfs(file, operation: int) -> None:
    """Locks a file as NFS does: an exclusive lock needs a file that is open for writing (flock(2), "NFS details")."""
    if operation & fcntl.LOCK_EX and not file.writable():
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    _flock(file, operation)


def _without_locks(file, operation: int) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


FLOCKS = {"nfs": _on_nfs, "without locks": _without_locks}
