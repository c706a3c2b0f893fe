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
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from plm_jax import objectives
from plm_jax.common import trees
from plm_jax.data.layouts import index
from plm_jax.data.layouts.layout import Example, Form, Layout, check_around, check_length

if TYPE_CHECKING:
    from plm_jax import config
    from plm_jax.data import cache

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

    def gives(self, objective: objectives.Objective) -> Form:
        """Rows with their marks."""
        del objective
        return "row"

    def is_full(self) -> bool:
        """A row ends with its document."""
        return False

    def check(self, run: "config.Run", stage: "config.Phase") -> None:
        """Rows longer than what is left out, and the marks around them."""
        super().check(run, stage)
        check_around(run.vocabulary, self.plural)
        check_length(stage.length, TOO_SHORT + 1, self.plural)

    def blank(self, length: int, objective: objectives.BoundObjective, num_characters: int = 0) -> Example:
        """See `Layout.blank`."""
        del num_characters
        return objectives.RowFormat.of(objective.special).row([np.zeros(1, np.int32)], length)

    def open(
        self,
        source: "cache.CachedSource",
        split: str,
        length: int,
        seed: int,
        objective: objectives.BoundObjective,
        characters: np.ndarray | None = None,
    ) -> "DocumentRows":
        """Opens the index, or makes it: once for each length."""
        del seed, characters
        opened, columns = source.splits[split], {"starts": "<i8", "lengths": "<i4"}
        what = [trees.to_dict(self), length]
        found = index.open_index(
            source, split, what, columns, lambda number: _walk(opened, length, objective.special.unk)
        )
        return DocumentRows(found, opened, length, objective)


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


def _blocks(split: "cache.Split") -> Iterator[np.ndarray]:
    """Where documents begin, and the end, about BLOCK_TOKENS a time."""
    first, starts = 0, np.asarray(split.documents)
    while first < split.num_documents:
        edge = int(starts[first]) + BLOCK_TOKENS
        last = min(max(first + 1, int(starts.searchsorted(edge))), split.num_documents)
        yield starts[first : last + 1]
        first = last


def _walk(split: "cache.Split", length: int, unk: int | None) -> Iterator[index.Found]:
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

    def __init__(self, found: index.Index, split: "cache.Split", length: int, objective: objectives.BoundObjective):
        super().__init__(found, split, split.num_tokens, objective.reads)
        self._lengths, self._length = found.columns["lengths"], length
        self._format = objectives.RowFormat.of(objective.special)

    def example(self, item: int, rng: np.random.Generator) -> Example:
        """A row, see `RowFormat.row`; nothing is drawn."""
        del rng
        start = int(self._starts[item])
        stretch = start, start + int(self._lengths[item])
        made = self._format.row([self._split.tokens(*stretch)], self._length)
        return self._with_starts(made, [stretch], [0], self._format)

    def documents(self, item: int, rng: np.random.Generator) -> range:
        """See `Rows.documents`."""
        del rng
        start = int(self._starts[item])
        return self._split.numbers(start, start + int(self._lengths[item]))

    def rows_with(self, document: int) -> list[range]:
        """See `Rows.rows_with`."""
        return self._rows_within(*self._split.documents[document : document + 2].tolist())

    def shortage(self, length: int, batch_size: int) -> str:
        """See `Rows.shortage`."""
        del length, batch_size
        return (
            f"has no training document of {TOO_SHORT - 1} tokens, most of them known: "
            "give longer ones or another config.data.layout"
        )

    def notes(self, name: str) -> list[str]:
        """The share of the split's tokens that are in no row."""
        share = 1 - int(self._lengths.sum(dtype=np.int64)) / max(1, self._split.num_tokens)
        return [f"{share:.1%} of the tokens of '{name}' are left out, in rows too short or too unknown"] * (share > 0)
