"""Vectors in .npy files, written piece by piece, and checked block by block when they are read."""

import io
import itertools
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from plm_jax.common import storage
from plm_jax.common.errors import UserError, one_line

# Bytes of a vector, or of tokens, per CRC-32. Blocks are small, so that reading a remote cache fetches little more than
# it uses.
BLOCK_BYTES = 2**8
# Vectors of at most this number of bytes are read completely when they are opened.
_SHORT_BYTES = 2**24
# Bytes of checksums that are in memory at a time while a file is written.
_CHECKSUM_BYTES = 2**20
# Bytes of a long vector that are checked at a time.
_CHECKED_BYTES = 2**24
# Size of the header that NumPy writes before the values of a vector.
HEADER_BYTES = 128
# Name of the vector of checksums of a folder's files, and files in the parent of such folders.
CHECKSUMS = "checksums"
_TOP_FILES = ("manifest.json", "word_initial.npy", "words.npy")


class BlockChecksums:
    """CRC-32 of each block of a stream of bytes, complete after `close`.

    If there are many checksums, they are kept in a temporary file, to save memory.

    Args:
      block_bytes: number of bytes of a block.
    """

    def __init__(self, block_bytes: int):
        self._block_bytes = block_bytes
        self._rest = b""
        self._file = tempfile.SpooledTemporaryFile(_CHECKSUM_BYTES)  # noqa: SIM115
        self._length = 0

    def add(self, data: bytes | memoryview) -> None:
        """Adds the next bytes."""
        if self._rest:
            missing = self._block_bytes - len(self._rest)
            self._rest, data = self._rest + bytes(data[:missing]), data[missing:]
            if len(self._rest) < self._block_bytes:
                return
            self._write(self._rest)
        end = len(data) - len(data) % self._block_bytes
        self._write(data[:end])
        self._rest = bytes(data[end:])

    def _write(self, blocks: bytes | memoryview) -> None:
        checksums = np.array(crc32s(blocks, self._block_bytes), np.uint32)
        self._file.write(checksums.tobytes())
        self._length += len(checksums)

    def close(self) -> None:
        """Adds the checksum of the last block if it is incomplete."""
        self._write(self._rest)
        self._rest = b""

    def __len__(self) -> int:
        return self._length

    def tolist(self) -> list[int]:
        """Returns all checksums."""
        return [checksum for part in self.parts() for checksum in part.tolist()]

    def parts(self) -> Iterator[np.ndarray]:
        """Iterates over all checksums in consecutive parts, uint32 [n]."""
        self._file.seek(0)
        while data := self._file.read(_CHECKSUM_BYTES):
            yield np.frombuffer(data, np.uint32)


def crc32s(data: bytes | memoryview, block_bytes: int) -> list[int]:
    """Returns the CRC-32 of each block of `block_bytes` bytes; the last block may be shorter."""
    data = memoryview(data)
    return [zlib.crc32(data[start : start + block_bytes]) for start in range(0, len(data), block_bytes)]


