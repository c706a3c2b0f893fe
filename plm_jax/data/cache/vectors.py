"""Vectors in .npy files: written piece by piece, and checked block by block when they are read."""

import io
import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np

from plm_jax.common import storage
from plm_jax.common.errors import UserError, one_line

# The bytes of a vector, or of tokens, have a CRC-32 for each block of so many: few, since of a cache in a bucket not
# much more is fetched than is used. Vectors of up to so many bytes are read whole when they are opened.
BLOCK_BYTES = 2**8
_SHORT_BYTES = 2**24
# Long ones are checked so much at a time.
_STRETCH_BYTES = 2**24
# What NumPy writes before the numbers of a vector.
HEADER_BYTES = 128
# The vector of checksums of a folder's files, and the files that are above such folders.
CHECKSUMS = "checksums"
_UPPERMOST = ("manifest.json", "word_initial.npy")


class BlockChecksums:
    """The CRC-32 of each block of bytes that come piece by piece.

    Attributes:
      found: those of the whole blocks so far, and once it is closed of the rest.
    """

    def __init__(self) -> None:
        self.found: list[int] = []
        self._rest = b""

    def add(self, data: bytes | memoryview) -> None:
        """The bytes that follow."""
        if self._rest:
            taken = BLOCK_BYTES - len(self._rest)
            self._rest, data = self._rest + bytes(data[:taken]), data[taken:]
            if len(self._rest) < BLOCK_BYTES:
                return
            self.found.append(zlib.crc32(self._rest))
        end = len(data) - len(data) % BLOCK_BYTES
        self.found += crc32s(data[:end], BLOCK_BYTES)
        self._rest = bytes(data[end:])

    def close(self) -> list[int]:
        """All of them."""
        self.found += crc32s(self._rest, BLOCK_BYTES)
        self._rest = b""
        return self.found


def crc32s(data: bytes | memoryview, block_bytes: int) -> list[int]:
    """The CRC-32 of each block, of which the last may be shorter."""
    data = memoryview(data)
    return [zlib.crc32(data[at : at + block_bytes]) for at in range(0, len(data), block_bytes)]


class Checksums:
    """The CRC-32 of each block of a file's values, to be compared with what is read of it."""

    def __init__(self, values: Any, first: int, number: int, block_bytes: int):
        """They are `number` of `values`, a vector, from `first` on."""
        self._values, self._first, self._number, self.block_bytes = values, first, number, block_bytes

    def are(self, start: int, data: bytes | memoryview) -> bool:
        """Whether these are the bytes from byte `start` of the values on; whole blocks, or up to the end."""
        found = crc32s(data, self.block_bytes)
        first = start // self.block_bytes
        if first + len(found) > self._number:
            return False
        return found == self._values[self._first + first : self._first + first + len(found)].tolist()

    def covering(self, start: int, stop: int, end: int) -> tuple[int, int]:
        """The bytes of the blocks that bytes [start, stop) are in, of values that have `end` bytes."""
        size = self.block_bytes
        return start - start % size, min(-(-stop // size) * size, end)


class NpyAppender:
    """Writes a vector of unknown length to a .npy file, piece by piece.

    Attributes:
      checksums: once it is closed, the CRC-32 of each block.
    """

    def __init__(self, path: str, dtype: Any = "<i8"):
        self._dtype = np.dtype(dtype)
        self._blocks = BlockChecksums()
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 (closed in close)
        self._length = 0
        self._write_header()

    def _write_header(self) -> None:
        """NumPy leaves room in the header for the first axis to grow, so it can be rewritten in place."""
        self._file.seek(0)
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values: np.ndarray) -> None:
        """Adds `values` [n]."""
        data = np.ascontiguousarray(values, self._dtype).view(np.uint8).data
        self._file.write(data)
        self._length += len(values)
        self._blocks.add(data)

    def close(self) -> int:
        """Ends the file and gives its length."""
        self._write_header()
        storage.sync(self._file)
        self._file.close()
        self.checksums = self._blocks.close()
        return self._length


def save(path: str, array: np.ndarray) -> list[int]:
    """Writes a vector to a .npy file, syncs it, and gives the checksums of its blocks."""
    file = NpyAppender(path, array.dtype)
    file.append(array)
    file.close()
    return file.checksums


def read_header(path: str, head: bytes, length: int, dtype: Any) -> int:
    """Where the values begin in the .npy file of a vector that begins with `head`.

    Raises:
      UserError: it is not the file of such a vector; `path` is what it is called then.
    """
    file = io.BytesIO(head)
    try:
        np.lib.format.read_magic(file)
        shape, _, found = np.lib.format.read_array_header_1_0(file)
    except Exception as error:  # NumPy has no one error for bytes that are no header.
        raise damaged(path, one_line(error) or type(error).__name__) from error
    if shape != (length,) or found != np.dtype(dtype):
        raise damaged(path, f"holds {found}{list(shape)}, not {np.dtype(dtype)}[{length}]")
    return file.tell()


def load(
    path: str,
    length: int,
    dtype: Any = np.int64,
    checksums: Checksums | None = None,
    check: Callable[[np.ndarray], None] = lambda values: None,
) -> np.ndarray:
    """A vector of a local .npy file, all of it checked: a short one in memory, a long one memory-mapped.

    Args:
      check: is given the values, or one long stretch after another, to raise what is wrong with them.

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
    step = _STRETCH_BYTES // dtype.itemsize
    for first in range(0, length, step):
        part = values[first : first + step]
        if checksums is not None and not checksums.are(first * dtype.itemsize, part.view(np.uint8).data):
            raise damaged(path, "its bytes have changed")
        check(part)
    return values


def is_short(num_bytes: int) -> bool:
    """Whether a vector is read whole when it is opened."""
    return num_bytes <= _SHORT_BYTES


def check_rising(path: str, values: np.ndarray, limit: int | None) -> None:
    """Raises a `UserError` unless values, a stretch of a file's, rise from 0 on to at most `limit`; None: they may."""
    if limit is None or not len(values):
        return
    if values[0] < 0 or values[-1] > limit or (values[1:] < values[:-1]).any():
        raise damaged(path, f"its numbers do not rise from 0 to {limit}")


def save_checksums(folder: str, checksums: Mapping[str, list[int]]) -> tuple[dict[str, int], int]:
    """Writes the checksums of the files of a folder; gives how many each file has, and the CRC-32 of all of them."""
    values = np.array([crc for of_file in checksums.values() for crc in of_file], np.uint32)
    save(os.path.join(folder, f"{CHECKSUMS}.npy"), values)
    return {name: len(of_file) for name, of_file in checksums.items()}, zlib.crc32(values.data)


def damaged(path: str, what: str) -> UserError:
    """What is told of a file of a cache, or of a folder in it, that cannot be as it was written."""
    folder = os.path.dirname(path)
    folder = folder if os.path.basename(path) in _UPPERMOST else os.path.dirname(folder)
    return UserError(f"{path} is damaged ({what}): delete {folder} and run `python -m plm_jax prepare --config=…`")
