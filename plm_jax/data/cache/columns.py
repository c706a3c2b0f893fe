"""What a cache keeps of its documents: named columns, each of one type and one kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from plm_jax.common.errors import UserError

Kind = Literal["token", "start", "value", "document"]


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
      name: what objectives read and files are called by.
      dtype: of its numbers, as NumPy writes it, little-endian.
      kind: how many of them a document has: `token`, one for each of its tokens; `start`, the tokens at which parts of
        it begin, rising, counted from its first; `value`, any number; `document`, one.
    """

    name: str
    dtype: str
    kind: Kind


class Values(NamedTuple):
    """A column of some documents.

    Attributes:
      flat: those of one document after another.
      sizes: int64 [documents], how many each has; of kind `document` None.
    """

    flat: np.ndarray
    sizes: np.ndarray | None = None


SENTENCE_STARTS = Column("sentence_starts", "<u4", "start")
WORD_STARTS = Column("word_starts", "<u4", "start")
# UTF-8 bytes of a document's first token, which no model predicts.
FIRST_BYTES = Column("first_bytes", "<i4", "document")
# Of each token the characters of its text that it is, from which on and up to which, white space around left out.
OFFSETS = (Column("char_starts", "<u4", "token"), Column("char_ends", "<u4", "token"))
# Where a document comes from, see `origin`.
ORIGIN = Column("origin", "<u8", "document")


# Names that files of a split have besides.
_TAKEN = ("tokens", "documents", "unigram", "checksums")


def check(own: Sequence[Column], others: Sequence[Column]) -> None:
    """Refuses columns of a source's own whose names are no file's, or another column's, or types that do not fit."""
    taken = {*_TAKEN, *(column.name for column in others)}
    for column in own:
        if not column.name.isidentifier() or column.name in taken:
            raise UserError(f"a source brings a column '{column.name}': give it a name of its own, of letters and _")
        taken.add(column.name)
        if np.dtype(column.dtype).kind not in "biuf":
            raise UserError(f"a source brings the column '{column.name}' of {column.dtype}: give the type of a number")


def tokens(vocab_size: int) -> Column:
    """The tokens themselves: uint16 where it holds every id, else uint32."""
    return Column("tokens", "<u2" if vocab_size <= 2**16 else "<u4", "token")


def origin(file: int, place: int) -> int:
    """Which of the source's files, from 0, and in it which line or record, from 1, as one number."""
    return file << 32 | place


def gather(column: Column, documents: Sequence[Any]) -> Values:
    """The values of one document after another, each a number or, of other kinds than `document`, a sequence."""
    if column.kind == "document":
        return Values(np.array(documents, column.dtype))
    sizes = np.array([len(found) for found in documents], np.int64)
    flat = np.concatenate([np.zeros(0, column.dtype), *(np.asarray(found, column.dtype) for found in documents)])
    return Values(flat, sizes)


def describe(columns: Sequence[Column]) -> list[dict[str, str]]:
    """Columns as the manifest lists them."""
    return [{"name": column.name, "dtype": column.dtype, "kind": column.kind} for column in columns]


def read(listed: Sequence[Mapping[str, str]]) -> tuple[Column, ...]:
    """Returns the columns that `describe` listed."""
    return tuple(Column(of["name"], of["dtype"], cast(Kind, of["kind"])) for of in listed)
