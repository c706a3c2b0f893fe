"""In which order rows are read: a seeded permutation, a pure function of the place in it."""

import abc
import bisect
import functools
from collections.abc import Sequence
from typing import Self

import numpy as np
from typing_extensions import override

from plm_jax.data.layouts.randomness import generator
from plm_jax.data.layouts.rows import Rows


class RowOrder(abc.ABC):
    """An order in which training reads rows: a pure function of the position.

    Attributes:
      rows: the rows.
      num_items: number of rows that are read before they come again; 0 if the text is too short.
    """

    rows: Rows
    num_items: int

    @abc.abstractmethod
    def item(self, k: int) -> int:
        """Returns the row at position k; positions continue over epochs."""

    @abc.abstractmethod
    def places(self, rows: Sequence[int] | np.ndarray, first: int, last: int) -> np.ndarray:
        """Returns the sorted positions in [first, last), int64, at which these rows are read; the inverse of `item`."""

    @abc.abstractmethod
    def resume(self, k: int, before: Self) -> int:
        """Returns the position that follows k rows in the order `before`, which may be of rows of another length."""

    def epoch(self, k: int) -> int:
        """Returns the epoch of position k, counted over all passes."""
        return k // self.num_items

    def shortage(self) -> str:
        """Returns what an error says of a source that has too little text for this order, and what to do."""
        return self.rows.shortage()


class Order(RowOrder):
    """The order in which rows are read over epochs, which go through the passes of the rows again and again.

    Windows of `window_tokens` are permuted each epoch, and rows within each window.
    """

    def __init__(self, rows: Rows, window_tokens: int, seed: int, name: str):
        self.rows = rows
        self._first = rows.windows(window_tokens)
        self._passes = [int(first[0]) for first in self._first]
        self.num_items = int(self._first[-1][-1])
        self._seed = seed
        self._name = name
        self._windows = functools.lru_cache(4)(self._permute_windows)
        self._items = functools.lru_cache(8)(self._permute_items)

    def _permute_windows(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Windows in the epoch's order, and how many of its items precede the end of each."""
        sizes = np.diff(self._first[epoch % len(self._first)])
        order = generator(self._seed, f"windows/{self._name}", epoch).permutation(len(sizes))
        return order, np.cumsum(sizes[order])

    def _permute_items(self, epoch: int, window: int) -> np.ndarray:
        """Items of a window in the epoch's order."""
        first = self._first[epoch % len(self._first)]
        order = generator(self._seed, f"blocks/{self._name}", epoch, window)
        return order.permutation(np.arange(first[window], first[window + 1]))

    def _locate(self, k: int) -> tuple[int, int]:
        """The epoch of k, k counting on over epochs, and how many of its items precede."""
        cycle, item = divmod(k, self.num_items)
        number = bisect.bisect_right(self._passes, item) - 1
        return cycle * len(self._passes) + number, item - self._passes[number]

    @override
    def epoch(self, k: int) -> int:
        return self._locate(k)[0]

    @override
    def item(self, k: int) -> int:
        epoch, position = self._locate(k)
        order, ends = self._windows(epoch)
        at = int(ends.searchsorted(position, side="right"))
        items = self._items(epoch, int(order[at]))
        return int(items[position - int(ends[at]) + len(items)])

    @override
    def places(self, rows: Sequence[int] | np.ndarray, first: int, last: int) -> np.ndarray:
        rows, found = np.asarray(rows, np.int64), [np.zeros(0, np.int64)]
        if last <= first or not len(rows):
            return found[0]
        for epoch in range(self.epoch(first), self.epoch(last - 1) + 1):
            cycle, number = divmod(epoch, len(self._first))
            begins = self._first[number]
            own = rows[(rows >= begins[0]) & (rows < begins[-1])]
            windows = begins.searchsorted(own, side="right") - 1
            order, ends = self._windows(epoch)
            at, before = np.argsort(order), cycle * self.num_items + self._passes[number]
            for window in np.unique(windows).tolist():
                items, end = self._items(epoch, window), int(ends[at[window]])
                ranks = np.argsort(items)[own[windows == window] - int(begins[window])]
                found.append(before + end - len(items) + ranks)
        places = np.concatenate(found)
        return np.sort(places[(places >= first) & (places < last)])

    @override
    def resume(self, k: int, before: Self) -> int:
        """Returns the position as many tokens into the same epoch."""
        epoch, position = before._locate(k)
        cycle, number = divmod(epoch, len(self._passes))
        old, new = (int(order._first[number][-1]) - order._passes[number] for order in (before, self))
        position = -(-position * before.rows.pass_tokens * new // (old * self.rows.pass_tokens))
        return cycle * self.num_items + self._passes[number] + min(position, new)
