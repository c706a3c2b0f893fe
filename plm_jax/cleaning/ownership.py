"""Owners of units of text. Of all pages that contain a unit (a line, a span, a MinHash band), one page owns it.

A record consists of a unit (16 bytes), the key of a page that contains it (16 bytes), and the number of the task that
wrote the page (a little-endian uint32).
"""

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence, Set

import numpy as np

from plm_jax.cleaning import records
from plm_jax.common import parts

_KEY = records.KEY_BYTES
_DIGEST = f"S{_KEY}"
_RECORD = np.dtype([("unit", _DIGEST), ("key", _DIGEST), ("task", "<u4")])
_TASK = struct.Struct("<I")
# Bytes of a record, and of a unit with the key of a page in `losses`.
RECORD_BYTES, LOSS_BYTES = _RECORD.itemsize, 2 * _KEY
# Least number of records that are merged at a time.
_MERGED = 2**17


def padded(unit: bytes) -> bytes:
    """Pads a unit to 16 bytes."""
    return unit.ljust(_KEY, b"\0")


def record(unit: bytes, key: bytes, task: int) -> bytes:
    """Returns the record of a padded unit on a page that a task wrote."""
    return unit + key + _TASK.pack(task)


def losses(slices: Sequence[parts.Slice]) -> Iterator[tuple[int, bytes]]:
    """Yields the units that pages contain but do not own. A unit is owned by the page with the smallest key.

    Reads the slices twice. Memory depends on the number of distinct units, not on the number of pages.

    Yields:
      A pair: the number of a task, and items of 32 bytes, concatenated. An item consists of a unit and the key of a
      page that the task wrote. The page contains the unit but does not own it. There may be several pairs for a task.
    """
    units, owners = _owners(slices)
    for block in _blocks(slices):
        lost = block[owners[np.searchsorted(units, block["unit"])] != block["key"]]
        lost = lost[np.argsort(lost["task"], kind="stable")]
        bounds = [0, *(np.flatnonzero(np.diff(lost["task"])) + 1).tolist(), len(lost)]
        data = lost.view(np.uint8).reshape(-1, _RECORD.itemsize)[:, : 2 * _KEY]
        for start, stop in itertools.pairwise(bounds):
            if start < stop:
                yield int(lost["task"][start]), data[start:stop].tobytes()


def _owners(slices: Iterable[parts.Slice]) -> tuple[np.ndarray, np.ndarray]:
    """Returns two arrays: all different units, sorted, and the smallest key of each unit."""
    units, owners = np.zeros(0, _DIGEST), np.zeros(0, _DIGEST)
    pending: list[np.ndarray] = []
    for block in _blocks(slices):
        pending.append(block)
        if sum(map(len, pending)) > len(units) + _MERGED:
            units, owners = _merge(units, owners, pending)
            pending = []
    return _merge(units, owners, pending)


def _blocks(slices: Iterable[parts.Slice]) -> Iterator[np.ndarray]:
    """Iterates over blocks of records, as structured arrays."""
    return (np.frombuffer(block, _RECORD) for part in slices for block in parts.blocks(part))


def _merge(units: np.ndarray, owners: np.ndarray, pending: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    units = np.concatenate([units, *(block["unit"] for block in pending)])
    keys = np.concatenate([owners, *(block["key"] for block in pending)])
    order = np.lexsort((keys, units))
    units, keys = units[order], keys[order]
    is_first = np.ones(len(units), bool)
    is_first[1:] = units[1:] != units[:-1]
    return units[is_first], keys[is_first]


def by_key(data: bytes) -> Callable[[bytes], Set[bytes]]:
    """Indexes items of `losses`. Returns a function from a page's key to the units that this page does not own."""
    words = np.frombuffer(data, ">u8").reshape(-1, 4)
    words = words[np.lexsort((words[:, 3], words[:, 2]))]
    keys, ordered = words[:, 2:].tobytes(), words[:, :2].tobytes()
    firsts = np.flatnonzero((words[1:, 2:] != words[:-1, 2:]).any(1)) + 1
    bounds = [0, *firsts.tolist(), len(words)]
    ranges = {keys[_KEY * start : _KEY * (start + 1)]: (start, stop) for start, stop in itertools.pairwise(bounds)}

    def units(key: bytes) -> Set[bytes]:
        start, stop = ranges.get(key, (0, 0))
        return {ordered[_KEY * number : _KEY * (number + 1)] for number in range(start, stop)}

    return units
