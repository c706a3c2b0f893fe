"""Rows of an opened split: the interface between layouts and the reader."""

import abc
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from typing_extensions import override

from plm_jax import objectives
from plm_jax.common.errors import UserError
from plm_jax.data import cache
from plm_jax.data.layouts.formats import Example
from plm_jax.data.layouts.stream import Stream


class Rows(abc.ABC):
    """Rows of a split, as an opened layout returns them; safe to read from several threads.

    Rows are numbered in the order of the text. Numbers continue over passes, which are different ways to read the whole
    split.

    Attributes:
      num_rows: number of rows of the first pass, which are the whole split in order.
      pass_tokens: number of tokens by which the rows of a pass advance in total.
      examples_per_row: mean number of examples per row, for a source with inputs and targets.
      is_finished: whether a model reads these rows unchanged, without an objective.
      constants: arrays that all rows have, unless `example` returns others of their names; set by the reader.
      packing: shapes of packed rows; None if a row is not packed.
    """

    num_rows: int
    pass_tokens: int
    examples_per_row: float = 1.0
    is_finished: ClassVar[bool] = False
    constants: Mapping[str, np.ndarray] = MappingProxyType({})
    packing: objectives.PackedFormat | None = None

    @property
    def passes(self) -> list[int]:
        """First row of each pass, followed by the number of rows of all passes."""
        return [0, self.num_rows]

    @abc.abstractmethod
    def windows(self, window_tokens: int) -> list[np.ndarray]:
        """Returns for each pass the first row of each window, and the end [windows + 1].

        A row belongs to the window of `window_tokens` in which it starts, so windows have the same tokens for every
        length of rows.
        """

    @abc.abstractmethod
    def example(self, item: int, rng: np.random.Generator) -> Example:
        """Returns row `item` in the form that an objective reads; `rng` draws its random parts."""

    def inner_rows(self, item: int, rng: np.random.Generator) -> Sequence[tuple["Rows", int, np.random.Generator]]:
        """Returns the inner rows of a packed row, as opened rows, number and generator; by default the row itself."""
        return [(self, item, rng)]

    def max_sizes(self, first: int, stop: int) -> np.ndarray:
        """Returns an upper bound of the number of tokens, without padding, of each of the rows [first, stop)."""
        raise UserError(f"{type(self).__name__} cannot be packed: implement `max_sizes`, or leave out packed rows")

    def documents(self, item: int, rng: np.random.Generator) -> Iterable[int]:
        """Returns the numbers of the documents in row `item`, drawn by `rng` as `example` draws; empty if unknown."""
        return ()

    def rows_with(self, document: int) -> Iterable[np.ndarray | range]:
        """Returns the rows of each pass that may have text of a document; check them with `documents`."""
        raise UserError(f"{type(self).__name__} cannot find the rows of a document: implement `rows_with`")

    def shortage(self) -> str:
        """Describes, for an error message, why a split has too little text for a row, and how to fix it."""
        return "has too little training text for a row: lower config.data.length or add more text"

    def notes(self, name: str) -> list[str]:
        """Returns lines that a run prints about the rows of source `name`, such as the share of dropped tokens."""
        return []


class SpanRows(Rows):
    """Rows that are each a span of tokens of one text.

    Attributes:
      text: the split, or its stream of tokens with special ids around documents.
    """

    text: cache.DocumentTable | Stream

    @abc.abstractmethod
    def span(self, item: int) -> tuple[int, int]:
        """Returns the tokens [start, stop) of row `item`."""

    @abc.abstractmethod
    def rows_within(self, start: int, stop: int) -> list[range]:
        """Returns the rows of each pass that contain any of the tokens [start, stop)."""

    @override
    def documents(self, item: int, rng: np.random.Generator) -> range:
        return self.text.numbers(*self.span(item))

    @override
    def rows_with(self, document: int) -> Iterable[np.ndarray | range]:
        return self.rows_within(*self.text.span(document))


class StridedRows(SpanRows):
    """Rows of a stream: one of `length` tokens begins every `stride` tokens; the last may be shorter.

    Attributes:
      num_whole: number of rows without padding.
    """

    def __init__(self, stream: Stream, length: int, stride: int):
        self.text = self._stream = stream
        self.length, self.stride = length, stride
        self.num_whole = max(0, (stream.num_tokens - length) // stride + 1)
        self.num_rows = max(0, -(-(stream.num_tokens - length + stride) // stride))
        self.pass_tokens = self.num_whole * stride

    @override
    def span(self, item: int) -> tuple[int, int]:
        start = item * self.stride
        return start, min(start + self.length, self._stream.num_tokens)

    @override
    def rows_within(self, start: int, stop: int) -> list[range]:
        first = max(0, (start - self.length) // self.stride + 1)
        return [range(first, min((stop - 1) // self.stride + 1, self.num_rows))]
