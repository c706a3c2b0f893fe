"""Stream of the tokens of a split: the documents one after another, with optional special ids around each document."""

from collections.abc import Sequence

import numpy as np

from plm_jax.data import cache
from plm_jax.data.layouts import formats

# Number of documents that are read first to find the end of a row; few rows have more.
_FEW = 8


class Stream:
    """The tokens of a split, with the ids `begin` before each document and, unless it is None, `eos` after it.

    Attributes:
      num_tokens: number of tokens of the stream.
    """

    def __init__(self, split: cache.DocumentTable, eos: int | None, pad: int | None, begin: Sequence[int] = ()):
        self._split = split
        # Offsets of special ids from the start of a document, and their ids.
        self._special = [*enumerate(begin), *([] if eos is None else [(-1, eos)])]
        self._begin, self._extra = len(begin), len(self._special)
        self._pad = 0 if pad is None else pad
        self.num_tokens = split.num_tokens + self._extra * split.num_documents
        self._search = split.search(self._extra)

    def _starts(self, documents: slice) -> np.ndarray:
        """Returns the starts of documents in the stream. Document `num_documents` starts at the end of the stream."""
        numbers = np.arange(*documents.indices(self._split.num_documents + 1))
        return self._split.documents[documents] + self._extra * numbers

    def _starts_until(self, document: int, stop: int) -> np.ndarray:
        """Returns the starts of `document` and later documents, at least up to the first one at or after `stop`."""
        count = _FEW
        while len(starts := self._starts(slice(document, document + count))) == count and starts[-1] < stop:
            count *= _FEW
        return starts

    def _first_document(self, token: int) -> int:
        """Returns the index of the last document that starts at or before `token`."""
        return min(self._search.count(token), self._split.num_documents) - 1

    def _text(self, document: int, start: int, token: int) -> int:
        """Counts the tokens other than special ids that precede a token of the stream.

        Args:
          document: document that contains the token.
          start: first token of this document in the stream.
          token: position in the stream.
        """
        return start - self._extra * document + max(0, token - start - self._begin)

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Reads tokens [start, stop).

        Returns:
          A pair: the tokens, int32 [stop - start]; and the sorted positions, counted from `start`, at which documents
          begin, except for the document of the first token.
        """
        first, size = self._first_document(start), stop - start
        starts = self._starts_until(first, stop)
        text_start = self._text(first, int(starts[0]), start)
        starts -= start
        if starts[0] <= -self._begin and starts[1] > size:
            return self._split.tokens(text_start, text_start + size).astype(np.int32), starts[:0]
        tokens, is_text = np.empty(size, np.int32), np.ones(size, np.bool_)
        for offset, special_id in self._special:
            positions = starts + offset
            positions = positions[positions.searchsorted(0) : positions.searchsorted(size)]
            tokens[positions], is_text[positions] = special_id, False
        tokens[is_text] = self._split.tokens(text_start, text_start + int(np.count_nonzero(is_text)))
        return tokens, starts[1 : starts.searchsorted(size)]

    def numbers(self, start: int, stop: int) -> range:
        """Returns the range of the documents that have text among the tokens [start, stop)."""
        first, last = self._first_document(start), self._first_document(stop - 1) + 1
        _, text_end = self._text_of(first)
        text_begin, _ = self._text_of(last - 1)
        return range(first + (start >= text_end), last - (stop <= text_begin))

    def _text_of(self, document: int) -> tuple[int, int]:
        """Returns the span [start, stop) of a document in the stream without its special ids."""
        start, stop = self.span(document)
        return start + self._begin, stop - (self._extra - self._begin)

    def span(self, document: int) -> tuple[int, int]:
        """Returns the span [start, stop) of a document in the stream, including its special ids."""
        start, stop = self._starts(slice(document, document + 2)).tolist()
        return start, stop

    def has(self, name: str) -> bool:
        """Returns whether the split has a column `name`."""
        return self._split.has(name)

    def starts(self, name: str, start: int, stop: int) -> np.ndarray:
        """Returns the starts of sentences or words among the tokens [start, stop), counted from `start`.

        Args:
          name: column of the split that has the starts, such as `word_starts`.
        """
        parts, documents = self._split.column(name), self._split.documents
        first, last = self._first_document(start), self._first_document(stop - 1)
        edges = [
            self._text(document, int(documents[document]) + self._extra * document, token)
            for document, token in ((first, start), (last, stop))
        ]
        begin, end = parts.searchsorted(edges)
        tokens = parts[begin:end]
        before = first + documents[first : last + 2].searchsorted(tokens, side="right") - 1
        starts = tokens + self._extra * before + self._begin - start
        return starts[starts < stop - start]

    def documents(self, start: int, stop: int) -> np.ndarray:
        """Returns the starts of the documents that overlap tokens [start, stop), and the end of the last of them."""
        first = self._first_document(start)
        begins = self._starts_until(first, stop)
        return begins[: begins.searchsorted(stop) + 1]

    def example(self, start: int, length: int, separate: bool) -> dict[str, np.ndarray]:
        """Returns the row of `length` tokens that begins at token `start`, as `formats.make_row` makes it.

        The row is padded if fewer than `length` tokens remain.
        """
        tokens, begins = self.read(start, start + min(length, self.num_tokens - start))
        return formats.make_row(tokens, begins, length, separate, self._pad)
