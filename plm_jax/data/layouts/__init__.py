"""Which tokens make example k: arithmetic over a split's documents and a seed, no state that matters.

A layout makes numbered items of a split, and `Order` puts them in order. Here is the layout of blocks: the split is one
long stream of tokens, its documents one after another, each between the special ids that begin and end one, and cut.
"""

import bisect
import functools
import zlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from plm_jax import objectives
from plm_jax.data import cache


class _Key(ISeedSequence):
    """A key of Philox. Given one as it is, NumPy first gathers entropy from the system: most of a generator's cost."""

    def __init__(self, *words: int):
        self._words = np.array(words, np.uint64)

    def generate_state(self, n_words, dtype=np.uint32):
        """The two words of 64 bits that Philox asks for."""
        return self._words


@functools.lru_cache(64)
def _key(seed: int, stream: str) -> _Key:
    return _Key(seed % 2**64, zlib.crc32(stream.encode("utf-8")))


def generator(seed: int, stream: str, *counter: int) -> np.random.Generator:
    """The random numbers of (seed, stream, counter): Philox keyed by the first two, started at up to three counts."""
    start = np.array([0, *counter, *[0] * (3 - len(counter))], np.uint64)
    return np.random.Generator(np.random.Philox(_key(seed, stream), counter=start))


# Documents of which the first one's place in the stream is kept in memory.
_PAGE = 2**12
# Documents that are looked at first for where a row ends; few rows have more.
_FEW = 8


def row(tokens: np.ndarray, begins: np.ndarray, length: int, separate: bool, pad: int = 0) -> dict[str, np.ndarray]:
    """`tokens` [length]: those given, padded where they are fewer.

    If `separate`, `segment_ids` [length] number the documents, which begin at `begins` and the first at 0, from 1 on,
    0 at padding. If there is padding, `mask` [length] is 0 there and 1 elsewhere.
    """
    num_real = len(tokens)
    padding = (0, length - num_real)
    found = {"tokens": np.pad(tokens, padding, constant_values=pad) if padding[1] else tokens}
    if separate:
        segment_ids = np.zeros(length, np.int32)
        segment_ids[:num_real] = 1 + np.searchsorted(begins, np.arange(num_real), side="right")
        found["segment_ids"] = segment_ids
    if padding[1]:
        found["mask"] = (np.arange(length) < num_real).astype(np.int32)
    return found


def marks(special: objectives.Special) -> tuple[int, int]:
    """What begins a row of whole texts, and what ends each of them."""
    has_pair = special.cls is not None and special.sep is not None
    return (special.cls, special.sep) if has_pair else (special.bos, special.eos)


def framed(parts: Sequence[np.ndarray], length: int, special: objectives.Special) -> dict[str, np.ndarray]:
    """`tokens` and `mask` (0 at padding) [length], int32: the mark that begins a row, then each part and its end."""
    begin, end = marks(special)
    tokens, size = np.full(length, special.pad or 0, np.int32), 1
    tokens[0] = begin
    for part in parts:
        at, size = size, size + len(part) + 1
        tokens[at : size - 1], tokens[size - 1] = part, end
    return {"tokens": tokens, "mask": (np.arange(length) < size).astype(np.int32)}


