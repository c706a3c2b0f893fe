"""Rows of two segments of a document without a label, ELECTRA's (Clark et al. 2020, arXiv:2003.10555).

The rules are those of `build_pretraining_dataset.py` in google-research/electra. A row takes sentences of one document
until they have as many tokens as were drawn for it, so where it begins depends on the one before it. The split is
walked once, and its index, see `index`, has these columns:

    starts   first token of each row, which goes on to the next one's
    targets  the tokens that each should have

Which sentences are the first segment is drawn by example.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from plm_jax import objectives
from plm_jax.common import ranges, trees
from plm_jax.common.errors import UserError
from plm_jax.data.layouts import index
from plm_jax.data.layouts.layout import Example, Form, Layout
from plm_jax.data.layouts.randomness import generator
from plm_jax.data.layouts.sentence_pairs import check_two_parts, pair_format

if TYPE_CHECKING:
    from plm_jax import config
    from plm_jax.data import cache

# Share of the rows whose sentences are all one segment, and chance that the sentence with which the first one would be
# more than half of the row is still part of it.
ONE_SEGMENT, GOES_BEYOND = 0.1, 0.5
SHORTEST = 5


@dataclass(frozen=True)
class Segments(Layout):
    """Sentences of one document in two segments, `[CLS] first [SEP] second [SEP]`, without a label (ELECTRA).

    A row takes sentences until it is full or the document ends; what is beyond its length is cut off. Up to about half
    of it they are the first segment, the others the second, and of a tenth of the rows all are the first. That is drawn
    anew in each epoch; where rows begin is not.

    Attributes:
      short_probability: share of rows that take sentences up to a length drawn from 5 to the row's.
    """

    kind: ClassVar[str] = "segments"
    plural: ClassVar[str] = "two segments"
    short_probability: ranges.Share = 0.05

    def gives(self, objective: objectives.Objective) -> Form:
        """Rows with their marks."""
        del objective
        return "row"

    def is_full(self) -> bool:
        """A row ends with its document."""
        return False

    def check(self, run: "config.Run", stage: "config.Phase") -> None:
        """Rows for two segments, the marks around them, and a model that tells them apart."""
        super().check(run, stage)
        check_two_parts(self, run, stage.length)
        if run.model.token_types < 2:
            raise UserError(
                "two segments need a model that tells them apart: set config.model.embedding.token_types to 2"
            )

    def blank(self, length: int, objective: objectives.BoundObjective, num_characters: int = 0) -> Example:
        """See `Layout.blank`."""
        del num_characters
        text = np.zeros(1, np.int32)
        return pair_format(objective.special).row([text, text], length)

    def open(
        self,
        source: "cache.CachedSource",
        split: str,
        length: int,
        seed: int,
        objective: objectives.BoundObjective,
        characters: np.ndarray | None = None,
    ) -> "SegmentRows":
        """Opens the index, or makes it: once for each length and seed."""
        del characters
        opened, stream = source.splits[split], f"segments/{source.identity}/{split}"

        def walk_all(number: int) -> Iterator[index.Found]:
            del number  # There is one pass.
            for block, (sentences, documents) in enumerate(index.blocks(opened)):
                rng, num = generator(seed, stream, block), len(sentences) - 1
                short = rng.random(num) < self.short_probability
                wanted = np.where(short, rng.integers(SHORTEST, length, num, endpoint=True), length)
                yield index.Found(len(documents) - 1, walk(sentences, documents, wanted))

        columns = {"starts": "<i8", "targets": "<i4"}
        found = index.open_index(source, split, [trees.to_dict(self), length, seed], columns, walk_all)
        return SegmentRows(found, opened, length, objective)


def walk(sentences: np.ndarray, documents: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of some documents.

    Args:
      sentences: [s + 1], the first token of each sentence, and the end.
      documents: [d + 1], the first sentence of each document, and the end.
      targets: [s], how many tokens a row that begins at a sentence should have.

    Returns:
      The first token of each row, and how many it should have.
    """
    last = np.repeat(documents[1:], np.diff(documents))
    path = index.follow(np.minimum(np.searchsorted(sentences, sentences[:-1] + targets), last))
    return sentences[path], targets[path]


def in_first(sizes: list[int], target: int, rng: np.random.Generator) -> list[bool]:
    """Of sentences with so many tokens, whether each is of the first segment of a row that should have `target`."""
    limit = np.inf if rng.random() < ONE_SEGMENT else (target - 3) // 2
    found, num_first, all_first = [], 0, True
    for size in sizes:
        fits = num_first == 0 or num_first + size < limit
        fits = fits or (all_first and num_first < limit and rng.random() < GOES_BEYOND)
        num_first, all_first = num_first + size * fits, all_first and fits
        found.append(fits)
    return found


class SegmentRows(index.IndexedRows):
    """`[CLS] first [SEP] second [SEP]` in rows of `length`, in one pass."""

    def __init__(self, found: index.Index, split: "cache.Split", length: int, objective: objectives.BoundObjective):
        super().__init__(found, split, split.num_tokens, objective.reads)
        self._targets, self._length = found.columns["targets"], length
        self._format = pair_format(objective.special)

    def example(self, item: int, rng: np.random.Generator) -> Example:
        """A row, see `pair_format`."""
        start, stop = self._stretch(item)
        sentences = self._split.sentences
        bounds = sentences[slice(*sentences.searchsorted((start, stop)))] - start
        sizes = np.diff(bounds, append=stop - start)
        is_first = np.repeat(in_first(sizes.tolist(), int(self._targets[item]), rng), sizes)
        first = is_first.nonzero()[0][: self._format.room(self._length)]
        second = (~is_first).nonzero()[0][: max(0, self._format.room(self._length, 2) - len(first))]
        tokens, parts = self._split.tokens(start, stop), [first, second] if len(second) else [first]
        made = self._format.row([tokens[part] for part in parts], self._length)
        begins = self._format.begins([len(part) for part in parts])
        for name in self._reads:
            is_start = np.zeros(stop - start, np.bool_)
            is_start[self._split.starts(name, start, stop)] = True
            found = (at + is_start[part].nonzero()[0] for at, part in zip(begins, parts, strict=True))
            made[name] = np.concatenate(list(found))
        return made

    def documents(self, item: int, rng: np.random.Generator) -> range:
        """See `Rows.documents`."""
        del rng
        return self._split.numbers(*self._stretch(item))

    def rows_with(self, document: int) -> list[range]:
        """See `Rows.rows_with`."""
        return self._rows_within(*self._split.documents[document : document + 2].tolist())
