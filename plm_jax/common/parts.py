"""Files of compressed records, divided into numbered parts that can be read separately.

A file consists of its parts, one after another. A part consists of frames. A frame begins with two little-endian
uint32, the sizes of a block before and after compression. The block follows, compressed with zlib. A record is never
divided among blocks. The file does not contain the offsets of the parts; the writer of the file returns them.

Several consecutive parts may be stored as one stored part. In it, two little-endian uint32 precede each record: the
number of the record's part and the size of the record.
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
    """Location of a part in a file.

    Attributes:
      path: path of the file.
      start: offset of the part's first byte in the file.
      stop: offset after the part's last byte.
      size: number of bytes of the part before compression.
    """

    path: str
    start: int
    stop: int
    size: int


class PartsWriter:
    """Writer that collects records by part, in any order, and writes them as one file.

    Records wait in a temporary file of this machine. This bounds the memory for up to about 2^14 stored parts.

    Args:
      num_parts: number of parts.
      width: number of consecutive parts that are stored as one.
      first: number of the first part.
      buffer_bytes: about the largest number of bytes of records in memory; 8 MiB by default. The fewer bytes there are
        per part, the smaller the blocks.

    Attributes:
      sizes: number of bytes of each stored part before compression; complete after `write`.
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
        """Writes all stored parts in order. Can be called only once.

        Returns:
          The offset of each stored part, followed by the size of the file.
        """
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
      UserError: a remote file does not exist, or its store cannot be reached.
      FileNotFoundError: a local file does not exist.
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
    """Yields pairs (number of the part, record) from a stored part of a writer with a `width` above 1.

    Records that were added by a single call of `add` are yielded as one record.
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
