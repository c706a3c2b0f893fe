"""The tokens of a split as one stream: its documents one after another, each between the marks around it."""

from collections.abc import Sequence

import numpy as np

from plm_jax.data import cache
from plm_jax.data.layouts import formats

# Documents that are looked at first for where a row ends; few rows have more.
_FEW = 8


class Stream:
    """The tokens of a split with `begin` before each document and `eos` after it.

    Attributes:
      num_tokens: the stream's length.
    """

    def __init__(self, split: cache.DocumentTable, eos: int | None, pad: int | None, begin: Sequence[int] = ()):
        self._split = split
        # What stands around the place where one document ends and the next begins, and where, counted from there.
        self._marks = [*enumerate(begin), *([] if eos is None else [(-1, eos)])]
        self._begin, self._extra = len(begin), len(self._marks)
        self._pad = 0 if pad is None else pad
        self.num_tokens = split.num_tokens + self._extra * split.num_documents
        self._search = split.search(self._extra)

    def _starts(self, documents: slice) -> np.ndarray:
        """Where these documents begin, and, as the last one, where the stream ends."""
        numbers = np.arange(*documents.indices(self._split.num_documents + 1))
        return self._split.documents[documents] + self._extra * numbers

    def _starts_until(self, document: int, stop: int) -> np.ndarray:
        """Where this document and those after it begin, on to the first at or beyond `stop`, and perhaps some more."""
        count = _FEW
        while len(found := self._starts(slice(document, document + count))) == count and found[-1] < stop:
            count *= _FEW
        return found

    def _first_document(self, token: int) -> int:
        """The last document that starts at or before `token`."""
        return min(self._search.count(token), self._split.num_documents) - 1

    def _text(self, document: int, start: int, token: int) -> int:
        """How many tokens of text precede `token`, which is of the document that begins at `start` in the stream."""
        return start - self._extra * document + max(0, token - start - self._begin)

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [start, stop) as int32, and where in them a document begins (the one running at `start` left out)."""
        first, size = self._first_document(start), stop - start
        starts = self._starts_until(first, stop)
        at = self._text(first, int(starts[0]), start)
        starts -= start
        if starts[0] <= -self._begin and starts[1] > size:
            return self._split.tokens(at, at + size).astype(np.int32), starts[:0]
        tokens, is_text = np.empty(size, np.int32), np.ones(size, np.bool_)
        for offset, mark in self._marks:
            places = starts + offset
            places = places[places.searchsorted(0) : places.searchsorted(size)]
            tokens[places], is_text[places] = mark, False
        tokens[is_text] = self._split.tokens(at, at + int(np.count_nonzero(is_text)))
        return tokens, starts[1 : starts.searchsorted(size)]

    def numbers(self, start: int, stop: int) -> range:
        """The documents of whose text tokens [start, stop) are some."""
        first, last = self._first_document(start), self._first_document(stop - 1) + 1
        _, text_end = self._text_of(first)
        text_begin, _ = self._text_of(last - 1)
        return range(first + (start >= text_end), last - (stop <= text_begin))

    def _text_of(self, document: int) -> tuple[int, int]:
        """The tokens [start, stop) of a document without its marks."""
        start, stop = self.span(document)
        return start + self._begin, stop - (self._extra - self._begin)

    def span(self, document: int) -> tuple[int, int]:
        """Returns the tokens [start, stop) of a document and the special ids around it."""
        start, stop = self._starts(slice(document, document + 2)).tolist()
        return start, stop

    def has(self, name: str) -> bool:
        """Whether its split has a column."""
        return self._split.has(name)

    def starts(self, name: str, start: int, stop: int) -> np.ndarray:
        """Where in tokens [start, stop) the parts begin, sentences or words, that a column of the split tells."""
        parts, documents = self._split.column(name), self._split.documents
        first, last = self._first_document(start), self._first_document(stop - 1)
        edges = [
            self._text(document, int(documents[document]) + self._extra * document, token)
            for document, token in ((first, start), (last, stop))
        ]
        begin, end = parts.searchsorted(edges)
        found = parts[begin:end]
        before = first + documents[first : last + 2].searchsorted(found, side="right") - 1
        starts = found + self._extra * before + self._begin - start
        return starts[starts < stop - start]

    def documents(self, start: int, stop: int) -> np.ndarray:
        """Where each document that tokens [start, stop) are of begins, and, as the last one, where the last ends."""
        first = self._first_document(start)
        begins = self._starts_until(first, stop)
        return begins[: begins.searchsorted(stop) + 1]

    def example(self, start: int, length: int, separate: bool) -> dict[str, np.ndarray]:
        """The row of `length` tokens from `start` on, see `formats.stretch`."""
        tokens, begins = self.read(start, start + min(length, self.num_tokens - start))
        return formats.stretch(tokens, begins, length, separate, self._pad)
