"""Long vectors that are read page by page, and search in sorted vectors, such as the starts of documents.

Each sorted vector of token positions comes with milestones. Milestone i is the number of values below i times
MILESTONE_TOKENS. Milestones are few and fit in memory, while the vector stays on disk or in a bucket. Pages are not
memory-mapped, because truncating a mapped file would kill the process.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from plm_jax.data.cache import file_format
from plm_jax.data.cache.vectors import HEADER_BYTES, Checksums, check_sorted, damaged, read_header

# Bytes and pages of each vector that are held in memory.
_MEMORY_BYTES, _MAX_PAGES = 2**24, 256
# Steps of interpolation search, after which bisection takes over, because values can be spread unevenly.
_INTERPOLATION_STEPS = 4
# Number of pages up to which the values between two milestones are read together.
_FEW_PAGES = 4


def milestones(values: "np.ndarray | PagedVector", num_tokens: int) -> np.ndarray:
    """Returns the milestones of a sorted vector, [ceil(num_tokens / MILESTONE_TOKENS) + 1].

    Milestone i is the number of values below i times MILESTONE_TOKENS.
    """
    return np.searchsorted(
        np.asarray(values), np.arange(-(-num_tokens // file_format.MILESTONE_TOKENS) + 1) * file_format.MILESTONE_TOKENS
    )


class Search:
    """Search in the sorted values `values[i] + slope * i`; can be used from several threads."""

    def __init__(self, values: "np.ndarray | PagedVector", milestones: np.ndarray, slope: int = 0):
        """Creates the search; `milestones` are the milestones of `values`."""
        self._values, self._slope = values, slope
        self._counts = np.append(milestones, len(values))
        self._edges = np.arange(len(milestones)) * file_format.MILESTONE_TOKENS + slope * np.asarray(milestones)
        self._local = functools.lru_cache(16)(self._shifted)

    def count(self, limit: int) -> int:
        """Returns the number of indices i for which `values[i] + slope * i` is at most `limit`."""
        milestone = int(self._edges.searchsorted(limit, side="right"))
        if milestone == 0:
            return 0
        # Values before index `low` are at most the limit, values from index `high` on exceed it.
        low, high = int(self._counts[milestone - 1]), int(self._counts[milestone])
        if isinstance(self._values, np.ndarray) or high - low <= _FEW_PAGES * self._values.page_size:
            return low + int(self._local(low, high).searchsorted(limit, side="right"))
        first = int(self._edges[milestone - 1])
        return self._interpolate(self._values, limit, low, high, (first, first + file_format.MILESTONE_TOKENS))

    def _shifted(self, low: int, high: int) -> np.ndarray:
        return self._values[low:high] + self._slope * np.arange(low, high)

    def _interpolate(self, values: "PagedVector", limit: int, low: int, high: int, edges: tuple[int, int]) -> int:
        """Computes `count` by interpolation search, to read few pages.

        Args:
          low, high: lower and upper bound of the count.
          edges: approximate values at the indices `low` and `high`.
        """
        tries = 0
        while low < high:
            share = (limit - edges[0]) / max(edges[1] - edges[0], 1) if tries < _INTERPOLATION_STEPS else 0.5
            first, page = values.page(low + int((high - low) * min(max(share, 0.0), 0.999)))
            begin = max(low, first)
            page = page[begin - first : high - first]
            page = page + self._slope * np.arange(begin, begin + len(page))
            count = int(page.searchsorted(limit, side="right"))
            if count == 0:
                high, edges = begin, (edges[0], int(page[0]))
            elif count == len(page):
                low, edges = begin + count, (int(page[-1]), edges[1])
            else:
                return begin + count
            tries += 1
        return low


class PagedVector:
    """Vector in a .npy file that is read and checked page by page.

    It supports `len`, integers and slices with a positive step as indices, `searchsorted`, and `np.asarray`, which
    reads the whole vector.

    Attributes:
      page_size: number of values of a page.
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
          path: path of the file in errors.
          fetch: function that returns bytes [start, stop) of the file.
          load: function that returns the whole vector.
          length: number of values.
          dtype: type of the values.
          page: minimum number of values of a page.
          checksums: checksums of the file's blocks; None: pages are not compared with checksums.
          limit: maximum value of a vector that must be sorted and not negative; None: the values are not checked.
          milestones: result of the function `milestones` for this vector; None: it cannot be searched.

        Raises:
          UserError: the file is missing, has another length or type, or is not a .npy file.
        """
        self._path, self._bytes, self._load, self._length = path, fetch, load, length
        self._dtype, self._checksums, self._milestones, self._limit = np.dtype(dtype), checksums, milestones, limit
        block_values = 1 if checksums is None else checksums.block_bytes // self._dtype.itemsize
        self.page_size = -(-page // block_values) * block_values
        self._max_pages = min(_MAX_PAGES, max(2 * _FEW_PAGES, _MEMORY_BYTES // (self.page_size * self._dtype.itemsize)))
        self._search = None if milestones is None else Search(self, milestones)
        self._whole: np.ndarray | None = None
        self._lock = threading.Lock()
        self._pages: dict[int, np.ndarray] = {}
        self._pending: dict[int, Future] = {}
        self._begin = read_header(path, fetch(0, HEADER_BYTES), length, dtype)

    def __len__(self) -> int:
        return self._length

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self._whole is None:
            self._whole = self._load()
        return np.array(self._whole, dtype, copy=copy)

    def page(self, index: int) -> tuple[int, np.ndarray]:
        """Returns the page that contains `index`: the index of the page's first value, and its values, read-only."""
        number = index // self.page_size
        page = self._pages.get(number)  # Without the lock, because most pages are in memory.
        return number * self.page_size, self._load_page(number) if page is None else page

    def _load_page(self, number: int) -> np.ndarray:
        """Fetches a page once for all threads that wait for it; drops the oldest page if there are too many."""
        with self._lock:
            if number in self._pages:
                return self._pages[number]
            is_new = number not in self._pending
            future = self._pending.setdefault(number, Future())
        if not is_new:
            return future.result()
        try:
            page = self._fetch(number * self.page_size, min((number + 1) * self.page_size, self._length))
        except BaseException as error:
            with self._lock:
                del self._pending[number]
            future.set_exception(error)
            raise
        with self._lock:
            del self._pending[number]
            self._pages[number] = page
            if len(self._pages) > self._max_pages:
                del self._pages[next(iter(self._pages))]
        future.set_result(page)
        return page

    def _fetch(self, start: int, stop: int) -> np.ndarray:
        size = self._dtype.itemsize
        data = self._bytes(self._begin + start * size, self._begin + stop * size)
        if len(data) != (stop - start) * size:
            raise damaged(self._path, f"ends before byte {self._begin + stop * size}")
        if self._checksums is not None and not self._checksums.match(start * size, data):
            raise damaged(self._path, "its bytes have changed")
        values = np.frombuffer(data, self._dtype)
        check_sorted(self._path, values, self._limit)
        return values

    def __getitem__(self, key: int | slice) -> Any:
        if isinstance(key, slice):
            start, stop, step = key.indices(self._length)
            return self._read(start, stop)[::step]
        first, page = self.page(index := range(self._length)[key])
        return page[index - first]

    def _read(self, start: int, stop: int) -> np.ndarray:
        """Returns values [start, stop), possibly read-only."""
        if stop <= start:
            return np.zeros(0, self._dtype)
        first, page = self.page(start)
        if stop <= first + len(page):
            return page[start - first : stop - first]
        parts = [page[start - first :]]
        for index in range(first + len(page), stop, self.page_size):
            parts.append(self.page(index)[1][: stop - index])
        return np.concatenate(parts)

    def searchsorted(self, values: Any, side: str = "left") -> Any:
        """Returns the same indices as `np.searchsorted` for the whole vector; `values` must be integers.

        Raises:
          TypeError: the vector was opened without milestones.
        """
        if isinstance(values, int):
            return self._count(values - (side == "left"))
        indices = [self._count(int(value) - (side == "left")) for value in np.ravel(values)]
        return np.array(indices).reshape(np.shape(values))[()]

    def _count(self, limit: int) -> int:
        if self._milestones is None or self._search is None:
            raise TypeError(f"{self._path} is not sorted")
        # A milestone answers without reading a page.
        milestone, rest = divmod(limit + 1, file_format.MILESTONE_TOKENS)
        if rest == 0 and 0 <= milestone < len(self._milestones):
            return int(self._milestones[milestone])
        return self._search.count(limit)


class MilestonesWriter:
    """Writer of the milestones of a sorted vector that is written piece by piece.

    The milestones are the same as those of the function `milestones`.
    """

    def __init__(self, append: Callable[[np.ndarray], None]):
        """Creates the writer; `append` is called with the milestones, piece by piece."""
        self._append = append
        self._num_values = self._next = 0

    def add(self, values: np.ndarray) -> None:
        """Adds the next sorted `values` [n]."""
        if len(values):
            self._append_until(int(values[-1]) // file_format.MILESTONE_TOKENS, values)
            self._num_values += len(values)

    def _append_until(self, last: int, values: Sequence[int] | np.ndarray = ()) -> None:
        edges = np.arange(self._next, last + 1) * file_format.MILESTONE_TOKENS
        self._append(self._num_values + np.searchsorted(np.asarray(values, np.int64), edges))
        self._next += len(edges)

    def close(self, num_tokens: int) -> None:
        """Appends the remaining milestones, up to the end of a split with `num_tokens` tokens."""
        self._append_until(-(-num_tokens // file_format.MILESTONE_TOKENS))
