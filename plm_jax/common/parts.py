"""Files of compressed records, divided into numbered parts that can be read separately.

A file consists of its parts, one after another. A part consists of frames: two little-endian uint32 with the sizes of a
block before and after compression, and the block, compressed with zlib. A record is never divided among blocks. The
offsets of the parts are not in the file; its writer returns them.

Several consecutive parts may be stored as one. Each of its records is preceded by two little-endian uint32: the number
of its part, and its size.
"""

import array
import io
import struct
import tempfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from plm_jax.common import storage

_FRAME = struct.Struct("<II")
_NUMBERED = struct.Struct("<II")
# Bytes of a part's records that are compressed together, and of all parts' records in memory.
_BLOCK_BYTES, _BUFFER_BYTES = 2**17, 2**23
_LEVEL = 1
_COPY_BYTES = 2**20


class Slice(NamedTuple):
    """Part of a file.

    Attributes:
      path: path of the file.
      start: offset of its first byte.
      stop: offset after its last byte.
      size: number of its bytes before compression.
    """

    path: str
    start: int
    stop: int
    size: int


class PartsWriter:
    """Collects records by part, in any order, and writes them as one file.

    Records wait in a temporary file of this machine, so memory is bounded for any number of stored parts up to about
    2^14.

    Args:
      num_parts: number of parts.
      width: number of consecutive parts that are stored as one.
      first: number of the first part.
      buffer_bytes: bytes of records in memory. Blocks are small if it is small for the number of parts.

    Attributes:
      sizes: number of bytes of each stored part before compression.
    """

    def __init__(self, num_parts: int, width: int = 1, first: int = 0, buffer_bytes: int | None = None):
        self._width, self._first = width, first
        self._buffer_bytes = _BUFFER_BYTES if buffer_bytes is None else buffer_bytes
        num_stored = -(-num_parts // width)
        self.sizes = array.array("Q", bytes(8 * num_stored))
        self._pending: dict[int, list[bytes]] = {}
        self._pending_sizes: dict[int, int] = {}
        self._total = 0
        self._frames: list[array.array] = [array.array("Q") for _ in range(num_stored)]
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._end = 0

    def add(self, part: int, record: bytes) -> None:
        """Adds one or more whole records to a part."""
        if self._width > 1:
            record = _NUMBERED.pack(part, len(record)) + record
        part = (part - self._first) // self._width
        self._pending.setdefault(part, []).append(record)
        size = self._pending_sizes[part] = self._pending_sizes.get(part, 0) + len(record)
        self._total += len(record)
        if size >= _BLOCK_BYTES:
            self._flush(part)
        elif self._total >= self._buffer_bytes:
            for number in sorted(self._pending_sizes, key=self._pending_sizes.__getitem__)[len(self._pending) // 2 :]:
                self._flush(number)

    def _flush(self, part: int) -> None:
        block = b"".join(self._pending.pop(part))
        size = self._pending_sizes.pop(part)
        self._total -= size
        self.sizes[part] += size
        compressed = zlib.compress(block, _LEVEL)
        self._file.write(_FRAME.pack(len(block), len(compressed)))
        self._file.write(compressed)
        frame = _FRAME.size + len(compressed)
        self._frames[part].extend((self._end, frame))
        self._end += frame

    def write(self, file: BinaryIO) -> list[int]:
        """Writes all stored parts, in order. Returns the offset of each one, and the size of the file at the end."""
        for part in sorted(self._pending):
            self._flush(part)
        offsets, position = [0], 0
        with self._file as spooled:
            for frames in self._frames:
                for start, size in zip(frames[::2], frames[1::2], strict=True):
                    spooled.seek(start)
                    for first in range(0, size, _COPY_BYTES):
                        file.write(spooled.read(min(_COPY_BYTES, size - first)))
                    position += size
                offsets.append(position)
        return offsets


def blocks(part: Slice) -> Iterator[bytes]:
    """Iterates over the blocks of records of a part.

    Raises:
      FileNotFoundError: the file does not exist.
      ValueError: the file is damaged.
    """
    if part.stop == part.start:
        return
    if storage.is_remote(part.path):
        yield from _blocks(io.BytesIO(storage.read_range(part.path, part.start, part.stop)), part.stop - part.start)
        return
    with storage.open_binary(part.path) as file:
        file.seek(part.start)
        yield from _blocks(file, part.stop - part.start)


def numbered_records(part: Slice) -> Iterator[tuple[int, bytes]]:
    """Iterates over the records of a stored part that contains several parts, each with the number of its part.

    Records that were added by one call of `add` are yielded as one.
    """
    for block in blocks(part):
        position = 0
        while position < len(block):
            number, size = _NUMBERED.unpack_from(block, position)
            position += _NUMBERED.size + size
            yield number, block[position - size : position]


def _blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size:
        header = file.read(_FRAME.size)
        if len(header) < _FRAME.size:
            raise ValueError("a file between two stages is cut off")
        expected, compressed = _FRAME.unpack(header)
        try:
            block = zlib.decompress(file.read(compressed))
        except zlib.error as error:
            raise ValueError(f"a file between two stages is damaged: {error}") from error
        if len(block) != expected:
            raise ValueError("a file between two stages is damaged")
        yield block
        size -= _FRAME.size + compressed
