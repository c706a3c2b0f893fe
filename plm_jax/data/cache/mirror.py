"""Where the files of a cache are: in a folder of this machine, or in a bucket with local copies of what is read."""

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
from plm_jax.data.cache.form import read_manifest

# How much of the disk the token files of remote caches may take together, and how many fetches go between two looks.
_MIRROR_BYTES = 2**35
_MIRROR_FETCHES = 64
# How long bytes are fetched before it is looked whether the cache is still the one that was opened.
_LOOK_SECONDS = 60.0


class Folder:
    """A folder of a cache on this machine."""

    is_remote: ClassVar[bool] = False

    def __init__(self, folder: str):
        self.folder = folder

    def __call__(self, *names: str) -> str:
        """The local path of a file."""
        return os.path.join(self.folder, *names)

    def origin(self, *names: str) -> str:
        """The path of a file where the cache is."""
        return os.path.join(self.folder, *names)

    def has(self, *names: str) -> bool:
        """Whether a file is on this machine."""
        return os.path.exists(os.path.join(self.folder, *names))

    def read(self, start: int, stop: int, *names: str) -> bytes:
        """Returns bytes [start, stop) of a file."""
        return storage.read_range(self(*names), start, stop)


class Mirror(Folder):
    """Local copies of the files of a remote cache, fetched when they are first asked for, for all of this machine.

    The token files that were not read for longest go when those of all caches take more than `_MIRROR_BYTES`.
    """

    is_remote: ClassVar[bool] = True

    def __init__(self, remote: str, identity: str):
        super().__init__(storage.cache_folder("mirror", identity))
        self._remote, self._identity = remote, identity
        self._fetches = itertools.count()
        self._looked = time.monotonic()

    def __call__(self, *names: str) -> str:
        """The local path of a file of the cache.

        Raises:
          UserError: it cannot be fetched, or another cache has taken the place of this one.
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
        """Bytes [start, stop) of a file, of which no copy is kept.

        Raises:
          UserError: as of a call; that another cache has taken the place is seen within a minute.
        """
        data = storage.read_range(self.origin(*names), start, stop)
        if time.monotonic() > self._looked + _LOOK_SECONDS:
            self._look()
        return data

    def _look(self) -> None:
        """Whoever replaces a cache removes its manifest first: while it stands, what was fetched is of this one."""
        self._looked = time.monotonic()
        if read_manifest(self._remote)["identity"] != self._identity:
            raise UserError(f"another cache has taken the place of {self._remote}: start again")

    def _fetch(self, names: tuple[str, ...], path: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{uuid.uuid4().hex}"
        try:
            storage.download(self.origin(*names), temporary)
            self._look()
            os.replace(temporary, path)
        finally:
            storage.remove(temporary)
        if next(self._fetches) % _MIRROR_FETCHES == 0:
            prune(storage.cache_folder("mirror"), _MIRROR_BYTES)


def prune(folder: str, limit: int) -> None:
    """Removes the token files below `folder` that were not read for longest while all have more than `limit` bytes."""
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
