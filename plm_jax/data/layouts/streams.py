"""ELMo's contiguous streams: a row of a batch begins where the same row of the previous batch ended.

Each document is framed by `<S>` and `</S>`, so n words make n + 1 positions. At position k, counted from 0, the forward
direction reads word k - 1 (`<S>` at position 0) and predicts word k (`</S>` at position n). The backward direction does
the same with the words in reverse, from `</S>` to `<S>`. Both directions read the documents in the same order, so their
recurrent states always come from the same preceding documents (allenai/bilm-tf, bilm/data.py, where a line is a
document).
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
    """Rows for ELMo: row r of a batch continues the text and the recurrent state of row r of the previous batch.

    The order of the rows depends on the batch size, so training begins with a new state after each change of the batch
    size.
    """

    kind: ClassVar[str] = "streams"
    plural: ClassVar[str] = "streams"
    continues_rows: ClassVar[bool] = True

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
        check_one_source(sources)
        if None in (special.bos, special.eos):
            raise UserError("streams need special ids: set config.vocabulary.bos and config.vocabulary.eos")

    @override
    def blank(self, length: int, objective: objectives.BoundObjective, num_characters: int = 0) -> Example:
        characters = np.zeros((2, length, num_characters), np.int32)
        return {"characters": characters, "targets": np.zeros((2, length), np.int32)}

    @override
    def open(self, request: RowRequest) -> "StreamRows":
        special = request.objective.special
        if special.bos is None or request.characters is None:
            raise UserError("streams need the characters of words and config.vocabulary.bos and eos: set them")
        stream = Stream(request.split, request.objective.separator, special.pad)
        return StreamRows(stream, request.length, special.bos, request.characters)

    @override
    def order(self, rows: Rows, window_tokens: int, batch_size: int, seed: int, name: str) -> "StreamOrder":
        assert isinstance(rows, StreamRows)
        return StreamOrder(rows, batch_size)


def check_one_source(sources: Mapping[str, Any]) -> None:
    """Rejects several sources, whose rows could not continue each other."""
    if len(sources) != 1:
        raise UserError("streams read one source: set one in config.data.sources, with several files if necessary")


class StreamRows(StridedRows):
    """The words of a split in rows of `length`; there is a single pass over the split."""

    def __init__(self, stream: Stream, length: int, bos: int, characters: np.ndarray):
        """Opens the rows.

        Args:
          stream: stream with an `eos` after each document.
          length: number of words of a row.
          bos: id that is read before the first word of each document.
          characters: [vocab_size, C], characters of each word.
        """
        super().__init__(stream, length, length)
        self.pass_tokens = stream.num_tokens
        self._bos = bos
        self._characters = characters

    @override
    def windows(self, window_tokens: int) -> list[np.ndarray]:
        return [np.array([0, self.num_rows])]  # One window, since rows are read in the order of the text.

    @override
    def example(self, item: int, rng: np.random.Generator) -> Example:
        """Returns `characters` int32 [2, length, C] and `targets` int32 [2, length]; forward first, then backward.

        If the row is padded, `mask` [length] is 0 at padding and 1 elsewhere.
        """
        start, stop = self.span(item)
        positions = np.arange(start, stop)
        begins = self._stream.documents(start, stop)
        document = begins.searchsorted(positions, side="right")
        begin, end = begins[document - 1], begins[document]
        word, before = self._words(positions, begin)
        # The backward direction reads the position at the same distance from the end of the document.
        reverse_word, reverse_before = self._words(begin + end - 1 - positions, begin)
        inputs, targets = np.zeros((2, 2, self.length), np.int32)
        inputs[:, : len(positions)] = before, reverse_word
        targets[:, : len(positions)] = word, reverse_before
        example = {"characters": self._characters[inputs].astype(np.int32), "targets": targets}
        if len(positions) < self.length:
            example["mask"] = (np.arange(self.length) < len(positions)).astype(np.int32)
        return example

    def _words(self, positions: np.ndarray, begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the words at these positions and the words before them.

        Args:
          positions: positions in the stream.
          begin: for each position, the start of its document. The word before this start is bos.
        """
        first = max(0, int(positions.min()) - 1)
        tokens, _ = self._stream.read(first, int(positions.max()) + 1)
        before = np.where(positions == begin, self._bos, tokens[np.maximum(positions - first - 1, 0)])
        return tokens[positions - first], before


class StreamOrder(RowOrder):
    """Order of rows of streams: row r of each batch continues row r of the previous batch.

    If there are several passes, the rows of a batch are divided evenly among them: the first rows read the first pass,
    and so on. The text of a pass is cut into shares, one for each row of the batch that reads the pass. After the end
    of its share, a row of the batch continues with the next share; after the end of the text, it continues with the
    beginning of the text.
    """

    rows: StridedRows

    def __init__(self, rows: StridedRows, batch_size: int):
        self.rows = rows
        self._num_passes = len(rows.passes) - 1
        self._num_whole = rows.num_whole
        self._batch_size = batch_size
        self._num_shares = batch_size // self._num_passes
        self._share = rows.num_whole // self._num_shares
        self.num_items = self._share * batch_size

    @override
    def item(self, k: int) -> int:
        batch, row = divmod(k, self._batch_size)
        number, share = divmod(row, self._num_shares)
        return number * self._num_whole + (share * self._share + batch) % self._num_whole

    @override
    def positions(self, rows: Sequence[int] | np.ndarray, first: int, last: int) -> np.ndarray:
        parts, batches = [], np.array([first // self._batch_size, -(-last // self._batch_size)])
        for item in rows:
            number, item_of_pass = divmod(item, self._num_whole)
            if number < self._num_passes:
                starts = (item_of_pass - np.arange(self._num_shares) * self._share) % self._num_whole
                for row, start in enumerate(starts.tolist(), number * self._num_shares):
                    # A row of the batch reads the same row of the text again after `_num_whole` batches.
                    begin = start + -(-(max(0, int(batches[0]) - start)) // self._num_whole) * self._num_whole
                    parts.append(np.arange(begin, batches[1], self._num_whole) * self._batch_size + row)
        positions = np.concatenate([np.zeros(0, np.int64), *parts])
        return np.sort(positions[(positions >= first) & (positions < last)])

    @override
    def shortage(self) -> str:
        needed = (self._num_shares - 1) * self.rows.stride + self.rows.length
        return (
            f"has {self.rows.text.num_tokens} training tokens, but a batch of streams needs {needed}: "
            "lower config.train.batch_size or config.data.length, or add more text"
        )

    @override
    def resume(self, k: int, before: Self) -> int:
        """Returns the position of this order that corresponds to position k of the order `before`.

        The result is the start of the first batch before which this order reads at least as many tokens as `before`
        reads before position k.
        """
        num_tokens = k * before.rows.stride
        return -(-num_tokens // (self._batch_size * self.rows.stride)) * self._batch_size
