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
    """Rows of a split, returned by `Layout.open`; can be read from several threads.

    A pass reads the split once, and its rows are numbered in the order in which it reads the text. If there are several
    passes, for example with different sentence pairs, row numbers continue from one pass to the next.

    Attributes:
      num_rows: number of rows of the first pass.
      pass_tokens: approximate number of tokens that a pass reads; tokens in which rows overlap count once.
      examples_per_row: mean number of examples per row. It may be above 1 if examples with inputs and targets are
        packed, and below 1 if a labeled example has several windows.
      is_finished: whether a model reads these rows unchanged, without an objective.
      constants: arrays that an objective reads in every row. If `example` returns an array of the same name, the
        objective reads that array instead.
      packing: shapes of packed rows; None if rows are not packed.
    """

    num_rows: int
    pass_tokens: int
    examples_per_row: float = 1.0
    is_finished: ClassVar[bool] = False
    constants: Mapping[str, np.ndarray] = MappingProxyType({})
    packing: objectives.PackedFormat | None = None

    @property
    def passes(self) -> list[int]:
        """Index of the first row of each pass, followed by the total number of rows."""
        return [0, self.num_rows]

    @abc.abstractmethod
    def windows(self, window_tokens: int) -> list[np.ndarray]:
        """Returns, for each pass, an array [windows + 1]: the first row of each window, and the end of the last window.

        A window is a stretch of `window_tokens` tokens. A row belongs to the window in which the row starts. Rows that
        must be read in the order of the text form a single window.
        """

    @abc.abstractmethod
    def example(self, item: int, rng: np.random.Generator) -> Example:
        """Returns row `item` as an objective reads it or, if `is_finished`, as a model reads it.

        Args:
          rng: generator of the random choices in the row.

        Raises:
          NotImplementedError: the row is packed. `inner_rows` returns its parts.
        """

    def inner_rows(self, item: int, rng: np.random.Generator) -> Sequence[tuple["Rows", int, np.random.Generator]]:
        """Returns the inner rows of row `item`; by default, the row itself is the only one.

        Returns:
          For each inner row, a triple: the `Rows` that contain it, its index in these `Rows`, and its random generator.
        """
        return [(self, item, rng)]

    def max_sizes(self, first: int, stop: int) -> np.ndarray:
        """Returns, for each of the rows [first, stop), an upper bound of its number of tokens without padding.

        Raises:
          UserError: rows of this class cannot be packed.
        """
        raise UserError(f"{type(self).__name__} cannot be packed: implement `max_sizes`, or leave out packed rows")

    def documents(self, item: int, rng: np.random.Generator) -> Iterable[int]:
        """Returns the indices of the documents in the row that `example` returns for the same arguments.

        The result is empty if the documents are unknown.
        """
        return ()

    def rows_with(self, document: int) -> Iterable[np.ndarray | range]:
        """Returns arrays or ranges of the rows that may have text of a document, each within one pass.

        `documents` tells whether a row really has text of the document.

        Raises:
          UserError: rows of this class do not support this search.
        """
        raise UserError(f"{type(self).__name__} cannot find the rows of a document: implement `rows_with`")

    def shortage(self) -> str:
        """Returns the error message, without the name of the source, for too little text for a row."""
        return "has too little training text for a row: lower config.data.length or add more text"

    def notes(self, name: str) -> list[str]:
        """Returns lines that a run prints about the rows of source `name`, such as the share of dropped tokens."""
        return []


class SpanRows(Rows):
    """The base of rows that each consist of consecutive tokens of `text`, apart from special tokens.

    Attributes:
      text: the split, or a stream of its tokens with special ids around documents.
    """

    text: cache.DocumentTable | Stream

    @abc.abstractmethod
    def span(self, item: int) -> tuple[int, int]:
        """Returns the span [start, stop) of the tokens of `text` that are in row `item`."""

    @abc.abstractmethod
    def rows_within(self, start: int, stop: int) -> list[range]:
        """Returns, for each pass, a range that includes every row with at least one of the tokens [start, stop)."""

    @override
    def documents(self, item: int, rng: np.random.Generator) -> range:
        return self.text.numbers(*self.span(item))

    @override
    def rows_with(self, document: int) -> Iterable[np.ndarray | range]:
        return self.rows_within(*self.text.span(document))


class StridedRows(SpanRows):
    """Rows of a stream: a row of `length` tokens begins every `stride` tokens. The last row may be shorter.

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