def windows_of(starts: np.ndarray, num_tokens: int, window_tokens: int) -> np.ndarray:
    """The first of the items that begin at `starts` in each window of so many tokens, and the end."""
    edges = np.arange(-(-num_tokens // window_tokens) + 1, dtype=np.int64) * window_tokens
    return np.searchsorted(starts, edges)


class Stream:
    """The tokens of a split with `begin` before each document and `eos` after it.

    Attributes:
      num_tokens: the stream's length.
    """

    def __init__(self, split: cache.Split, eos: int | None, pad: int | None, begin: Sequence[int] = ()):
        self._split = split
        # What stands around the place where one document ends and the next begins, and where, counted from there.
        self._marks = [*enumerate(begin), *([] if eos is None else [(-1, eos)])]
        self._begin, self._extra = len(begin), len(self._marks)
        self._pad = 0 if pad is None else pad
        self.num_tokens = split.num_tokens + self._extra * split.num_documents
        self._pages = self._starts(slice(0, split.num_documents, _PAGE))
        self._page = functools.lru_cache(16)(self._read_page)

    def _starts(self, documents: slice) -> np.ndarray:
        """Where these documents begin, and, as the last one, where the stream ends."""
        numbers = np.arange(*documents.indices(self._split.num_documents + 1))
        return self._split.documents[documents] + self._extra * numbers

    def _starts_until(self, document: int, stop: int) -> np.ndarray:
        """Where this document and those after it begin, on to the first at or beyond `stop`, and perhaps some more."""
        count = _FEW
        while len(found := self._starts(slice(document, document + count))) == count and found[-1] < stop:
            count *= _FEW
        return found

    def _read_page(self, page: int) -> np.ndarray:
        return self._starts(slice(page * _PAGE, min((page + 1) * _PAGE, self._split.num_documents)))

    def _first_document(self, token: int) -> int:
        """The last document that starts at or before `token`, found by pages, since the starts stay on disk."""
        page = int(self._pages.searchsorted(token, side="right")) - 1
        return page * _PAGE + int(self._page(page).searchsorted(token, side="right")) - 1

    def _text(self, document: int, start: int, token: int) -> int:
        """How many tokens of text precede `token`, which is of the document that begins at `start` in the stream."""
        return start - self._extra * document + max(0, token - start - self._begin)

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [start, stop) as int32, and where in them a document begins (the one running at `start` left out)."""
        first, size = self._first_document(start), stop - start
        starts = self._starts_until(first, stop)
        at = self._text(first, int(starts[0]), start)
        starts -= start
        if starts[0] <= -self._begin and starts[1] > size:
            return self._split.tokens(at, at + size).astype(np.int32), starts[:0]
        tokens, is_text = np.empty(size, np.int32), np.ones(size, np.bool_)
        for offset, mark in self._marks:
            places = starts + offset
            places = places[places.searchsorted(0) : places.searchsorted(size)]
            tokens[places], is_text[places] = mark, False
        tokens[is_text] = self._split.tokens(at, at + np.count_nonzero(is_text))
        return tokens, starts[1 : starts.searchsorted(size)]

    def sentence_starts(self, start: int, stop: int) -> np.ndarray:
        """Where in tokens [start, stop) a sentence begins."""
        return self._begins(self._split.sentences, start, stop)

    @property
    def has_words(self) -> bool:
        """Whether its split says where words begin."""
        return self._split.has_words

    def word_starts(self, start: int, stop: int) -> np.ndarray:
        """Where in tokens [start, stop) a word begins, of a split that says so."""
        return self._begins(self._split.words, start, stop)

    def _begins(self, parts: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Where in tokens [start, stop) those of the split's tokens are at which its parts begin."""
        documents = self._split.documents
        first, last = self._first_document(start), self._first_document(stop - 1)
        edges = [
            self._text(document, int(documents[document]) + self._extra * document, token)
            for document, token in ((first, start), (last, stop))
        ]
        begin, end = parts.searchsorted(edges)
        found = parts[begin:end]
        before = first + documents[first : last + 2].searchsorted(found, side="right") - 1
        starts = found + self._extra * before + self._begin - start
        return starts[starts < stop - start]

    def documents(self, start: int, stop: int) -> np.ndarray:
        """Where each document that tokens [start, stop) are of begins, and, as the last one, where the last ends."""
        first = self._first_document(start)
        begins = self._starts_until(first, stop)
        return begins[: begins.searchsorted(stop) + 1]

    def example(self, start: int, length: int, separate: bool) -> dict[str, np.ndarray]:
        """The row of `length` tokens from `start` on, see `row`."""
        tokens, begins = self.read(start, start + min(length, self.num_tokens - start))
        return row(tokens, begins, length, separate, self._pad)


class Layout(Protocol):
    """Which tokens make each item of a split.

    Items are numbered in the order of the text, and on over passes: different ways to go through the whole split.

    Attributes:
      num_rows: items 0 to num_rows - 1 are all of the split once, in order.
      pass_tokens: the tokens by which the items of a pass advance in all.
    """

    num_rows: int
    pass_tokens: int

    def windows(self, window_tokens: int) -> list[np.ndarray]:
        """For each pass the first item of each window [windows + 1], and the end.

        An item belongs to the window of `window_tokens` that it starts in, so windows are the same tokens at every
        length.
        """

    def example(self, item: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """What an objective takes; `rng` makes what is drawn anew each time."""


class Blocks:
    """Rows of `length` tokens of a stream, one every `stride`; a `Layout` of one pass.

    They have `sentence_starts`, and `word_starts` where the split has them, if the objective `reads` those.

    What is left at the stream's end is the last row, short and padded, and in no window.
    """

    def __init__(self, stream: Stream, length: int, stride: int, separate: bool, reads: tuple[str, ...] = ()):
        self._stream = stream
        self._reads = reads
        self._length = length
        self._stride = stride
        self._separate = separate
        self._num_whole = max(0, (stream.num_tokens - length) // stride + 1)
        self.num_rows = max(0, -(-(stream.num_tokens - length + stride) // stride))
        self.pass_tokens = self._num_whole * stride

    def windows(self, window_tokens: int) -> list[np.ndarray]:
        """See `Layout`."""
        starts = np.arange(-(-self._stream.num_tokens // window_tokens) + 1, dtype=np.int64) * window_tokens
        return [np.minimum(-(-starts // self._stride), self._num_whole)]

    def example(self, item: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """See `Stream.example`; nothing is drawn."""
        del rng
        start = item * self._stride
        made = self._stream.example(start, self._length, self._separate)
        stop = min(start + self._length, self._stream.num_tokens)
        if "sentence_starts" in self._reads:
            made["sentence_starts"] = self._stream.sentence_starts(start, stop)
        if "word_starts" in self._reads and self._stream.has_words:
            made["word_starts"] = self._stream.word_starts(start, stop)
        return made


class Order:
    """The order of a layout's items over epochs, which walk through its passes again and again.

    Windows of `window_tokens` are permuted each epoch, and items within each window.

    Attributes:
      layout: whose items they are.
      num_items: in all windows of all passes.
    """

    def __init__(self, layout: Layout, window_tokens: int, seed: int, name: str):
        self.layout = layout
        self._first = layout.windows(window_tokens)
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

    def epoch(self, k: int) -> int:
        """The epoch of k, counted over all passes."""
        return self._locate(k)[0]

    def item(self, k: int) -> int:
        """The item that comes k-th, k counting on over epochs."""
        epoch, position = self._locate(k)
        order, ends = self._windows(epoch)
        at = int(ends.searchsorted(position, side="right"))
        items = self._items(epoch, int(order[at]))
        return int(items[position - int(ends[at]) + len(items)])

    def resume(self, k: int, before: "Order") -> int:
        """Where to go on after k items in the order `before`: as many tokens into the same epoch."""
        epoch, position = before._locate(k)
        cycle, number = divmod(epoch, len(self._passes))
        old, new = (int(order._first[number][-1]) - order._passes[number] for order in (before, self))
        position = -(-position * before.layout.pass_tokens * new // (old * self.layout.pass_tokens))
        return cycle * self.num_items + self._passes[number] + min(position, new)
