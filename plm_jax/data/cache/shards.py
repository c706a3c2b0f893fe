"""Where bytes lie in a file of tokens, for those who fetch a part of it.

ArrayRecord's files are Riegeli's, ours of one uncompressed record a chunk: a signature, then chunk after chunk, each a
header and the record's size before its bytes, and across all of it a block header every 64 KiB (google/riegeli,
doc/riegeli_records_file_format.md). The position of each byte of the records can thus be computed. There is no hash of
a part of a file.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

Fetch = Callable[[int, int], bytes]

_BLOCK, _BLOCK_HEADER = 2**16, 24
_ROOM = _BLOCK - _BLOCK_HEADER
# Two hashes, the size of the data, the kind and number of records (8 bytes together), and the size of the records.
_CHUNK_HEADER_BYTES = 40


class Shard(NamedTuple):
    """A file of records.

    Attributes:
      fetch: gives bytes [start, stop) of the file.
      record_bytes: of each record but the last, which may be shorter.
      num_bytes: of all records together.
    """

    fetch: Fetch
    record_bytes: int
    num_bytes: int

    def read(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of the records one after another, in one fetch.

        Raises:
          ValueError: the file ends before.
        """
        size, records = self.record_bytes, range(start // self.record_bytes, (stop - 1) // self.record_bytes + 1)
        shifts = [self._begin(record) - record * size for record in records]
        first = shifts[0] + start
        data = self._fetch(first, shifts[-1] + stop)
        edges = [start, *(record * size for record in records[1:]), stop]
        parts = zip(shifts, edges[:-1], edges[1:], strict=True)
        return b"".join(data[shift + begin - first : shift + end - first] for shift, begin, end in parts)

    def _size(self, record: int) -> int:
        return min(self.record_bytes, self.num_bytes - record * self.record_bytes)

    def _begin(self, record: int) -> int:
        """Where a record's bytes begin, block headers left out; a file's signature is as long as a chunk's header."""
        header = _CHUNK_HEADER_BYTES
        whole = header + len(_prefix(self.record_bytes)) + self.record_bytes
        return header + record * whole + header + len(_prefix(self._size(record)))

    def _fetch(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of the file without its block headers."""
        first, end = _place(start), _place(stop - 1) + 1
        data = self.fetch(first, end)
        if len(data) != end - first:
            raise ValueError(f"ends before byte {end}")
        edges = itertools.pairwise([start, *range((start // _ROOM + 1) * _ROOM, stop, _ROOM), stop])
        return b"".join(data[_place(begin) - first : _place(end - 1) + 1 - first] for begin, end in edges)


def _place(byte: int) -> int:
    """Where a byte is in the file that would be at `byte` without block headers."""
    return byte + _BLOCK_HEADER * (byte // _ROOM + 1)


def _prefix(size: int) -> bytes:
    """The begin of a chunk's data: not compressed, then as varints how long its list of sizes is, and the one size."""
    digits = []
    while size >= 0x80:
        digits.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([0, len(digits) + 1, *digits, size])
