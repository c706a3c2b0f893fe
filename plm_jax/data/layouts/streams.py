"""ELMo's contiguous streams: a row of a batch goes on where the same row of the batch before ended.

Each document is framed by `<S>` and `</S>`: of n words it makes n + 1 places. At the k-th place forward reading sees
the word before the k-th (first `<S>`) and predicts the k-th (last `</S>`); backward reading does the same with the
words in reverse, from `</S>` to `<S>`. Both directions go through the documents in the same order, so the state that
they carry is at any time that of the documents before (allenai/bilm-tf, bilm/data.py, where a line is a document).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from typing_extensions import override

from plm_jax import objectives
from plm_jax.common.errors import UserError
from plm_jax.common.special_ids import SpecialIds
from plm_jax.data.layouts.formats import Example
from plm_jax.data.layouts.layout import Form, Layout, RowRequest
from plm_jax.data.layouts.order import RowOrder
from plm_jax.data.layouts.rows import Rows, StridedRows
from plm_jax.data.layouts.stream import Stream


@dataclass(frozen=True)
class Streams(Layout):
    """Each row of a batch goes on where it ended in the batch before, with a state carried along (ELMo).

    Example k depends on the batch size too, and so each change of it begins with a fresh state.
    """

    kind: ClassVar[str] = "streams"
    plural: ClassVar[str] = "streams"
    goes_on: ClassVar[bool] = True

    @override
    def form(self, objective: objectives.Objective) -> Form:
        return "stream"

    @override
    def reads_characters(self, objective: objectives.Objective) -> bool:
        return True

    @override
    def check(
        self, objective: objectives.Objective, special: SpecialIds, length: int, sources: Mapping[str, Any]
    ) -> None:
        super().check(objective, special, length, sources)
        if len(sources) != 1:
            raise UserError("streams read one source: name one in config.data.sources, of several files if need be")
        if None in (special.bos, special.eos):
            raise UserError("streams frame documents: set config.vocabulary.bos and config.vocabulary.eos")

    @override
    def blank(self, length: int, objective: objectives.BoundObjective, num_characters: int = 0) -> Example:
        characters = np.zeros((2, length, num_characters), np.int32)
        return {"characters": characters, "targets": np.zeros((2, length), np.int32)}

    @override
    def open(self, request: RowRequest) -> "StreamRows":
        special = request.objective.special
        if special.bos is None or request.characters is None:
            raise UserError("streams read the characters of words, framed by config.vocabulary.bos and its eos")
        stream = Stream(request.split, request.objective.separator, special.pad)
        return StreamRows(stream, request.length, special.bos, request.characters)

    @override
    def order(self, rows: Rows, window_tokens: int, batch_size: int, seed: int, name: str) -> "StreamOrder":
        assert isinstance(rows, StreamRows)
        return StreamOrder(rows, batch_size)


class StreamRows(StridedRows):
    """The words of a split in rows of `length`, in one pass.

    Attributes:
      length: words of a row.
      num_whole: rows that are not padded; the last may be short.
    """

    def __init__(self, stream: Stream, length: int, bos: int, characters: np.ndarray):
        """`stream` has its `eos`; `characters` [vocab_size, C] are those of each word."""
        super().__init__(stream, length, length)
        self.length, self.pass_tokens = length, stream.num_tokens
        self._bos = bos
        self._characters = characters

    @override
    def windows(self, window_tokens: int) -> list[np.ndarray]:
        return [np.array([0, self.num_rows])]  # One window, since rows are read in the order of the text.

    @override
    def example(self, item: int, rng: np.random.Generator) -> Example:
        """Returns `characters` int32 [2, length, C] and `targets` int32 [2, length], forward and backward.

        Where the row is short, `mask` [length] is 0 at padding and 1 elsewhere.
        """
        start, stop = self.span(item)
        places = np.arange(start, stop)
        begins = self._stream.documents(start, stop)
        document = begins.searchsorted(places, side="right")
        begin, end = begins[document - 1], begins[document]
        word, before = self._words(places, begin)
        # The place that is as far from the document's end.
        turned_word, turned_before = self._words(begin + end - 1 - places, begin)
        inputs, targets = np.zeros((2, 2, self._length), np.int32)
        inputs[:, : len(places)] = before, turned_word
        targets[:, : len(places)] = word, turned_before
        example = {"characters": self._characters[inputs].astype(np.int32), "targets": targets}
        if len(places) < self._length:
            example["mask"] = (np.arange(self._length) < len(places)).astype(np.int32)
        return example

    def _words(self, places: np.ndarray, begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What is at these places, and what is before it; each one's document begins at `begin`."""
        first = max(0, int(places.min()) - 1)
        tokens, _ = self._stream.read(first, int(places.max()) + 1)
        before = np.where(places == begin, self._bos, tokens[np.maximum(places - first - 1, 0)])
        return tokens[places - first], before


class StreamOrder(RowOrder):
    """The order of streams' rows over batches: row r of every batch reads on in its own share of the text.

    Once a row has come to the end of its share it goes on with the next one's, and from the end of the text to its
    begin: there is no end of an epoch.
    """

    def __init__(self, rows: StreamRows, batch_size: int):
        self.rows = rows
        self._num_whole = rows.num_whole
        self._length = rows.length
        self._batch_size = batch_size
        self._share = rows.num_whole // batch_size
        self.num_items = self._share * batch_size

    @override
    def item(self, k: int) -> int:
        batch, row = divmod(k, self._batch_size)
        return (row * self._share + batch) % self._num_whole

    @override
    def places(self, rows: Sequence[int] | np.ndarray, first: int, last: int) -> np.ndarray:
        found, batches = [], np.array([first // self._batch_size, -(-last // self._batch_size)])
        for item in rows:
            if item < self._num_whole:
                starts = (item - np.arange(self._batch_size) * self._share) % self._num_whole
                for row, start in enumerate(starts.tolist()):
                    # Every so many batches a row of the batch comes to the same row of the text.
                    begin = start + -(-(max(0, int(batches[0]) - start)) // self._num_whole) * self._num_whole
                    found.append(np.arange(begin, batches[1], self._num_whole) * self._batch_size + row)
        places = np.concatenate([np.zeros(0, np.int64), *found])
        return np.sort(places[(places >= first) & (places < last)])

    @override
    def shortage(self) -> str:
        return (
            f"has {self.rows.pass_tokens} training words, a batch of streams takes {self._batch_size * self._length}: "
            "lower config.train.batch_size or give more text"
        )

    @override
    def resume(self, k: int, before: Self) -> int:
        """Returns the start of a batch, as many words into the text, rounded up."""
        places = k * before._length
        return -(-places // (self._batch_size * self._length)) * self._batch_size
