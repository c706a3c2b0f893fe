"""Local copies of the files of remote caches."""

import contextlib
import glob
import itertools
import os
import uuid

from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data.cache.form import read_manifest

# How much of the disk the token files of remote caches may take together, and how many fetches go between two looks.
_MIRROR_BYTES = 2**35
_MIRROR_FETCHES = 64


class Mirror:
    """Local copies of the files of a remote cache, fetched when they are first asked for, for all of this machine.

    The token files that were not read for longest go when those of all caches take more than `_MIRROR_BYTES`.
    """

    def __init__(self, remote: str, identity: str):
        self.folder = storage.cache_folder("mirror", identity)
        self._remote, self._identity = remote, identity
        self._fetches = itertools.count()

    def __call__(self, *names: str) -> str:
        """The local path of a file of the cache.

        Raises:
          UserError: it cannot be fetched, or another cache has taken the place of this one.
        """
        path = os.path.join(self.folder, *names)
        try:
            os.utime(path)
        except FileNotFoundError:
            self._fetch(names, path)
        return path

    def _fetch(self, names: tuple[str, ...], path: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{uuid.uuid4().hex}"
        try:
            storage.download(os.path.join(self._remote, *names), temporary)
            # Whoever replaces a cache removes its manifest first: what is fetched while this one stands is of this one.
            if read_manifest(self._remote)["identity"] != self._identity:
                raise UserError(f"another cache has taken the place of {self._remote}: start again")
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
