"""Orders in which training reads rows. The row at a position is a pure function of the position."""

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
    """An order in which training reads rows. Positions are counted from 0 across epochs.

    Attributes:
      rows: rows that are read in this order.
      num_items: number of positions after which rows repeat; 0 if the text is too short.
    """

    rows: Rows
    num_items: int

    @abc.abstractmethod
    def item(self, k: int) -> int:
        """Returns the index of the row at position k."""

    @abc.abstractmethod
    def positions(self, rows: Sequence[int] | np.ndarray, first: int, last: int) -> np.ndarray:
        """Returns the sorted positions in [first, last), int64, at which the rows with these indices are read."""

    @abc.abstractmethod
    def resume(self, k: int, before: Self) -> int:
        """Returns the position of this order that corresponds to position k of the order `before`.

        The rows of the two orders may have different lengths.
        """

    def epoch(self, k: int) -> int:
        """Returns the epoch of position k, counted from 0.

        If passes are read one after another, each pass is an epoch.
        """
        return k // self.num_items

    def shortage(self) -> str:
        """Returns the error message, without the name of the source, for too little text for this order."""
        return self.rows.shortage()


class Order(RowOrder):
    """Random order of rows, in which each epoch reads one pass. After the last pass, the first pass is read again.

    Each epoch permutes the windows of `window_tokens` tokens, and the rows within each window, in a different way.
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
        """Returns the windows in the order of an epoch, and the cumulative number of rows at the end of each window."""
        sizes = np.diff(self._first[epoch % len(self._first)])
        order = generator(self._seed, f"windows/{self._name}", epoch).permutation(len(sizes))
        return order, np.cumsum(sizes[order])

    def _permute_items(self, epoch: int, window: int) -> np.ndarray:
        """Returns the row indices of a window in the order of an epoch."""
        first = self._first[epoch % len(self._first)]
        order = generator(self._seed, f"blocks/{self._name}", epoch, window)
        return order.permutation(np.arange(first[window], first[window + 1]))

    def _locate(self, k: int) -> tuple[int, int]:
        """Splits position `k` into an epoch and an offset within that epoch."""
        cycle, item = divmod(k, self.num_items)
        number = bisect.bisect_right(self._passes, item) - 1
        return cycle * len(self._passes) + number, item - self._passes[number]

    @override
    def epoch(self, k: int) -> int:
        return self._locate(k)[0]

    @override
    def item(self, k: int) -> int:
        epoch, offset = self._locate(k)
        order, ends = self._windows(epoch)
        rank = int(ends.searchsorted(offset, side="right"))
        items = self._items(epoch, int(order[rank]))
        return int(items[offset - int(ends[rank]) + len(items)])

    @override
    def positions(self, rows: Sequence[int] | np.ndarray, first: int, last: int) -> np.ndarray:
        rows, parts = np.asarray(rows, np.int64), [np.zeros(0, np.int64)]
        if last <= first or not len(rows):
            return parts[0]
        for epoch in range(self.epoch(first), self.epoch(last - 1) + 1):
            cycle, number = divmod(epoch, len(self._first))
            begins = self._first[number]
            rows_in_pass = rows[(rows >= begins[0]) & (rows < begins[-1])]
            windows = begins.searchsorted(rows_in_pass, side="right") - 1
            order, ends = self._windows(epoch)
            window_ranks, before = np.argsort(order), cycle * self.num_items + self._passes[number]
            for window in np.unique(windows).tolist():
                items, end = self._items(epoch, window), int(ends[window_ranks[window]])
                ranks = np.argsort(items)[rows_in_pass[windows == window] - int(begins[window])]
                parts.append(before + end - len(items) + ranks)
        positions = np.concatenate(parts)
        return np.sort(positions[(positions >= first) & (positions < last)])

    @override
    def resume(self, k: int, before: Self) -> int:
        """Returns the position of this order that corresponds to position k of the order `before`.

        The result is in the epoch of position k, after the same number of tokens of this epoch. It is rounded up to a
        whole row, and is at most the end of the epoch.
        """
        epoch, offset = before._locate(k)
        cycle, number = divmod(epoch, len(self._passes))
        old, new = (int(order._first[number][-1]) - order._passes[number] for order in (before, self))
        offset = -(-offset * before.rows.pass_tokens * new // (old * self.rows.pass_tokens))
        return cycle * self.num_items + self._passes[number] + min(offset, new)
