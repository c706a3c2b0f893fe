"""Opened sources, as `prepare` reads them: records, bad rows and the base class `Corpus`."""

import abc
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from plm_jax.common.errors import UserError, nearest
from plm_jax.data.cache.columns import Column

# Largest share of a source's rows that may be bad and skipped.
MAX_BAD_SHARE = 0.01
# Numbers of skipped rows whose errors are reported, and recorded.
_NUM_REPORTED, _NUM_RECORDED = 3, 1000

Result = TypeVar("Result")


class BadRow(UserError):
    """Error about a row (a line, paragraph, record or text file) that is not a valid document or example."""


class Record(NamedTuple):
    """A document, or an example of several texts.

    Attributes:
      text: text of a document, or the first text of an example, such as its inputs.
      other_texts: further texts of an example, such as its targets; None for a document.
      file: number of the file or shard in the source, counted from 0.
      row_number: number of the line or record in the file, counted from 1.
      values: values of the source's `columns`.
      group: name shared by records that must stay in one split, such as a document's id; None: records with the same
        `text` form a group, which keeps the questions of a context together.
      tokens: integer [n], ids of a document from a tokenized source, whose `text` is empty; None for texts.
    """

    text: str
    other_texts: tuple[str, ...] | None = None
    file: int = 0
    row_number: int = 0
    values: Mapping[str, Any] = {}
    group: str | None = None
    tokens: np.ndarray | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts."""
        return (self.text, *(self.other_texts or ()))

    @property
    def is_empty(self) -> bool:
        """Whether `tokens` is None, the first text is blank, and all other texts are empty strings."""
        return self.tokens is None and not self.text.strip() and not any(self.other_texts or ())


@dataclasses.dataclass
class Skipped:
    """Counts of rows that were read and of bad rows that were skipped; the manifest of a cache stores these fields.

    Attributes:
      rows: number of rows, bad ones included.
      bad: number of bad rows.
      first: messages about the first bad rows.
    """

    rows: int = 0
    bad: int = 0
    first: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: "Skipped") -> None:
        """Adds the counts and messages of `other`, whose rows come later; keeps at most 1000 messages."""
        self.rows, self.bad = self.rows + other.rows, self.bad + other.bad
        self.first += other.first[: _NUM_RECORDED - len(self.first)]

    @property
    def summary(self) -> str:
        """Messages about the first few bad rows, on one line."""
        return "; ".join(self.first[:_NUM_REPORTED])

    def report(self, name: str) -> str:
        """Returns a line to print about the skipped rows of the source `name`."""
        return f"{name}: skipped {self.bad:,} bad row{'s' if self.bad > 1 else ''} of {self.rows:,} ({self.summary})"

    def check(self, name: str) -> None:
        """Raises a `UserError` if more than MAX_BAD_SHARE of the rows of source `name` are bad."""
        if self.bad > MAX_BAD_SHARE * self.rows:
            raise UserError(
                f"{self.bad:,} of the {self.rows:,} rows of source '{name}' are bad, more than {MAX_BAD_SHARE:.0%} "
                f"({self.summary}): fix them, or the settings of the source"
            )


def read_or_skip(read: Callable[[], Result], skipped: Skipped | None) -> Result | None:
    """Returns the result of `read`, such as a record, or None if the row is bad and skipped.

    Args:
      read: function that reads a row, and raises `BadRow` if the row is bad.
      skipped: counter of rows and bad rows; if None, bad rows are not skipped.

    Raises:
      BadRow: the row is bad and `skipped` is None.
    """
    try:
        result = read()
    except BadRow as error:
        if skipped is None:
            share = f"{MAX_BAD_SHARE:.0%}"
            raise BadRow(f"{error} (--config.data.bad_rows=skip skips up to {share} of the rows)") from error
        skipped.add(Skipped(1, 1, [str(error)]))
        return None
    if skipped is not None:
        skipped.rows += 1
    return result


def document_record(location: str, row: Mapping[str, Any], field: str) -> Record:
    """Returns the record of a row whose `field` holds the text of a document.

    Raises:
      BadRow: the field is missing or not a string.
    """
    text = row.get(field)
    if isinstance(text, str):
        return Record(str(text))
    fix = f"expected a text, not {json.dumps(text, default=str)[:40]}" if field in row else nearest(field, row)
    raise BadRow(f"{location} has no text in '{field}': {fix}")


def ignore(size: int) -> None:
    """Does nothing; the default for functions that receive progress."""


class Corpus(abc.ABC):
    """An opened source: its documents by split and shard, and a fingerprint of its contents.

    Attributes:
      splits: names of the splits. `prepare` reads `train` and `validation`; if there is no `validation`, it may hold
        out some of the training records.
      columns: further columns of records, in `Record.values`. A record has one number for a column of kind `document`,
        and a sequence of numbers of any length for a column of kind `value`.
      keeps_offsets: whether the cache stores the characters that each token spans.
      skips_bad_rows: whether `read` supports `skipped`.
    """

    splits: tuple[str, ...]
    columns: tuple[Column, ...] = ()
    keeps_offsets: bool = False
    skips_bad_rows: bool = False

    @abc.abstractmethod
    def shards(self, split: str, most: int = 1) -> list[Any]:
        """Returns the shards of a split, which can be read in parallel.

        Args:
          most: maximum number of shards; ignored by sources whose number of shards is fixed.
        """

    @abc.abstractmethod
    def read(
        self, split: str, shard: Any, skipped: Skipped | None = None, advance: Callable[[int], Any] = ignore
    ) -> Iterator[Record]:
        """Yields the records of a shard, in order.

        Args:
          skipped: counter of rows and of bad rows, which are skipped. If None, a bad row is an error.
          advance: called with the amount that was read since the last call, in the unit of `progress`.

        Raises:
          UserError: the source is damaged or does not fit its settings.
        """

    @abc.abstractmethod
    def fingerprint(self) -> list[str]:
        """Returns strings, to be hashed, by which `prepare` detects that the contents of the source have changed.

        If there are no strings, changes are not detected.
        """

    def progress(self) -> dict[str, Any]:
        """Returns tqdm's arguments for a progress bar. The default bar counts documents and has no total."""
        return {"total": None, "unit": " documents"}
