"""Streams of pairs: each row begins with text that continues the previous batch, and ends with a pair of segments.

The rules are those of `data_utils.py` in zihangdai/xlnet (Yang et al. 2019, arXiv:1906.08237). A row of `length` is

    reused text   A [SEP] B [SEP] [CLS]

A row begins every `length // 2` tokens of the text, which is the size of the reused text. A model adds only the reused
text of a row to its memory. The reused text of the next row begins with A, so the model reads A again, now with this
memory.

A begins after the reused text and ends at the end of a random sentence. B follows A, or with probability 0.5 is random
text that begins with a sentence. B is also random if no sentence of A ends before the row is full. If A and B do not
fit into the row, the longer one (B if they are equally long) loses its last token, again and again until they fit. A
separator between documents counts as a sentence. The original code also stores whether B follows A, but never reads
this label, so rows here have no label. Tokens at the end of the text that do not fill a row are not read.

The original code cuts the text into one stream per row of a batch, and draws a random B from the stream of its row.
Here, a row of a batch that reaches the end of its stream continues with the next stream. A random B comes from the same
stretch of `STRETCH_TOKENS` tokens as the start of its row, so that the tokens of a row are close together in the cache.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from plm_jax import objectives
from plm_jax.common.errors import UserError
from plm_jax.common.special_ids import SpecialIds
from plm_jax.data.layouts.formats import Example
from plm_jax.data.layouts.layout import Layout, RowRequest
from plm_jax.data.layouts.rows import Rows, StridedRows
from plm_jax.data.layouts.sentence_pairs import RANDOM_NEXT, STRETCH_TOKENS, truncate
from plm_jax.data.layouts.stream import Stream
from plm_jax.data.layouts.streams import StreamOrder, check_one_source

NUM_SPECIAL = 3
# Number of tokens in which the end of a sentence is searched first.
_NEAR = 256


@dataclass(frozen=True)
class PairStreams(Layout):
    """Rows for XLNet: the first half continues the previous batch, and the second half is a pair of segments.

    The order of the rows depends on the batch size, so training begins with a new memory after each change of the batch
    size. Token types are 0 for the reused text, A and the separator after A; 1 for B and the separator after B; and 2
    for `cls`.

    Attributes:
      bi_data: whether the rows in the second half of a batch read the text backward, from its end to its start. If
        True, all rows have `positions`, which count down in the backward rows, and the batch size must be even.
    """

    kind: ClassVar[str] = "pair_streams"
    plural: ClassVar[str] = "streams of pairs"
    num_texts: ClassVar[int] = 2
    num_token_types: ClassVar[int] = 3
    least_length: ClassVar[int] = 9
    continues_rows: ClassVar[bool] = True
    bi_data: bool = False

    @property
    @override
    def is_full(self) -> bool:
        return True

    @property
    @override
    def has_positions(self) -> bool:
        return self.bi_data

    @override
    def check(
        self, objective: objectives.Objective, special: SpecialIds, length: int, sources: Mapping[str, Any]
    ) -> None:
        super().check(objective, special, length, sources)
        check_one_source(sources)

    @override
    def blank(self, length: int, objective: objectives.BoundObjective, num_characters: int = 0) -> Example:
        reuse, room = split_length(length)
        texts = [np.zeros(size, np.int32) for size in (reuse, room - 1, 1)]
        return make_row(texts, objective.special, self.bi_data)

    @override
    def open(self, request: RowRequest) -> "PairStreamRows":
        stream = Stream(request.split, request.objective.separator, request.objective.special.pad)
        return PairStreamRows(stream, request, self.bi_data)

    @override
    def order(self, rows: Rows, window_tokens: int, batch_size: int, seed: int, name: str) -> StreamOrder:
        assert isinstance(rows, PairStreamRows)
        if self.bi_data and batch_size % 2:
            raise UserError(
                f"config.train.batch_size is {batch_size}, but with config.data.layout.bi_data half of a batch is read "
                "backward: set an even number"
            )
        return StreamOrder(rows, batch_size)


def split_length(length: int) -> tuple[int, int]:
    """Returns two numbers of tokens of a row of `length`: of the reused text, and of A and B together."""
    reuse = length // 2
    return reuse, length - reuse - NUM_SPECIAL


def make_row(
    texts: Iterable[np.ndarray], special: objectives.Special, has_positions: bool, is_backward: bool = False
) -> Example:
    """Makes a row of three texts: the reused half, A and B.

    Returns:
      A dict of arrays, int32 [length]: `tokens`, `mask` and `token_types`, and also `positions` if `has_positions`.
      Positions count down if `is_backward`.

    Raises:
      UserError: the vocabulary lacks sep or cls.
    """
    reused, first, second = texts
    sep, cls = ([special.required(name)] for name in ("sep", "cls"))
    tokens = np.concatenate([reused, first, sep, second, sep, cls]).astype(np.int32)
    sizes = len(reused) + len(first) + 1, len(second) + 1, 1
    row = {
        "tokens": tokens,
        "mask": np.ones(len(tokens), np.int32),
        "token_types": np.repeat(np.arange(3, dtype=np.int32), sizes),
    }
    if has_positions:
        positions = np.arange(len(tokens), dtype=np.int32)
        row["positions"] = positions[::-1].copy() if is_backward else positions
    return row


class PairStreamRows(StridedRows):
    """Rows of a stream of pairs; with `bi_data`, the second pass reads the text backward.

    Rows include the starts of words if the objective reads them and the split has them.
    """

    def __init__(self, stream: Stream, request: RowRequest, bi_data: bool):
        self._reuse, self._room = split_length(request.length)
        super().__init__(stream, request.length, self._reuse)
        self.num_rows, self._bi_data = self.num_whole, bi_data
        self._special = request.objective.special
        self._has_words = "word_starts" in request.objective.reads and stream.has("word_starts")
        has_separator = request.objective.separator is not None
        self._texts = [_DirectedText(stream, has_separator, is_backward) for is_backward in (False, True)]

    @property
    @override
    def passes(self) -> list[int]:
        return [number * self.num_rows for number in range(2 + self._bi_data)]

    @override
    def windows(self, window_tokens: int) -> list[np.ndarray]:
        passes = self.passes  # One window each, since rows are read in the order of the text.
        return [np.array(passes[number : number + 2]) for number in range(len(passes) - 1)]

    @override
    def example(self, item: int, rng: np.random.Generator) -> Example:
        text, spans = self._draw(item, rng)
        row = make_row([text.tokens(*span) for span in spans], self._special, self._bi_data, text.is_backward)
        if self._has_words:
            (_, reuse_end), (_, first_end), _ = spans
            begins = 0, self._reuse, self._reuse + first_end - reuse_end + 1
            starts = [begin + text.word_starts(*span) for begin, span in zip(begins, spans, strict=True)]
            row["word_starts"] = np.concatenate(starts)
        return row

    @override
    def documents(self, item: int, rng: np.random.Generator) -> list[int]:
        text, spans = self._draw(item, rng)
        return [number for span in spans for number in self.text.numbers(*text.in_stream(*span))]

    @override
    def rows_with(self, document: int) -> list[range]:
        """Returns, for each pass, a range that contains every row that may have text of a document."""
        rows = []
        for first, text in zip(self.passes[:-1], self._texts, strict=False):
            start, stop = text.in_stream(*self.text.span(document))
            (near,) = self.rows_within(start, stop)
            begin, end = self._stretch(start)[0], self._stretch(stop - 1)[1]
            low, high = min(near.start, -(-begin // self.stride)), max(near.stop, -(-end // self.stride))
            rows.append(range(first + low, first + min(high, self.num_rows)))
        return rows

    def _draw(self, item: int, rng: np.random.Generator) -> tuple["_DirectedText", list[tuple[int, int]]]:
        """Returns the text that a row reads, and the spans [start, stop) of the reused half, A and B in this text."""
        number, item = divmod(item, self.num_rows)
        text, start = self._texts[number], item * self.stride
        middle = start + self._reuse
        pair = draw_pair(text, middle, self._room, self._stretch(start), rng)
        return text, [(start, middle), *pair]

    def _stretch(self, token: int) -> tuple[int, int]:
        """Returns the stretch [start, stop) of the text from which a row that begins at `token` draws a random B."""
        last = max(0, self.text.num_tokens // STRETCH_TOKENS - 1)
        number = min(token // STRETCH_TOKENS, last)
        stop = self.text.num_tokens if number == last else (number + 1) * STRETCH_TOKENS
        return number * STRETCH_TOKENS, stop


class _DirectedText:
    """Stream of tokens that is read forward or backward; positions count in reading order."""

    def __init__(self, stream: Stream, has_separator: bool, is_backward: bool):
        self._stream, self._has_separator, self.is_backward = stream, has_separator, is_backward
        self.num_tokens = stream.num_tokens

    def in_stream(self, start: int, stop: int) -> tuple[int, int]:
        """Converts a span [start, stop) from reading order to the order of the stream, or vice versa."""
        return (self.num_tokens - stop, self.num_tokens - start) if self.is_backward else (start, stop)

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Returns tokens [start, stop)."""
        tokens, _ = self._stream.read(*self.in_stream(start, stop))
        return tokens[::-1] if self.is_backward else tokens

    def word_starts(self, start: int, stop: int) -> np.ndarray:
        """Returns the sorted positions, counted from `start`, of the first tokens of words in [start, stop).

        The first token of a word is the first one in the original text. If the text is read backward, it is the token
        of the word that is read last.
        """
        starts = self._stream.starts("word_starts", *self.in_stream(start, stop))
        return (stop - start - 1 - starts)[::-1] if self.is_backward else starts

    def edges(self, start: int, stop: int) -> np.ndarray:
        """Returns the edges in [start, stop): the sorted positions at which a sentence begins or the text ends."""
        if self.is_backward:
            return (self.num_tokens - self._edges(self.num_tokens - stop + 1, self.num_tokens - start + 1))[::-1]
        return self._edges(start, stop)

    def _edges(self, start: int, stop: int) -> np.ndarray:
        start, end = max(0, start), min(stop, self.num_tokens)
        edges = [np.array([self.num_tokens])] if stop > end else []
        if start < end:
            edges.append(start + self._stream.starts("sentence_starts", start, end))
            if self._has_separator:
                separators = self._stream.documents(start, end)[1:] - 1
                edges.append(separators[separators < end])
        return np.unique(np.concatenate([np.zeros(0, np.int64), *edges]))

    def edge_before(self, position: int, first: int) -> int:
        """Returns the last edge in [first, position], or `first` if there is no edge in this range."""
        size = _NEAR
        while True:
            start = max(first, position + 1 - size)
            if len(edges := self.edges(start, position + 1)) or start == first:
                return int(edges[-1]) if len(edges) else first
            size *= 8

    def edge_from(self, first: int, last: int) -> int:
        """Returns the first edge in [first, last], or `last` if there is no edge in this range."""
        edges = self.edges(first, last + 1)
        return int(edges[0]) if len(edges) else last


