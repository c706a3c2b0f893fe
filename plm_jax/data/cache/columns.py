"""Columns of a cache, which hold values of its documents. A column has a name, a type and a kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from plm_jax.common.errors import UserError

Kind = Literal["token", "start", "value", "document"]


@dataclass(frozen=True)
class Column:
    """Column of a cache.

    Attributes:
      name: name, used in file names and by the objectives that read the column.
      dtype: NumPy type of the values, little-endian.
      kind: number and meaning of the values of a document. `token`: one value for each token. `start`: sorted indices
        of the tokens at which sentences or words begin, counted from the first token of the document. `value`: any
        number of values. `document`: one value.
    """

    name: str
    dtype: str
    kind: Kind


class Values(NamedTuple):
    """Values of a column for several documents.

    Attributes:
      flat: values of all documents, one document after another.
      sizes: int64 [num_documents], number of values of each document; None for the kind `document`.
    """

    flat: np.ndarray
    sizes: np.ndarray | None = None


SENTENCE_STARTS = Column("sentence_starts", "<u4", "start")
WORD_STARTS = Column("word_starts", "<u4", "start")
# Number of UTF-8 bytes of a document's first token, which no model predicts.
FIRST_BYTES = Column("first_bytes", "<i4", "document")
# Characters [start, end) of each token in its text, without surrounding white space.
OFFSETS = (Column("char_starts", "<u4", "token"), Column("char_ends", "<u4", "token"))
# File and row of each document in its source, packed by `origin`.
ORIGIN = Column("origin", "<u8", "document")


# Names of the other files of a split.
_RESERVED = ("tokens", "documents", "unigram", "checksums")


def check(additional: Sequence[Column], standard: Sequence[Column]) -> None:
    """Rejects additional columns whose name is invalid or not unique, or whose type is not numeric.

    Args:
      additional: columns that a source defines.
      standard: columns that any cache may have.

    Raises:
      UserError: a column is rejected.
    """
    names = {*_RESERVED, *(column.name for column in standard)}
    for column in additional:
        if not column.name.isidentifier() or column.name in names:
            raise UserError(
                f"a source has a column with the invalid name '{column.name}': choose a unique name of letters, digits "
                "and _"
            )
        names.add(column.name)
        if np.dtype(column.dtype).kind not in "biuf":
            raise UserError(f"a source has a column '{column.name}' of type {column.dtype}: choose a numeric type")


def tokens(vocab_size: int) -> Column:
    """Returns the column of the tokens. Its type is uint16 if every id fits, otherwise uint32."""
    return Column("tokens", "<u2" if vocab_size <= 2**16 else "<u4", "token")


def origin(file: int, row: int) -> int:
    """Returns one integer that contains the index of a file, from 0, and the number of a line or record, from 1."""
    return file << 32 | row


def gather(column: Column, documents: Sequence[Any]) -> Values:
    """Returns the values of a column for several documents, as arrays.

    Args:
      documents: the value of each document if the kind is `document`; otherwise the sequence of values of each.
    """
    if column.kind == "document":
        return Values(np.array(documents, column.dtype))
    sizes = np.array([len(values) for values in documents], np.int64)
    flat = np.concatenate([np.zeros(0, column.dtype), *(np.asarray(values, column.dtype) for values in documents)])
    return Values(flat, sizes)


def describe(columns: Sequence[Column]) -> list[dict[str, str]]:
    """Returns the entry `columns` of a manifest."""
    return [{"name": column.name, "dtype": column.dtype, "kind": column.kind} for column in columns]


def read(listed: Sequence[Mapping[str, str]]) -> tuple[Column, ...]:
    """Returns the columns of a cache, from the entry `columns` of its manifest."""
    return tuple(Column(entry["name"], entry["dtype"], cast(Kind, entry["kind"])) for entry in listed)
