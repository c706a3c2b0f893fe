"""Rows of full sentences, as in RoBERTa's FULL-SENTENCES and DOC-SENTENCES (Liu et al. 2019, arXiv:1907.11692).

As in fairseq's `TokenBlockDataset` (`complete` and `complete_doc`), a row ends before the first sentence that does not
fit, so the start of a row depends on the previous row. BART's rows are the same (Lewis et al. 2020, arXiv:1910.13461),
with two exceptions: they have no separator between documents, and the objective adds the special tokens around a row.

The index of a split (`index.py`) has the columns `starts` and `ends`: a row has the tokens [start, end) of the stream
of documents. If rows have separators, each document of the stream is followed by a separator. Documents are indexed in
blocks of about 262,144 sentences, and a row always ends at the end of a block.
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
    """Rows of as many full sentences as fit, in order, between `cls` and `sep` (or `bos` and `eos`).

    These are the rows of RoBERTa's formats without pairs (Liu et al. 2019 §4.2), of BART and of SpanBERT. The separator
    `sep` (RoBERTa's `</s>`) is placed between documents and at the end of a row, never between sentences of one
    document.

    Attributes:
      cross_documents: whether a row continues with the next document (FULL-SENTENCES). The documents are separated by
        `sep`, except in rows for denoising. If False, a row ends with its document and is padded (DOC-SENTENCES;
        fairseq's default for BART). For DOC-SENTENCES, RoBERTa adds rows to a batch until it has about as many tokens
        as a batch of FULL-SENTENCES. Here, a batch always has `train.batch_size` rows, and a run reports the number of
        full rows with the same number of tokens.
      drop_long_sentences: whether sentences that are longer than a row are dropped instead of split into several rows.
        The current row ends before a dropped sentence, as in SpanBERT's `BlockDataset`. `BlockDataset` also drops the
        current row if the dropped sentence is the last sentence of its document.
    """

    kind: ClassVar[str] = "full_sentences"
    plural: ClassVar[str] = "full sentences"
    num_texts: ClassVar[int] = 1
    least_length: ClassVar[int] = 3
    cross_documents: bool = True
    drop_long_sentences: bool = False

    @override
    def form(self, objective: objectives.Objective) -> Form:
        return "text" if objective.frames else "row"  # Objectives that frame a text add special tokens themselves.

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

        def walk_all(number: int) -> Iterator[index.RowBlock]:
            walked, separated = 0, row_format is not None
            for sentences, documents in index.blocks(split):
                rows = walk(sentences, documents, room, self.cross_documents, separated, self.drop_long_sentences)
                yield index.RowBlock(len(documents) - 1, [walked + edges for edges in rows])
                walked += separated * (len(documents) - 1)

        settings, columns = [trees.to_dict(self), room, row_format is not None], {"starts": "<i8", "ends": "<i8"}
        rows = index.open_index(request, settings, columns, walk_all)
        if not rows.passes[-1]:
            raise UserError(f"every sentence is longer than a row of {length}: raise config.data.length")
        return SentenceRows(rows, request, stream, size, row_format)


def walk(
    sentences: np.ndarray,
    documents: np.ndarray,
    room: int,
    cross_documents: bool,
    separated: bool = True,
    drop_long_sentences: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the rows of some documents.

    Args:
      sentences: [s + 1], position of the first token of each sentence, followed by the end of the last sentence.
      documents: [d + 1], index of the first sentence of each document, followed by the number of sentences.
      room: maximum number of tokens of a row, including separators between documents.
      cross_documents: whether a row continues with the next document.
      separated: whether a separator follows each document.
      drop_long_sentences: whether sentences of more than `room` tokens are dropped.

    Returns:
      Two arrays [rows]: the first token and the end of each row. They are positions in a stream. If `separated`, a
      separator follows each of these documents in the stream. Earlier documents have no separators in it.
    """
    sizes = np.diff(sentences)
    dropped = (sizes > room).nonzero()[0] if drop_long_sentences else np.zeros(0, np.int64)
    pieces = -(-sizes // room)  # A sentence that is too long is cut into several rows.
    pieces[dropped] = 1
    first_pieces = np.concatenate([[0], pieces.cumsum()])
    number = np.arange(first_pieces[-1]) - np.repeat(first_pieces[:-1], pieces)
    sentences = np.append(np.repeat(sentences[:-1], pieces) + room * number, sentences[-1])
    documents = first_pieces[documents]
    begins_document = np.zeros(len(sentences), np.int64)
    begins_document[documents] = separated
    starts = sentences + begins_document.cumsum() - separated
    ends = starts - begins_document  # A separator at the end of a row does not count.
    following = ends.searchsorted(starts[:-1] + room, side="right") - 1
    if not cross_documents:
        following = np.minimum(following, np.repeat(documents[1:], np.diff(documents)))
    dropped = first_pieces[dropped]
    ends_row = np.append(dropped, len(following))  # A row ends at the next dropped sentence at the latest.
    following = np.minimum(following, ends_row[dropped.searchsorted(np.arange(len(following)), side="right")])
    following[dropped] = dropped + 1
    rows = index.follow(following)
    edges = starts[np.append(rows, len(following))]
    is_row = ~np.isin(rows, dropped)
    return edges[:-1][is_row], edges[1:][is_row]


class SentenceRows(index.IndexedRows):
    """Rows `[CLS] sentences [SEP]` of `length` tokens, with `[SEP]` between documents; every epoch has the same rows.

    If `row_format` is None, rows have no special tokens.
    """

    def __init__(
        self,
        rows: index.Index,
        request: RowRequest,
        stream: Stream,
        length: int,
        row_format: objectives.RowFormat | None,
    ):
        super().__init__(rows, request, stream)
        self._ends = rows.columns["ends"]
        self._stream, self._length, self._format = stream, length, row_format
        self._pad = request.objective.special.pad or 0

    @override
    def example(self, item: int, rng: np.random.Generator) -> Example:
        start, stop = self.span(item)
        tokens, begins = self._stream.read(start, stop)
        if self._format is None:
            offset, row = 0, formats.make_row(tokens, begins, self._length, separate=False, pad=self._pad)
        else:
            # The last token is already a separator if the row ends with a document.
            tokens = tokens[:-1] if tokens[-1] == self._format.after[0] else tokens
            offset, row = len(self._format.before), self._format.row([tokens], self._length)
        return row | {name: offset + self._stream.starts(name, start, stop) for name in self._reads}

    @override
    def max_sizes(self, first: int, stop: int) -> np.ndarray:
        room = self._length if self._format is None else self._format.room(self._length)
        return self._ends[first:stop] - self._starts[first:stop] + (self._length - room)

    @override
    def rows_within(self, start: int, stop: int) -> list[range]:
        rows = super().rows_within(start, stop)
        return [range(run.start + int(len(run) > 0 and self._ends[run.start] <= start), run.stop) for run in rows]

    @override
    def span(self, item: int) -> tuple[int, int]:
        return int(self._starts[item]), int(self._ends[item])
