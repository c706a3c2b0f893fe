"""Long vectors, read by pages that are checked; of rising numbers, how one is found without a look at all of them.

Beside a vector of rising numbers, which say where parts of a split begin, the cache keeps milestones, how many of its
numbers are below 0, MILESTONE_TOKENS, and so on: few, so that they are at hand at once. The others stay where they are,
on a disk or in a bucket. Nothing is memory-mapped: a file that is cut would end the process that maps it.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from plm_jax.data.cache import form
from plm_jax.data.cache.vectors import HEADER_BYTES, Checksums, check_rising, damaged, read_header

# Of each vector so many bytes are kept, and so many pages.
_KEPT_BYTES, _PAGES = 2**24, 256
# Looks at pages, guessed from the numbers around, after which the middle is taken: of what is spread unevenly.
_GUESSES = 4
# The numbers between two milestones are taken at once where they are on so few pages.
_FEW_PAGES = 4


def milestones(numbers: "np.ndarray | Ranged", num_tokens: int) -> np.ndarray:
    """Those of numbers that are in memory or on a disk, [ceil(num_tokens / MILESTONE_TOKENS) + 1]."""
    return np.searchsorted(
        np.asarray(numbers), np.arange(-(-num_tokens // form.MILESTONE_TOKENS) + 1) * form.MILESTONE_TOKENS
    )


class Search:
    """Finds places among rising numbers, the i-th of them slope · i further on; safe to use from several threads."""

    def __init__(self, numbers: "np.ndarray | Ranged", milestones: np.ndarray, slope: int = 0):
        """`milestones` are those of the numbers."""
        self._numbers, self._slope = numbers, slope
        self._counts = np.append(milestones, len(numbers))
        self._edges = np.arange(len(milestones)) * form.MILESTONE_TOKENS + slope * np.asarray(milestones)
        self._local = functools.lru_cache(16)(self._shifted)

    def count(self, limit: int) -> int:
        """How many of the numbers are at most `limit`."""
        place = int(self._edges.searchsorted(limit, side="right"))
        if place == 0:
            return 0
        # All before `low` are at most the limit, none from `high` on.
        low, high = int(self._counts[place - 1]), int(self._counts[place])
        if isinstance(self._numbers, np.ndarray) or high - low <= _FEW_PAGES * self._numbers.page_size:
            return low + int(self._local(low, high).searchsorted(limit, side="right"))
        first = int(self._edges[place - 1])
        return self._by_pages(self._numbers, limit, low, high, (first, first + form.MILESTONE_TOKENS))

    def _shifted(self, low: int, high: int) -> np.ndarray:
        return self._numbers[low:high] + self._slope * np.arange(low, high)

    def _by_pages(self, numbers: "Ranged", limit: int, low: int, high: int, edges: tuple[int, int]) -> int:
        """As `count`, between `low` and `high`: looks where the numbers around, first about `edges`, make it likely."""
        tries = 0
        while low < high:
            share = (limit - edges[0]) / max(edges[1] - edges[0], 1) if tries < _GUESSES else 0.5
            first, page = numbers.page(low + int((high - low) * min(max(share, 0.0), 0.999)))
            begin = max(low, first)
            page = page[begin - first : high - first]
            page = page + self._slope * np.arange(begin, begin + len(page))
            found = int(page.searchsorted(limit, side="right"))
            if found == 0:
                high, edges = begin, (edges[0], int(page[0]))
            elif found == len(page):
                low, edges = begin + found, (int(page[-1]), edges[1])
            else:
                return begin + found
            tries += 1
        return low


class Ranged:
    """A vector in a .npy file that is read by pages: what is asked of it, as of NumPy's arrays, is fetched and checked.

    `np.asarray` gives all of it.

    Attributes:
      page_size: numbers of a page.
    """

    def __init__(
        self,
        path: str,
        fetch: Callable[[int, int], bytes],
        load: Callable[[], np.ndarray],
        length: int,
        dtype: Any,
        page: int,
        checksums: Checksums | None = None,
        limit: int | None = None,
        milestones: np.ndarray | None = None,
    ):
        """Reads the file's header.

        Args:
          path: what errors call it.
          fetch: gives bytes [start, stop) of the file.
          load: gives it whole.
          page: numbers of a page, at least.
          checksums: of its blocks.
          limit: up to which its numbers rise from 0; None: they need not.
          milestones: of rising numbers, to search in.

        Raises:
          UserError: the file is not that of such a vector.
        """
        self._path, self._bytes, self._load, self._length = path, fetch, load, length
        self._dtype, self._checksums, self._milestones, self._limit = np.dtype(dtype), checksums, milestones, limit
        a_block = 1 if checksums is None else checksums.block_bytes // self._dtype.itemsize
        self.page_size = -(-page // a_block) * a_block
        self._num_kept = min(_PAGES, max(2 * _FEW_PAGES, _KEPT_BYTES // (self.page_size * self._dtype.itemsize)))
        self._search = None if milestones is None else Search(self, milestones)
        self._whole: np.ndarray | None = None
        self._lock = threading.Lock()
        self._kept: dict[int, np.ndarray] = {}
        self._fetched: dict[int, Future] = {}
        self._begin = read_header(path, fetch(0, HEADER_BYTES), length, dtype)

    def __len__(self) -> int:
        return self._length

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self._whole is None:
            self._whole = self._load()
        return np.array(self._whole, dtype, copy=copy)

    def page(self, number: int) -> tuple[int, np.ndarray]:
        """The first number of the page that a number is on, and the page, read-only."""
        page = number // self.page_size
        found = self._kept.get(page)  # Which takes no lock, as most of what is asked for is kept.
        return page * self.page_size, self._wanted(page) if found is None else found

    def _wanted(self, page: int) -> np.ndarray:
        """A page that is fetched, once for all who want it at once; the oldest one goes."""
        with self._lock:
            if page in self._kept:
                return self._kept[page]
            is_new = page not in self._fetched
            future = self._fetched.setdefault(page, Future())
        if not is_new:
            return future.result()
        try:
            found = self._fetch(page * self.page_size, min((page + 1) * self.page_size, self._length))
        except BaseException as error:
            with self._lock:
                del self._fetched[page]
            future.set_exception(error)
            raise
        with self._lock:
            del self._fetched[page]
            self._kept[page] = found
            if len(self._kept) > self._num_kept:
                del self._kept[next(iter(self._kept))]
        future.set_result(found)
        return found

    def _fetch(self, start: int, stop: int) -> np.ndarray:
        size = self._dtype.itemsize
        data = self._bytes(self._begin + start * size, self._begin + stop * size)
        if len(data) != (stop - start) * size:
            raise damaged(self._path, f"ends before byte {self._begin + stop * size}")
        if self._checksums is not None and not self._checksums.are(start * size, data):
            raise damaged(self._path, "its bytes have changed")
        numbers = np.frombuffer(data, self._dtype)
        check_rising(self._path, numbers, self._limit)
        return numbers

    def __getitem__(self, key: int | slice) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(self._length)
            return self._read(start, stop)[::step]
        first, page = self.page(at := range(self._length)[key])
        return page[at - first]

    def _read(self, start: int, stop: int) -> np.ndarray:
        """Numbers [start, stop), perhaps read-only."""
        if stop <= start:
            return np.zeros(0, self._dtype)
        first, page = self.page(start)
        if stop <= first + len(page):
            return page[start - first : stop - first]
        parts = [page[start - first :]]
        for at in range(first + len(page), stop, self.page_size):
            parts.append(self.page(at)[1][: stop - at])
        return np.concatenate(parts)

    def searchsorted(self, values: Any, side: str = "left") -> Any:
        """As of an array of whole numbers."""
        if isinstance(values, int):
            return self._count(values - (side == "left"))
        found = [self._count(int(value) - (side == "left")) for value in np.ravel(values)]
        return np.array(found).reshape(np.shape(values))[()]

    def _count(self, limit: int) -> int:
        if self._milestones is None or self._search is None:
            raise TypeError(f"{self._path} is not sorted")
        # Where a milestone is asked for nothing is read.
        place, rest = divmod(limit + 1, form.MILESTONE_TOKENS)
        if rest == 0 and 0 <= place < len(self._milestones):
            return int(self._milestones[place])
        return self._search.count(limit)


class MilestonesWriter:
    """Makes the milestones of numbers that come piece by piece."""

    def __init__(self, append: Callable[[np.ndarray], None]):
        """`append` is given them in turn."""
        self._append = append
        self._numbers = self._next = 0

    def add(self, numbers: np.ndarray) -> None:
        """The next `numbers` [n], rising."""
        if len(numbers):
            self._upto(int(numbers[-1]) // form.MILESTONE_TOKENS, numbers)
            self._numbers += len(numbers)

    def _upto(self, last: int, numbers: Sequence[int] | np.ndarray = ()) -> None:
        edges = np.arange(self._next, last + 1) * form.MILESTONE_TOKENS
        self._append(self._numbers + np.searchsorted(np.asarray(numbers, np.int64), edges))
        self._next += len(edges)

    def close(self, num_tokens: int) -> None:
        """Those up to the end."""
        self._upto(-(-num_tokens // form.MILESTONE_TOKENS))
