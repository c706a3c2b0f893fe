"""What `prepare` reads of a source of a config, once it is opened."""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from plm_jax.common.errors import UserError
from plm_jax.data.cache.columns import Column

# The share of a source's rows above which bad ones are not left out, how many of those that are are told, and noted.
MOST_BAD = 0.01
_TOLD, _NOTED = 3, 1000


class BadRow(UserError):
    """A line, paragraph, record or text file that holds no document or example."""


class Record(NamedTuple):
    """A document, or an example of several texts.

    Attributes:
      text: the text, or the first text of an example, such as its inputs.
      others: of an example those that follow, such as targets; None: it is a document.
      file, place: which of the source's files, or shards, it is from, counted from 0, and which line or record, from 1.
      values: of each of the source's `columns` what the document has.
      group: name shared by records that must stay in one split, such as a document's id; None for `text`, which keeps
        the questions of a context together.
    """

    text: str
    others: tuple[str, ...] | None = None
    file: int = 0
    place: int = 0
    values: Mapping[str, Any] = {}
    group: str | None = None

    @property
    def has_text(self) -> bool:
        """Whether its first text is not blank, or any further text is not empty."""
        return bool(self.text.strip() or any(self.others or ()))


@dataclasses.dataclass
class Skipped:
    """How many rows there were, how many of them bad and left out, and where the first were and what was wrong."""

    rows: int = 0
    bad: int = 0
    first: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: "Skipped") -> None:
        """Adds those of rows that follow."""
        self.rows, self.bad = self.rows + other.rows, self.bad + other.bad
        self.first += other.first[: _NOTED - len(self.first)]

    @property
    def told(self) -> str:
        """Some of the first."""
        return "; ".join(self.first[:_TOLD])

    def check(self, name: str) -> None:
        """Raises a `UserError` if more than MOST_BAD of a source's rows are bad."""
        if self.bad > MOST_BAD * self.rows:
            raise UserError(
                f"{self.bad:,} of the {self.rows:,} rows of source '{name}' are bad, more than {MOST_BAD:.0%} "
                f"({self.told}): mend them, or what the source asks for"
            )


def kept(make: Callable[[], Record | None], skipped: Skipped | None) -> Record | None:
    """The record that `make` gives; None: a bad one, which is counted, or what `make` leaves out.

    Raises:
      BadRow: a bad one that nobody counts.
    """
    try:
        record = make()
    except BadRow as error:
        if skipped is None:
            raise
        skipped.add(Skipped(1, 1, [str(error)]))
        return None
    if skipped is not None:
        skipped.rows += 1
    return record


def ignore(size: int) -> None:
    """Progress that nobody watches."""


class Corpus(abc.ABC):
    """A source, opened: its documents by splits and shards, and what tells whether they have changed.

    Attributes:
      splits: `train`, and `validation` where it has one of its own.
      columns: what it says of documents besides their text; each record's `values` have them, a number of a column of
        kind `document`, of kind `value` any sequence of them.
      keeps_offsets: whether of each token is kept which characters of its text it is.
      skips_bad_rows: whether `read` counts rows and leaves bad ones out where it is asked to.
    """

    splits: tuple[str, ...]
    columns: tuple[Column, ...] = ()
    keeps_offsets: bool = False
    skips_bad_rows: bool = False

    @abc.abstractmethod
    def shards(self, split: str, most: int = 1) -> list[Any]:
        """What a split can be read in, one after another or at once; up to `most` where it can be parted anywhere."""

    @abc.abstractmethod
    def read(
        self, split: str, shard: Any, skipped: Skipped | None = None, advance: Callable[[int], Any] = ignore
    ) -> Iterator[Record]:
        """The records of a shard, in order.

        Args:
          skipped: counts the rows, of which bad ones are left out; None: a bad one is an error.
          advance: is told how much more was read, as `progress` counts it.

        Raises:
          UserError: what the user can mend in the source.
        """

    @abc.abstractmethod
    def fingerprint(self) -> list[str]:
        """What the source holds, as text to hash."""

    def progress(self) -> dict[str, Any]:
        """How its reading is drawn: `total` and `unit`, as tqdm takes them; by default so many documents."""
        return {"total": None, "unit": " documents"}
