"""The vectors in a folder, each compared with its checksums when it is read: short ones whole, long ones by pages."""

import functools
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from plm_jax.common import storage
from plm_jax.common.errors import one_line
from plm_jax.data.cache.mirror import Folder
from plm_jax.data.cache.sorted_ids import Ranged
from plm_jax.data.cache.vectors import BLOCK_BYTES, CHECKSUMS, Checksums, check_rising, damaged, is_short, load

# Of a vector in a bucket a page is what the reader's part of a file of tokens takes, within bounds; of checksums, those
# of a row.
_PAGE, _LEAST_PAGE, _LEAST_CHECKSUMS = 2**13, 2**6, 2**4


class Vectors:
    """The .npy files of a folder and the checksums of their blocks; safe to read from several threads."""

    def __init__(
        self,
        place: Folder,
        folder: str,
        blocks: Mapping[str, int],
        crc32: int,
        share: float = 1.0,
    ):
        """Opens none.

        Args:
          place: where `folder` is.
          blocks: number of checksums of each file, in the order of the files.
          crc32: that of all checksums.
          share: of the rows around each one that is read, how many are, too.
        """
        self._place, self._folder, self._share = place, folder, share
        self._blocks, self._crc32 = blocks, crc32
        self.checksums = functools.cache(self._checksums)

    def path(self, name: str) -> str:
        """The local path of a vector's file, which is fetched if need be."""
        return self._place(self._folder, f"{name}.npy")

    def _is_afar(self, name: str) -> bool:
        """Whether a vector is read where it is, in a bucket."""
        return self._place.is_remote and not self._place.has(self._folder, f"{name}.npy")

    def _checksums(self, name: str, block_bytes: int = BLOCK_BYTES) -> Checksums:
        """Returns the checksums of a file whose blocks have `block_bytes` bytes."""
        names = list(self._blocks)
        first = sum(self._blocks[before] for before in names[: names.index(name)])
        return Checksums(self._all_checksums, first, self._blocks[name], block_bytes)

    @functools.cached_property
    def _all_checksums(self) -> np.ndarray | Ranged:
        """Those of all files. Many are not checked themselves: a wrong one is that of no block."""
        length = sum(self._blocks.values())
        return self.verified_checksums() if is_short(4 * length) else self._ranged(CHECKSUMS, length, "<u4")

    def verified_checksums(self) -> np.ndarray:
        """Those of all files, all read and checked.

        Raises:
          UserError: they are missing or damaged.
        """
        path = self.path(CHECKSUMS)
        found = load(path, sum(self._blocks.values()), "<u4")
        if zlib.crc32(found.data) != self._crc32:
            raise damaged(path, "its bytes have changed")
        return found

    def open(
        self, name: str, length: int, dtype: Any, limit: int | None = None, milestones: np.ndarray | None = None
    ) -> np.ndarray | Ranged:
        """A vector.

        Args:
          limit: up to which its numbers rise from 0; None: they need not.
          milestones: to search in them, of rising ones.

        Raises:
          UserError: it is missing or damaged.
        """
        if is_short(length * np.dtype(dtype).itemsize):
            return self.whole(name, length, dtype, limit)
        return self._ranged(name, length, dtype, self.checksums(name), limit, milestones)

    def whole(self, name: str, length: int, dtype: Any, limit: int | None = None) -> np.ndarray:
        """All of a vector, as of `open`; a long one is memory-mapped."""
        path = self.path(name)
        checksums = self.checksums(name)
        return load(path, length, dtype, checksums, functools.partial(check_rising, path, limit=limit))

    def _ranged(
        self,
        name: str,
        length: int,
        dtype: Any,
        checksums: Checksums | None = None,
        limit: int | None = None,
        milestones: np.ndarray | None = None,
    ) -> Ranged:
        path, page = self.path(name) if not self._is_afar(name) else "", _PAGE
        if not path:
            path = self._place.origin(self._folder, f"{name}.npy")
            least = _LEAST_CHECKSUMS if name == CHECKSUMS else _LEAST_PAGE
            page = max(least, int(_PAGE * self._share))
        fetch = functools.partial(self._fetch, name)
        whole = functools.partial(self.whole, name, length, dtype, limit)
        return Ranged(path, fetch, whole, length, dtype, page, checksums, limit, milestones)

    def _fetch(self, name: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of a vector's file."""
        if self._is_afar(name):
            return self._place.read(start, stop, self._folder, f"{name}.npy")
        path = self.path(name)
        try:
            return storage.read_range(path, start, stop)
        except OSError as error:
            raise damaged(path, one_line(error)) from error
