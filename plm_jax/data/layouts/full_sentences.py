"""Rows of whole sentences, RoBERTa's FULL-SENTENCES and DOC-SENTENCES (Liu et al. 2019, arXiv:1907.11692).

As in fairseq's `TokenBlockDataset` (`complete` and `complete_doc`) each row takes sentences until the next one does not
fit, so where a row begins depends on the one before it. BART's rows are the same (Lewis et al. 2020, arXiv:1910.13461),
but nothing stands between documents, and what frames a row comes with the noise. The split is walked once, and its
index, see `index`, has the columns `starts` and `ends`: tokens [start, end) of each row, in the stream of documents
each followed by a separator, if there is one. A row ends wherever one of the blocks of documents does that are walked
at once, about every 262,144 sentences.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from plm_jax import objectives
from plm_jax.common import trees
from plm_jax.common.errors import UserError
from plm_jax.data.layouts import formats, index
from plm_jax.data.layouts.formats import Example
from plm_jax.data.layouts.layout import Form, Layout, RowRequest
from plm_jax.data.layouts.stream import Stream


@dataclass(frozen=True)
class FullSentences(Layout):
    """As many whole sentences a row as fit, in the order of the text, between `cls` and `sep` (or `bos` and `eos`).

    RoBERTa's formats without pairs (Liu et al. 2019 §4.2), BART's rows, and SpanBERT's. With `sep` as RoBERTa's `</s>`,
    it stands between documents and at the end of a row, never between sentences of one document.

    Attributes:
      cross_documents: whether a row goes on in the next document, behind an extra `sep` (FULL-SENTENCES; where a text
        is denoised, behind nothing); if not, it is padded (DOC-SENTENCES; fairseq's default for BART). RoBERTa then
        makes a batch larger until it has as many tokens; here a batch has `train.batch_size` rows, and a run says how
        many rows make up for the padding.
      drop_long_sentences: whether a sentence longer than a row is left out and the row before it ends, as in SpanBERT's
        `BlockDataset` (which also loses the row before such a sentence at the end of a document); if not, it is cut.
    """

    kind: ClassVar[str] = "whole_sentences"
    plural: ClassVar[str] = "whole sentences"
    num_texts: ClassVar[int] = 1
    least_length: ClassVar[int] = 3
    cross_documents: bool = True
    drop_long_sentences: bool = False

    @override
    def form(self, objective: objectives.Objective) -> Form:
        return "text" if objective.frames else "row"  # An objective that frames a text reads the sentences alone.

    @property
    @override
    def is_full(self) -> bool:
        return self.cross_documents

    @override
    def open(self, request: RowRequest) -> "SentenceRows":
        split, objective, length = request.split, request.objective, request.length
        row_format = None if objective.frames else self.row_format(objective.special)
        size = objective.input_length(length) if row_format is None else length
        room = size if row_format is None else row_format.room(length)
        stream = Stream(split, None if row_format is None else row_format.between[0], objective.special.pad)

        def walk_all(number: int) -> Iterator[index.Found]:
            walked, separated = 0, row_format is not None
            for sentences, documents in index.blocks(split):
                rows = walk(sentences, documents, room, self.cross_documents, separated, self.drop_long_sentences)
                yield index.Found(len(documents) - 1, [walked + edges for edges in rows])
                walked += separated * (len(documents) - 1)

        settings, columns = [trees.to_dict(self), room, row_format is not None], {"starts": "<i8", "ends": "<i8"}
        found = index.open_index(request, settings, columns, walk_all)
        if not found.passes[-1]:
            raise UserError(f"every sentence is longer than a row of {length}: raise config.data.length")
        return SentenceRows(found, request, stream, size, row_format)


def walk(
    sentences: np.ndarray,
    documents: np.ndarray,
    room: int,
    cross_documents: bool,
    separated: bool = True,
    drop_long_sentences: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the rows of some documents, each followed by a separator if they are `separated`.

    Args:
      sentences: [s + 1], the first token of each sentence, and the end.
      documents: [d + 1], the first sentence of each document, and the end.
      room: tokens of a row, separators between documents counted.
      cross_documents: whether a row goes on in the next document.
      drop_long_sentences: whether sentences of more than `room` tokens are in no row.

    Returns:
      The first token of each row and the token after its last, two [rows]; separators before it are counted from the
      first document on.
    """
    sizes = np.diff(sentences)
    dropped = (sizes > room).nonzero()[0] if drop_long_sentences else np.zeros(0, np.int64)
    pieces = -(-sizes // room)  # A sentence too long for a row is as many.
    pieces[dropped] = 1
    places = np.concatenate([[0], pieces.cumsum()])
    number = np.arange(places[-1]) - np.repeat(places[:-1], pieces)
    sentences = np.append(np.repeat(sentences[:-1], pieces) + room * number, sentences[-1])
    documents = places[documents]
    begins_document = np.zeros(len(sentences), np.int64)
    begins_document[documents] = separated
    starts = sentences + begins_document.cumsum() - separated
    ends = starts - begins_document  # A separator at a row's end takes no room.
    following = ends.searchsorted(starts[:-1] + room, side="right") - 1
    if not cross_documents:
        following = np.minimum(following, np.repeat(documents[1:], np.diff(documents)))
    dropped = places[dropped]
    ends_row = np.append(dropped, len(following))  # The next one dropped ends a row at the latest.
    following = np.minimum(following, ends_row[dropped.searchsorted(np.arange(len(following)), side="right")])
    following[dropped] = dropped + 1
    rows = index.follow(following)
    edges = starts[np.append(rows, len(following))]
    is_row = ~np.isin(rows, dropped)
    return edges[:-1][is_row], edges[1:][is_row]


class SentenceRows(index.IndexedRows):
    """`[CLS] sentences [SEP]`, with `[SEP]` between documents, in rows of `length` and in one pass.

    Without a format a row is the sentences alone.
    """

    def __init__(
        self,
        found: index.Index,
        request: RowRequest,
        stream: Stream,
        length: int,
        row_format: objectives.RowFormat | None,
    ):
        super().__init__(found, request, stream)
        self._ends = found.columns["ends"]
        self._stream, self._length, self._format = stream, length, row_format
        self._pad = request.objective.special.pad or 0

    @override
    def example(self, item: int, rng: np.random.Generator) -> Example:
        start, stop = self.span(item)
        tokens, begins = self._stream.read(start, stop)
        if self._format is None:
            at, row = 0, formats.stretch(tokens, begins, self._length, separate=False, pad=self._pad)
        else:
            # A separator stands already where the row's last document ends.
            tokens = tokens[:-1] if tokens[-1] == self._format.after[0] else tokens
            at, row = len(self._format.before), self._format.row([tokens], self._length)
        return row | {name: at + self._stream.starts(name, start, stop) for name in self._reads}

    @override
    def rows_within(self, start: int, stop: int) -> list[range]:
        rows = super().rows_within(start, stop)
        return [range(of.start + int(len(of) > 0 and self._ends[of.start] <= start), of.stop) for of in rows]

    @override
    def span(self, item: int) -> tuple[int, int]:
        return int(self._starts[item]), int(self._ends[item])