def draw_pair(
    text: _DirectedText, start: int, room: int, stretch: tuple[int, int], rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Draws the segments A and B of a row, which have `room` tokens together.

    Args:
      start: first token of A; more than `room` tokens of the text follow it.
      stretch: part [start, stop) of the text from which a random B comes.
      rng: generator. Its next three numbers decide whether B is random, where A ends, and which token a random B
        contains.

    Returns:
      The spans [start, stop) of A and B.
    """
    # Lengths above `room` need not be known, since they are truncated in the same way.
    is_random, cut, position = rng.random(3).tolist()
    cuts = text.edges(start + 1, start + room)
    end = start + room if not len(cuts) else int(cuts[int(cut * len(cuts))])
    num_first = end - start
    if len(cuts) and is_random >= RANDOM_NEXT:
        start_second, num_second = end, text.edge_from(start + room, end + room) - end
    else:
        first, last = stretch[0], stretch[1] - 1
        least = max(1, room - num_first)
        token = first + int(position * (last - first - least + 1))
        start_second = text.edge_before(token, first)
        num_second = text.edge_from(token + least, max(token + least, min(start_second + room, last))) - start_second
    num_first, num_second = truncate(num_first, num_second, room)
    return [(start, start + num_first), (start_second, start_second + num_second)]
