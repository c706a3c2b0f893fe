"""ELECTRA's rows of two segments of a document, without a pair label (Clark et al. 2020, arXiv:2003.10555).

The rules are those of `build_pretraining_dataset.py` in google-research/electra. Sentences of one document are added to
a row until it has its target number of tokens, so the start of a row depends on the previous row. The index of a split
(`index.py`) has these columns:

    starts   first token of each row; a row ends where the next row begins
    targets  target number of tokens of each row

The division of a row into segments is drawn each time that the row is read.
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

# Probability that a row is a single segment, and that the sentence with which the first segment exceeds half of the row
# still belongs to it.
ONE_SEGMENT, GOES_BEYOND = 0.1, 0.5
SHORTEST = 5


@dataclass(frozen=True)
class Segments(Layout):
    """Sentences of one document in two segments, `[CLS] first [SEP] second [SEP]`, without a label (ELECTRA).

    Sentences are added to a row until it has its target number of tokens or the document ends. Tokens beyond the length
    of the row are cut off. The sentences of about the first half of the row are the first segment, and the remaining
    sentences are the second segment. In about a tenth of the rows, every sentence is in the first segment. Segments are
    drawn again in each epoch; the starts of rows are fixed.

    Attributes:
      short_probability: share of rows whose target number of tokens is drawn uniformly from 5 to the length of a row.
        For other rows, the target is the length of a row.
    """

    kind: ClassVar[str] = "segments"
    plural: ClassVar[str] = "two segments"
    num_texts: ClassVar[int] = 2
    least_length: ClassVar[int] = 5
    short_probability: ranges.Share = 0.05

    @override
    def open(self, request: RowRequest) -> "SegmentRows":
        length, stream = request.length, f"segments/{request.identity}/{request.name}"

        def walk_all(number: int) -> Iterator[index.RowBlock]:
            for block, (sentences, documents) in enumerate(index.blocks(request.split)):
                rng, num = generator(request.seed, stream, block), len(sentences) - 1
                short = rng.random(num) < self.short_probability
                targets = np.where(short, rng.integers(SHORTEST, length, num, endpoint=True), length)
                yield index.RowBlock(len(documents) - 1, walk(sentences, documents, targets))

        settings, columns = [trees.to_dict(self), length, request.seed], {"starts": "<i8", "targets": "<i4"}
        return SegmentRows(index.open_index(request, settings, columns, walk_all), request, self)


def walk(sentences: np.ndarray, documents: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds the rows of some documents.

    Args:
      sentences: [s + 1], position of the first token of each sentence, followed by the end of the last sentence.
      documents: [d + 1], index of the first sentence of each document, followed by the number of sentences.
      targets: [s], for each sentence, the target number of tokens of a row that begins at this sentence.

    Returns:
      A pair of arrays: the first token of each row, and the target number of tokens of each row.
    """
    last = np.repeat(documents[1:], np.diff(documents))
    path = index.follow(np.minimum(np.searchsorted(sentences, sentences[:-1] + targets), last))
    return sentences[path], targets[path]


def in_first(sizes: list[int], target: int, rng: np.random.Generator) -> list[bool]:
    """Draws, for each sentence of a row, whether the sentence belongs to the first segment.

    Args:
      sizes: number of tokens of each sentence.
      target: target number of tokens of the row.
    """
    limit = np.inf if rng.random() < ONE_SEGMENT else (target - 3) // 2
    is_first, num_first, all_first = [], 0, True
    for size in sizes:
        fits = num_first == 0 or num_first + size < limit
        fits = fits or (all_first and num_first < limit and rng.random() < GOES_BEYOND)
        num_first, all_first = num_first + size * fits, all_first and fits
        is_first.append(fits)
    return is_first


class SegmentRows(index.IndexedRows):
    """Rows `[CLS] first [SEP] second [SEP]`, or `[CLS] first [SEP]`, of `length` tokens, in a single pass."""

    def __init__(self, rows: index.Index, request: RowRequest, layout: Segments):
        super().__init__(rows, request)
        self._targets = rows.columns["targets"]
        self._format = layout.row_format(request.objective.special)

    @override
    def max_sizes(self, first: int, stop: int) -> np.ndarray:
        edges = np.append(self._starts[first : min(stop + 1, self.num_rows)], self.pass_tokens)[: stop - first + 1]
        return np.diff(edges) + (self._length - self._format.room(self._length, 2))

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
        begins = self._format.text_starts([len(part) for part in parts])
        for name in self._reads:
            is_start = np.zeros(stop - start, np.bool_)
            is_start[self._split.starts(name, start, stop)] = True
            starts = [begin + is_start[part].nonzero()[0] for begin, part in zip(begins, parts, strict=True)]
            row[name] = np.concatenate(starts)
        return row
