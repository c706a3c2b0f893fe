"""Rows of one document each, DistilBERT's (Sanh et al. 2019, arXiv:1910.01108).

The rules are those of huggingface/transformers, research_projects/distillation (`scripts/binarized_data.py`, where a
document is a line, and `lm_seqs_dataset.py`): each document stands between `[CLS]` and `[SEP]`. One that is longer than
a row is cut, marks and all, into pieces of two tokens less, each of which gets the marks that it lacks. Rows of at most
11 tokens go, and rows of which at least half are unknown. The split is walked once, and its index, see `index`, has
these columns:

    starts   first token of text of each row
    lengths  how many tokens of text it has
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from plm_jax.common import trees
from plm_jax.data import cache
from plm_jax.data.layouts import index
from plm_jax.data.layouts.formats import Example
from plm_jax.data.layouts.layout import Layout, RowRequest

BLOCK_TOKENS = 2**20
# Of a row, marks counted: most tokens of one that goes, and the share of unknown ones with which it goes.
TOO_SHORT, TOO_UNKNOWN = 11, 0.5


@dataclass(frozen=True)
class Documents(Layout):
    """One document a row, between `cls` and `sep` (or `bos` and `eos`); a longer one is cut into several (DistilBERT).

    Left out are rows of 11 tokens or fewer, marks counted, and such of which half or more is unknown. Short documents
    fill little of a row: a run says how much.
    """

    kind: ClassVar[str] = "documents"
    plural: ClassVar[str] = "documents"
    num_texts: ClassVar[int] = 1
    least_length: ClassVar[int] = TOO_SHORT + 1

    @override
    def open(self, request: RowRequest) -> "DocumentRows":
        unk = request.objective.special.unk
        settings, columns = [trees.to_dict(self), request.length], {"starts": "<i8", "lengths": "<i4"}

        def walk(number: int) -> Iterator[index.Found]:
            return _walk(request.split, request.length, unk)

        return DocumentRows(index.open_index(request, settings, columns, walk), request, self)


def cut(documents: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of documents that begin at `documents` [d + 1], the end among them, for rows of `length`.

    Returns:
      Where each piece begins and ends; it may be empty.
    """
    step = length - 2
    sizes = np.diff(documents) + 2
    counts = np.where(sizes <= length, 1, -(-sizes // step))
    begins, ends = np.repeat(documents[:-1], counts), np.repeat(documents[1:], counts)
    number = np.arange(len(begins)) - np.repeat(counts.cumsum() - counts, counts)
    # The mark that begins a document is cut off with its first piece, so that it is one token shorter.
    starts = np.where(number == 0, begins, begins - 1 + number * step)
    stops = np.where(np.repeat(counts, counts) == 1, ends, np.minimum(begins - 1 + (number + 1) * step, ends))
    return starts, stops


def _blocks(split: cache.DocumentTable) -> Iterator[np.ndarray]:
    """Where documents begin, and the end, about BLOCK_TOKENS a time."""
    first, starts = 0, np.asarray(split.documents)
    while first < split.num_documents:
        edge = int(starts[first]) + BLOCK_TOKENS
        last = min(max(first + 1, int(starts.searchsorted(edge))), split.num_documents)
        yield starts[first : last + 1]
        first = last


def _walk(split: cache.DocumentTable, length: int, unk: int | None) -> Iterator[index.Found]:
    """The rows of a split that stay."""
    for documents in _blocks(split):
        begins, ends = cut(documents, length)
        sizes = ends - begins + 2
        keep = sizes > TOO_SHORT
        if unk is not None:
            unknown = split.tokens(int(documents[0]), int(documents[-1])) == unk
            before = np.concatenate([[0], unknown.cumsum()])
            keep &= before[ends - documents[0]] - before[begins - documents[0]] < TOO_UNKNOWN * sizes
        yield index.Found(len(documents) - 1, [begins[keep], (ends - begins)[keep]])


class DocumentRows(index.IndexedRows):
    """`[CLS] document [SEP]` in rows of `length`, in one pass."""

    def __init__(self, found: index.Index, request: RowRequest, layout: Documents):
        super().__init__(found, request)
        self._lengths = found.columns["lengths"]
        self._format = layout.row_format(request.objective.special)

    @override
    def span(self, item: int) -> tuple[int, int]:
        start = int(self._starts[item])
        return start, start + int(self._lengths[item])

    @override
    def example(self, item: int, rng: np.random.Generator) -> Example:
        span = self.span(item)
        row = self._format.row([self._split.tokens(*span)], self._length)
        return self._with_starts(row, [span], [0], self._format)

    @override
    def shortage(self) -> str:
        return (
            f"has no training document of {TOO_SHORT - 1} tokens, most of them known: "
            "give longer ones or another config.data.layout"
        )

    @override
    def notes(self, name: str) -> list[str]:
        share = 1 - int(np.asarray(self._lengths).sum(dtype=np.int64)) / max(1, self._split.num_tokens)
        return [f"{share:.1%} of the tokens of '{name}' are left out, in rows too short or too unknown"] * (share > 0)
