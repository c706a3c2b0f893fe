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
from typing import ClassVar

import numpy as np
from typing_extensions import override

from plm_jax.common import ranges, trees
from plm_jax.data.layouts import index
from plm_jax.data.layouts.formats import Example
from plm_jax.data.layouts.layout import Layout, RowRequest
from plm_jax.data.layouts.randomness import generator

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
    num_texts: ClassVar[int] = 2
    least_length: ClassVar[int] = 5
    short_probability: ranges.Share = 0.05

    @override
    def open(self, request: RowRequest) -> "SegmentRows":
        length, stream = request.length, f"segments/{request.identity}/{request.name}"

        def walk_all(number: int) -> Iterator[index.Found]:
            for block, (sentences, documents) in enumerate(index.blocks(request.split)):
                rng, num = generator(request.seed, stream, block), len(sentences) - 1
                short = rng.random(num) < self.short_probability
                wanted = np.where(short, rng.integers(SHORTEST, length, num, endpoint=True), length)
                yield index.Found(len(documents) - 1, walk(sentences, documents, wanted))

        settings, columns = [trees.to_dict(self), length, request.seed], {"starts": "<i8", "targets": "<i4"}
        return SegmentRows(index.open_index(request, settings, columns, walk_all), request, self)


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

    def __init__(self, found: index.Index, request: RowRequest, layout: Segments):
        super().__init__(found, request)
        self._targets = found.columns["targets"]
        self._format = layout.row_format(request.objective.special)

    @override
    def example(self, item: int, rng: np.random.Generator) -> Example:
        start, stop = self.span(item)
        sentences = self._split.sentences
        bounds = sentences[slice(*sentences.searchsorted((start, stop)))] - start
        sizes = np.diff(bounds, append=stop - start)
        is_first = np.repeat(in_first(sizes.tolist(), int(self._targets[item]), rng), sizes)
        first = is_first.nonzero()[0][: self._format.room(self._length)]
        second = (~is_first).nonzero()[0][: max(0, self._format.room(self._length, 2) - len(first))]
        tokens, parts = self._split.tokens(start, stop), [first, second] if len(second) else [first]
        row = self._format.row([tokens[part] for part in parts], self._length)
        begins = self._format.begins([len(part) for part in parts])
        for name in self._reads:
            is_start = np.zeros(stop - start, np.bool_)
            is_start[self._split.starts(name, start, stop)] = True
            found = (at + is_start[part].nonzero()[0] for at, part in zip(begins, parts, strict=True))
            row[name] = np.concatenate(list(found))
        return row
