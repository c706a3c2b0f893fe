"""Files of compressed records, divided into numbered parts that can be read separately.

A file consists of its parts, one after another. A part consists of frames: two little-endian uint32 with the sizes of a
block before and after compression, and the block, compressed with zlib. A record is never divided among blocks. The
offsets of the parts are not in the file; its writer returns them.
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

    Records wait in a temporary file of this machine, so memory is bounded for any number of parts up to about 2^14.

    Attributes:
      sizes: number of bytes of each part before compression.
    """

    def __init__(self, num_parts: int):
        self.sizes = array.array("Q", bytes(8 * num_parts))
        self._pending: dict[int, list[bytes]] = {}
        self._pending_sizes: dict[int, int] = {}
        self._total = 0
        self._frames: list[array.array] = [array.array("Q") for _ in range(num_parts)]
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._end = 0

    def add(self, part: int, record: bytes) -> None:
        """Adds one or more whole records to a part."""
        self._pending.setdefault(part, []).append(record)
        size = self._pending_sizes[part] = self._pending_sizes.get(part, 0) + len(record)
        self._total += len(record)
        if size >= _BLOCK_BYTES:
            self._flush(part)
        elif self._total >= _BUFFER_BYTES:
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
        """Writes all parts, in order. Returns the offset of each part, and the size of the file at the end."""
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
