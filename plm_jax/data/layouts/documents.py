"""Rows of one document each, as in DistilBERT (Sanh et al. 2019, arXiv:1910.01108).

The rules are those of huggingface/transformers, research_projects/distillation (`scripts/binarized_data.py`, where a
document is a line, and `lm_seqs_dataset.py`): each document is framed by `[CLS]` and `[SEP]`. If a framed document is
longer than a row, it is cut into pieces that are two tokens shorter than a row, and missing special tokens are added to
each piece. Rows of at most 11 tokens are dropped, and so are rows in which at least half of the tokens are unknown. The
index of a split (`index.py`) has these columns:

    starts   first text token of each row
    lengths  number of text tokens of each row
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
# Largest number of tokens, special ones included, and smallest share of unknown tokens of a row that is dropped.
TOO_SHORT, TOO_UNKNOWN = 11, 0.5


@dataclass(frozen=True)
class Documents(Layout):
    """One document per row, between `cls` and `sep` (or `bos` and `eos`); long documents are split (DistilBERT).

    Rows of at most 11 tokens, special tokens included, are dropped, and so are rows in which at least half of the
    tokens are unknown. Short documents leave much of a row empty; a run reports the padding.
    """

    kind: ClassVar[str] = "documents"
    plural: ClassVar[str] = "documents"
    num_texts: ClassVar[int] = 1
    least_length: ClassVar[int] = TOO_SHORT + 1

    @override
    def open(self, request: RowRequest) -> "DocumentRows":
        unk = request.objective.special.unk
        settings, columns = [trees.to_dict(self), request.length], {"starts": "<i8", "lengths": "<i4"}

        def walk(number: int) -> Iterator[index.RowBlock]:
            return _walk(request.split, request.length, unk)

        return DocumentRows(index.open_index(request, settings, columns, walk), request, self)


def cut(documents: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts documents into pieces for rows of `length` tokens.

    Args:
      documents: [d + 1], position of the first token of each document, followed by the end of the last document.

    Returns:
      A pair of arrays: the first token and the end (exclusive) of each piece. A piece may be empty.
    """
    step = length - 2
    sizes = np.diff(documents) + 2
    counts = np.where(sizes <= length, 1, -(-sizes // step))
    begins, ends = np.repeat(documents[:-1], counts), np.repeat(documents[1:], counts)
    number = np.arange(len(begins)) - np.repeat(counts.cumsum() - counts, counts)
    # The first piece has one text token less, since it includes the special token that begins the document.
    starts = np.where(number == 0, begins, begins - 1 + number * step)
    stops = np.where(np.repeat(counts, counts) == 1, ends, np.minimum(begins - 1 + (number + 1) * step, ends))
    return starts, stops


def _blocks(split: cache.DocumentTable) -> Iterator[np.ndarray]:
    """Yields the documents of a split in blocks of about BLOCK_TOKENS tokens.

    Yields:
      The first token of each document of the block, followed by the end of the last document.
    """
    first, starts = 0, np.asarray(split.documents)
    while first < split.num_documents:
        edge = int(starts[first]) + BLOCK_TOKENS
        last = min(max(first + 1, int(starts.searchsorted(edge))), split.num_documents)
        yield starts[first : last + 1]
        first = last


def _walk(split: cache.DocumentTable, length: int, unk: int | None) -> Iterator[index.RowBlock]:
    """Yields the rows of a split that are not dropped."""
    for documents in _blocks(split):
        begins, ends = cut(documents, length)
        sizes = ends - begins + 2
        keep = sizes > TOO_SHORT
        if unk is not None:
            unknown = split.tokens(int(documents[0]), int(documents[-1])) == unk
            before = np.concatenate([[0], unknown.cumsum()])
            keep &= before[ends - documents[0]] - before[begins - documents[0]] < TOO_UNKNOWN * sizes
        yield index.RowBlock(len(documents) - 1, [begins[keep], (ends - begins)[keep]])


class DocumentRows(index.IndexedRows):
    """Rows `[CLS] document [SEP]` of `length` tokens; there is a single pass over the split."""

    def __init__(self, rows: index.Index, request: RowRequest, layout: Documents):
        super().__init__(rows, request)
        self._lengths = rows.columns["lengths"]
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
    def max_sizes(self, first: int, stop: int) -> np.ndarray:
        return self._lengths[first:stop] + (self._length - self._format.room(self._length))

    @override
    def shortage(self) -> str:
        return (
            f"has no training document of {TOO_SHORT - 1} tokens, most of them known: "
            "add longer documents or use another config.data.layout"
        )

    @override
    def notes(self, name: str) -> list[str]:
        share = 1 - int(np.asarray(self._lengths).sum(dtype=np.int64)) / max(1, self._split.num_tokens)
        reason = "in rows that are too short or have too many unknown tokens"
        return [f"{share:.1%} of the tokens of '{name}' are dropped, {reason}"] * (share > 0)
