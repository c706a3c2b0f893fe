"""Vectors of a folder, compared with their checksums when they are read.

Short vectors are read whole, and long vectors page by page.
"""

import functools
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from plm_jax.common import storage
from plm_jax.common.errors import one_line
from plm_jax.data.cache.mirror import Folder
from plm_jax.data.cache.sorted_ids import PagedVector
from plm_jax.data.cache.vectors import BLOCK_BYTES, CHECKSUMS, Checksums, check_sorted, damaged, is_short, load

# Values per page. Pages of remote vectors shrink with the share of the rows that this process reads, down to a minimum,
# which is smaller for checksums.
_PAGE, _MIN_PAGE, _MIN_CHECKSUMS_PAGE = 2**13, 2**6, 2**4


class Vectors:
    """Vectors in the .npy files of a folder, with the checksums of their blocks; can be read from several threads."""

    def __init__(
        self,
        root: Folder,
        folder: str,
        blocks: Mapping[str, int],
        crc32: int,
        share: float = 1.0,
    ):
        """Creates the vectors without opening a file.

        Args:
          root: folder that contains `folder`.
          folder: name of the folder that contains the files.
          blocks: dict from the name of each vector to its number of checksums, in the order in which the file of
            checksums has them.
          crc32: CRC-32 of all checksums.
          share: share of the rows of a batch that this process reads, between 0 and 1.
        """
        self._root, self._folder, self._share = root, folder, share
        self._blocks, self._crc32 = blocks, crc32
        self.checksums = functools.cache(self._checksums)

    def path(self, name: str) -> str:
        """Returns the local path of a vector's file, after fetching the file if necessary."""
        return self._root(self._folder, f"{name}.npy")

    def _is_remote(self, name: str) -> bool:
        """Whether a vector is in a bucket and has no local copy."""
        return self._root.is_remote and not self._root.has(self._folder, f"{name}.npy")

    def _checksums(self, name: str, block_bytes: int = BLOCK_BYTES) -> Checksums:
        """Returns the checksums of a file whose blocks have `block_bytes` bytes."""
        names = list(self._blocks)
        first = sum(self._blocks[before] for before in names[: names.index(name)])
        return Checksums(self._all_checksums, first, self._blocks[name], block_bytes)

    @functools.cached_property
    def _all_checksums(self) -> np.ndarray | PagedVector:
        """Checksums of all files.

        A long vector of checksums is not checked itself, because a wrong checksum matches no block.
        """
        length = sum(self._blocks.values())
        return self.verified_checksums() if is_short(4 * length) else self._paged(CHECKSUMS, length, "<u4")

    def verified_checksums(self) -> np.ndarray:
        """Reads and checks the checksums of all files.

        Raises:
          UserError: the file of checksums is missing or damaged.
        """
        path = self.path(CHECKSUMS)
        checksums = load(path, sum(self._blocks.values()), "<u4")
        if zlib.crc32(checksums.data) != self._crc32:
            raise damaged(path, "its bytes have changed")
        return checksums

    def open(
        self, name: str, length: int, dtype: Any, limit: int | None = None, milestones: np.ndarray | None = None
    ) -> np.ndarray | PagedVector:
        """Opens a vector: reads a short vector whole, and returns a long vector as a `PagedVector`.

        Args:
          limit: maximum value of a vector that must be sorted and not negative; None: the values are not checked.
          milestones: result of `sorted_ids.milestones` for the vector, with which a long vector can be searched; None:
            it cannot be searched.

        Raises:
          UserError: the file of the vector is missing or damaged.
        """
        if is_short(length * np.dtype(dtype).itemsize):
            return self.whole(name, length, dtype, limit)
        return self._paged(name, length, dtype, self.checksums(name), limit, milestones)

    def whole(self, name: str, length: int, dtype: Any, limit: int | None = None) -> np.ndarray:
        """Reads and checks a whole vector; a long vector is memory-mapped. Arguments and errors are those of `open`."""
        path = self.path(name)
        checksums = self.checksums(name)
        return load(path, length, dtype, checksums, functools.partial(check_sorted, path, limit=limit))

    def _paged(
        self,
        name: str,
        length: int,
        dtype: Any,
        checksums: Checksums | None = None,
        limit: int | None = None,
        milestones: np.ndarray | None = None,
    ) -> PagedVector:
        path, page = self.path(name) if not self._is_remote(name) else "", _PAGE
        if not path:
            path = self._root.origin(self._folder, f"{name}.npy")
            min_page = _MIN_CHECKSUMS_PAGE if name == CHECKSUMS else _MIN_PAGE
            page = max(min_page, int(_PAGE * self._share))
        fetch = functools.partial(self._fetch, name)
        whole = functools.partial(self.whole, name, length, dtype, limit)
        return PagedVector(path, fetch, whole, length, dtype, page, checksums, limit, milestones)

    def _fetch(self, name: str, start: int, stop: int) -> bytes:
        """Reads bytes [start, stop) of a vector's file."""
        if self._is_remote(name):
            return self._root.read(start, stop, self._folder, f"{name}.npy")
        path = self.path(name)
        try:
            return storage.read_range(path, start, stop)
        except OSError as error:
            raise damaged(path, one_line(error)) from error
