"""Positions of bytes in a token file, used to fetch a part of the file.

ArrayRecord files are Riegeli files; `writer.py` writes one uncompressed record per chunk. A file consists of a
signature and chunks. A chunk consists of a header, the size of the record and the bytes of the record. Block headers
interrupt the file every 64 KiB (google/riegeli, doc/riegeli_records_file_format.md). The position of each byte of the
records can thus be computed. The hashes in the format cannot verify a part of a record.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

Fetch = Callable[[int, int], bytes]

_BLOCK, _BLOCK_HEADER = 2**16, 24
_PAYLOAD = _BLOCK - _BLOCK_HEADER
# Two hashes, the size of the data, the kind and number of records (8 bytes together), and the size of the records.
_CHUNK_HEADER_BYTES = 40


class Shard(NamedTuple):
    """Token file, from which bytes of the records can be fetched.

    Attributes:
      fetch: function that returns bytes [start, stop) of the file.
      record_bytes: number of bytes of each record; the last record may be shorter.
      num_bytes: total number of bytes of the records.
    """

    fetch: Fetch
    record_bytes: int
    num_bytes: int

    def read(self, start: int, stop: int) -> bytes:
        """Returns bytes [start, stop) of the concatenated records, in one fetch.

        Raises:
          ValueError: the file is too short.
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
        """Returns the position of a record's first byte, not counting block headers.

        The signature of the file, which is as long as the header of a chunk, precedes the first chunk.
        """
        header = _CHUNK_HEADER_BYTES
        chunk = header + len(_prefix(self.record_bytes)) + self.record_bytes
        return header + record * chunk + header + len(_prefix(self._size(record)))

    def _fetch(self, start: int, stop: int) -> bytes:
        """Returns bytes [start, stop) of the file without its block headers."""
        first, end = _position(start), _position(stop - 1) + 1
        data = self.fetch(first, end)
        if len(data) != end - first:
            raise ValueError(f"ends before byte {end}")
        edges = itertools.pairwise([start, *range((start // _PAYLOAD + 1) * _PAYLOAD, stop, _PAYLOAD), stop])
        return b"".join(data[_position(begin) - first : _position(end - 1) + 1 - first] for begin, end in edges)


def _position(byte: int) -> int:
    """Converts a position that does not count block headers to a position in the file."""
    return byte + _BLOCK_HEADER * (byte // _PAYLOAD + 1)


def _prefix(size: int) -> bytes:
    """Returns the first bytes of the data of a chunk with one record of `size` bytes.

    These bytes are the type of compression (none), the length in bytes of the list of sizes, and the list, which has
    only `size`. The length and `size` are varints.
    """
    digits = []
    while size >= 0x80:
        digits.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([0, len(digits) + 1, *digits, size])
