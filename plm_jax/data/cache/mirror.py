"""Files of a cache, which is a local folder, or a folder in a bucket with local copies of the files that are read."""

import contextlib
import glob
import itertools
import os
import time
import uuid
from typing import ClassVar

from typing_extensions import override

from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data.cache.file_format import read_manifest

# Disk space for the token files of all remote caches, and number of fetches after which it is checked.
_MIRROR_BYTES = 2**35
_MIRROR_FETCHES = 64
# Time after which a read checks again whether another cache has replaced the cache that was opened.
_CHECK_SECONDS = 60.0


class Folder:
    """Folder of a cache on this machine."""

    is_remote: ClassVar[bool] = False

    def __init__(self, folder: str):
        self.folder = folder

    def __call__(self, *names: str) -> str:
        """Returns the local path of the file with these path components."""
        return os.path.join(self.folder, *names)

    def origin(self, *names: str) -> str:
        """Returns the path of a file in the cache itself, which is remote for a `Mirror`."""
        return os.path.join(self.folder, *names)

    def has(self, *names: str) -> bool:
        """Returns whether the file with these path components is on this machine."""
        return os.path.exists(os.path.join(self.folder, *names))

    def read(self, start: int, stop: int, *names: str) -> bytes:
        """Returns bytes [start, stop) of a file."""
        return storage.read_range(self(*names), start, stop)


class Mirror(Folder):
    """Local copies of the files of a remote cache, fetched on first use and shared by all processes of this machine.

    After every 64 fetches, the least recently read token files are removed if the copied token files of all caches
    together exceed `_MIRROR_BYTES`.
    """

    is_remote: ClassVar[bool] = True

    def __init__(self, remote: str, identity: str):
        super().__init__(storage.cache_folder("mirror", identity))
        self._remote, self._identity = remote, identity
        self._fetches = itertools.count()
        self._checked_at = time.monotonic()

    def __call__(self, *names: str) -> str:
        """Returns the local path of a file of the cache, after fetching the file if necessary.

        Raises:
          UserError: the file cannot be fetched, or another cache has replaced this one.
        """
        path = super().__call__(*names)
        try:
            os.utime(path)
        except FileNotFoundError:
            self._fetch(names, path)
        return path

    @override
    def origin(self, *names: str) -> str:
        return os.path.join(self._remote, *names)

    @override
    def read(self, start: int, stop: int, *names: str) -> bytes:
        """Reads bytes [start, stop) of a remote file without copying it.

        Raises:
          UserError: the file cannot be read, or another cache has replaced this one. This is checked at most once a
            minute.
        """
        data = storage.read_range(self.origin(*names), start, stop)
        if time.monotonic() > self._checked_at + _CHECK_SECONDS:
            self._check_identity()
        return data

    def _check_identity(self) -> None:
        """Checks that the remote manifest still belongs to this cache.

        When a cache is replaced, its manifest is removed first. If the manifest is unchanged, the files fetched before
        the check thus belong to this cache.
        """
        self._checked_at = time.monotonic()
        if read_manifest(self._remote)["identity"] != self._identity:
            raise UserError(f"another cache has replaced {self._remote}: run the same command again")

    def _fetch(self, names: tuple[str, ...], path: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{uuid.uuid4().hex}"
        try:
            storage.download(self.origin(*names), temporary)
            self._check_identity()
            os.replace(temporary, path)
        finally:
            storage.remove(temporary)
        if next(self._fetches) % _MIRROR_FETCHES == 0:
            prune(storage.cache_folder("mirror"), _MIRROR_BYTES)


def prune(folder: str, limit: int) -> None:
    """Removes token files below `folder`, the least recently read first, until `limit` bytes or one file remain."""
    shards = []
    for path in glob.iglob(os.path.join(glob.escape(folder), "*", "*", "tokens-*")):
        with contextlib.suppress(FileNotFoundError):  # Other processes prune too.
            stat = os.stat(path)
            shards.append((stat.st_mtime_ns, stat.st_size, path))
    total = sum(size for _, size, _ in shards)
    for _, size, path in sorted(shards)[:-1]:
        if total <= limit:
            break
        storage.remove(path)
        total -= size
