"""Which tokens make example k: arithmetic over a split's documents and a seed, no state that matters.

A split is one long stream of tokens, its documents one after another, each followed by `eos` if there is one. A layout
cuts the stream into blocks and puts them in order.
"""

import bisect
import functools
import zlib

import numpy as np

from plm_jax.data import cache


def generator(seed: int, stream: str, *counter: int) -> np.random.Generator:
    """The random numbers of (seed, stream, counter): Philox keyed by the first two, started at up to three counts."""
    key = np.array([seed % 2**64, zlib.crc32(stream.encode("utf-8"))], np.uint64)
    start = np.array([0, *counter, *[0] * (3 - len(counter))], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=start))


class Stream:
    """The tokens of a split with `eos` after each document.

    Attributes:
      num_tokens: the stream's length.
    """

    def __init__(self, split: cache.Split, eos: int | None, pad: int | None):
        self._split = split
        self._eos = eos
        self._extra = 0 if eos is None else 1
        self._pad = 0 if pad is None else pad
        self.num_tokens = split.num_tokens + self._extra * split.num_documents

    def _start(self, document: int) -> int:
        return int(self._split.documents[document]) + self._extra * document

    def _first_document(self, token: int) -> int:
        """The last document that starts at or before `token`. A binary search, since the starts stay on disk."""
        return bisect.bisect_right(range(self._split.num_documents), token, key=self._start) - 1

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [start, stop) as int32, and where in them a document begins (the one running at `start` left out)."""
        first = self._first_document(start)
        last = first if stop <= self._start(first + 1) else self._first_document(stop - 1)
        begins = self._split.documents[first + 1 : last + 1] + self._extra * np.arange(first + 1, last + 1) - start
        if self._eos is None:
            return self._split.tokens(start, stop).astype(np.int32), begins
        ends = begins - 1
        if self._start(last + 1) == stop:
            ends = np.append(ends, stop - start - 1)
        tokens = np.full(stop - start, self._eos, np.int32)
        keep = np.ones(stop - start, np.bool_)
        keep[ends] = False
        at = start - first
        tokens[keep] = self._split.tokens(at, at + stop - start - len(ends))
        return tokens, begins

    def example(self, start: int, length: int, separate: bool) -> dict[str, np.ndarray]:
        """`tokens` [length] from `start`, padded at the stream's end.

        If `separate`, `segment_ids` [length] number the documents from 1, 0 at padding. If there is padding, `mask`
        [length] is 0 there and 1 elsewhere.
        """
        num_real = min(length, self.num_tokens - start)
        tokens, begins = self.read(start, start + num_real)
        padding = (0, length - num_real)
        found = {"tokens": np.pad(tokens, padding, constant_values=self._pad) if padding[1] else tokens}
        if separate:
            segment_ids = np.zeros(length, np.int32)
            segment_ids[:num_real] = 1 + np.searchsorted(begins, np.arange(num_real), side="right")
            found["segment_ids"] = segment_ids
        if padding[1]:
            found["mask"] = (np.arange(length) < num_real).astype(np.int32)
        return found


class BlockOrder:
    """The order of blocks of `length` tokens, one every `stride`, over epochs of a stream.

    Windows of `window_tokens` are permuted each epoch, and blocks within each window. A block belongs to the window
    that it starts in, so windows are the same tokens at every length.

    Attributes:
      num_blocks: whole blocks an epoch; what is left at the stream's end is dropped.
    """

    def __init__(self, num_tokens: int, length: int, stride: int, window_tokens: int, seed: int, name: str):
        self.num_blocks = max(0, (num_tokens - length) // stride + 1)
        self.stride = stride
        self._seed = seed
        self._name = name
        starts = np.arange(-(-num_tokens // window_tokens) + 1, dtype=np.int64) * window_tokens
        self._first = np.minimum(-(-starts // stride), self.num_blocks)
        self._windows = functools.lru_cache(4)(self._permute_windows)
        self._blocks = functools.lru_cache(8)(self._permute_blocks)

    def _permute_windows(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Windows in the epoch's order, and how many blocks precede the end of each."""
        order = generator(self._seed, f"windows/{self._name}", epoch).permutation(len(self._first) - 1)
        return order, np.cumsum((self._first[1:] - self._first[:-1])[order])

    def _permute_blocks(self, epoch: int, window: int) -> np.ndarray:
        """Blocks of a window in the epoch's order."""
        order = generator(self._seed, f"blocks/{self._name}", epoch, window)
        return order.permutation(np.arange(self._first[window], self._first[window + 1]))

    def block(self, k: int) -> int:
        """The block that comes k-th, k counting on over epochs."""
        epoch, position = divmod(k, self.num_blocks)
        order, ends = self._windows(epoch)
        at = int(np.searchsorted(ends, position, side="right"))
        blocks = self._blocks(epoch, int(order[at]))
        return int(blocks[position - int(ends[at]) + len(blocks)])

    def resume(self, k: int, before: "BlockOrder") -> int:
        """Where to go on after k blocks in the order `before`: as many tokens into the same epoch."""
        epoch, position = divmod(k, before.num_blocks)
        return epoch * self.num_blocks + min(-(-position * before.stride // self.stride), self.num_blocks)