class Checksums:
    """CRC-32 of each block of a file's values, used to check bytes that are read from the file."""

    def __init__(self, values: Any, first: int, number: int, block_bytes: int):
        """Creates the checksums `values[first : first + number]` of blocks of `block_bytes` bytes."""
        self._values, self._first, self._number, self.block_bytes = values, first, number, block_bytes

    def match(self, start: int, data: bytes | memoryview) -> bool:
        """Whether `data` matches the checksums of the file's values from byte `start` on.

        `start` must be the beginning of a block. `data` must consist of whole blocks, except at the end of the file.
        """
        checksums = crc32s(data, self.block_bytes)
        first = start // self.block_bytes
        if first + len(checksums) > self._number:
            return False
        return checksums == self._values[self._first + first : self._first + first + len(checksums)].tolist()

    def covering(self, start: int, stop: int, end: int) -> tuple[int, int]:
        """Returns the byte range of the blocks that contain bytes [start, stop); the last block ends at `end`."""
        size = self.block_bytes
        return start - start % size, min(-(-stop // size) * size, end)


class NpyAppender:
    """Writer of a vector to a .npy file, piece by piece; replaces an existing file.

    Attributes:
      checksums: CRC-32 of each block, complete after `close`.
    """

    def __init__(self, path: str, dtype: Any = "<i8"):
        self._dtype = np.dtype(dtype)
        self.checksums = BlockChecksums(BLOCK_BYTES)
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 (closed in close)
        self._length = 0
        self._write_header()

    def _write_header(self) -> None:
        """Writes or rewrites the header. NumPy pads the header, so that it has room for a longer length."""
        self._file.seek(0)
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values: np.ndarray) -> None:
        """Appends `values` [n], converted to the type of the file."""
        data = np.ascontiguousarray(values, self._dtype).view(np.uint8).data
        self._file.write(data)
        self._length += len(values)
        self.checksums.add(data)

    def close(self) -> int:
        """Closes the file, after syncing it to disk, and returns the length of the vector."""
        self._write_header()
        storage.sync(self._file)
        self._file.close()
        self.checksums.close()
        return self._length


def save(path: str, array: np.ndarray) -> BlockChecksums:
    """Writes a vector to a .npy file, syncs it to disk, and returns the checksums of its blocks."""
    file = NpyAppender(path, array.dtype)
    file.append(array)
    file.close()
    return file.checksums


def read_header(path: str, head: bytes, length: int, dtype: Any) -> int:
    """Returns the position of the first value in a .npy file, after checking its header.

    Args:
      path: path of the file in errors.
      head: first bytes of the file.

    Raises:
      UserError: the file does not contain a vector of this length and type.
    """
    file = io.BytesIO(head)
    try:
        np.lib.format.read_magic(file)
        shape, _, stored = np.lib.format.read_array_header_1_0(file)
    except Exception as error:  # NumPy raises various errors for an invalid header.
        raise damaged(path, one_line(error) or type(error).__name__) from error
    if shape != (length,) or stored != np.dtype(dtype):
        raise damaged(path, f"contains {stored}{list(shape)}, not {np.dtype(dtype)}[{length}]")
    return file.tell()


def load(
    path: str,
    length: int,
    dtype: Any = np.int64,
    checksums: Checksums | None = None,
    check: Callable[[np.ndarray], None] = lambda values: None,
) -> np.ndarray:
    """Returns the vector in a local .npy file after checking the whole vector.

    A short vector is read into memory, and a long vector is memory-mapped.

    Args:
      checksums: checksums of the file's blocks; None: the values are not compared with checksums.
      check: function that is called with the values, in several parts for a long vector. It raises an error if the
        values are invalid.

    Raises:
      UserError: the file is missing or damaged.
    """
    dtype = np.dtype(dtype)
    try:
        with open(path, "rb") as file:
            begin = read_header(path, file.read(HEADER_BYTES), length, dtype)
        size = length * dtype.itemsize
        if is_short(size):
            data = storage.read_range(path, begin, begin + size)
            values = np.frombuffer(data, dtype) if len(data) == size else None
        else:
            values = np.memmap(path, dtype, "r", begin, (length,)).view(np.ndarray)
    except (OSError, ValueError) as error:
        raise damaged(path, one_line(error)) from error
    if values is None:
        raise damaged(path, f"ends before byte {begin + size}")
    step = _CHECKED_BYTES // dtype.itemsize
    for first in range(0, length, step):
        part = values[first : first + step]
        if checksums is not None and not checksums.match(first * dtype.itemsize, part.view(np.uint8).data):
            raise damaged(path, "its bytes have changed")
        check(part)
    return values


def is_short(num_bytes: int) -> bool:
    """Whether a vector of this size is read whole when it is opened."""
    return num_bytes <= _SHORT_BYTES


def check_sorted(path: str, values: np.ndarray, limit: int | None) -> None:
    """Checks that a file's values are sorted and in [0, `limit`]; if `limit` is None, nothing is checked.

    Raises:
      UserError: the values are not sorted or not in [0, `limit`].
    """
    if limit is None or not len(values):
        return
    if values[0] < 0 or values[-1] > limit or (values[1:] < values[:-1]).any():
        raise damaged(path, f"its values are not sorted numbers from 0 to {limit}")


def save_checksums(folder: str, checksums: Mapping[str, BlockChecksums]) -> tuple[dict[str, int], int]:
    """Writes the checksums of several vectors, one vector after another, to the file of checksums in a folder.

    Returns:
      A pair: the number of checksums of each vector, by name, and the CRC-32 of all checksums.
    """
    file, crc32 = NpyAppender(os.path.join(folder, f"{CHECKSUMS}.npy"), np.uint32), 0
    for part in itertools.chain.from_iterable(crcs.parts() for crcs in checksums.values()):
        file.append(part)
        crc32 = zlib.crc32(part.data, crc32)
    file.close()
    return {name: len(crcs) for name, crcs in checksums.items()}, crc32


def damaged(path: str, reason: str) -> UserError:
    """Returns the error for a damaged file of a cache. Its message names the folder of the cache, to be deleted."""
    folder = os.path.dirname(path)
    folder = folder if os.path.basename(path) in _TOP_FILES else os.path.dirname(folder)
    return UserError(f"{path} is damaged ({reason}): delete {folder} and run `python -m plm_jax prepare --config=…`")
