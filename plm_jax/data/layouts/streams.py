"""ELMo's contiguous streams: a row of a batch goes on where the same row of the batch before ended.

Each document is framed by `<S>` and `</S>`: of n words it makes n + 1 places. At the k-th place forward reading sees
the word before the k-th (first `<S>`) and predicts the k-th (last `</S>`); backward reading does the same with the
words in reverse, from `</S>` to `<S>`. Both directions go through the documents in the same order, so the state that
they carry is at any time that of the documents before (allenai/bilm-tf, bilm/data.py, where a line is a document).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from plm_jax import objectives
from plm_jax.common.errors import UserError
from plm_jax.data.layouts.layout import Example, Form, Layout, Rows
from plm_jax.data.layouts.stream import Stream

if TYPE_CHECKING:
    from plm_jax import config
    from plm_jax.data import cache


@dataclass(frozen=True)
class Streams(Layout):
    """Each row of a batch goes on where it ended in the batch before, with a state carried along (ELMo).

    Example k depends on the batch size too, and so each change of it begins with a fresh state.
    """

    kind: ClassVar[str] = "streams"
    plural: ClassVar[str] = "streams"
    goes_on: ClassVar[bool] = True

    def gives(self, objective: objectives.Objective) -> Form:
        """Words in both directions."""
        del objective
        return "stream"

    def reads_characters(self, objective: objectives.Objective) -> bool:
        """Words are read by them."""
        del objective
        return True

    def check(self, run: "config.Run", stage: "config.Phase") -> None:
        """One source, and the words around its documents."""
        super().check(run, stage)
        rates = stage.mixture or dict.fromkeys(run.data.sources, 1.0)
        if sum(rate > 0 for rate in rates.values()) != 1:
            raise UserError("streams read one source: name one in config.data.sources, of several files if need be")
        if None in (run.vocabulary.bos, run.vocabulary.eos):
            raise UserError("streams frame documents: set config.vocabulary.bos and config.vocabulary.eos")

    def blank(self, length: int, objective: objectives.BoundObjective, num_characters: int = 0) -> Example:
        """See `Layout.blank`."""
        del objective
        characters = np.zeros((2, length, num_characters), np.int32)
        return {"characters": characters, "targets": np.zeros((2, length), np.int32)}

    def open(
        self,
        source: "cache.CachedSource",
        split: str,
        length: int,
        seed: int,
        objective: objectives.BoundObjective,
        characters: np.ndarray | None = None,
    ) -> "StreamRows":
        """See `Layout.open`."""
        del seed
        special = objective.special
        stream = Stream(source.splits[split], objective.separator, special.pad)
        return StreamRows(stream, length, special.bos, characters)


class StreamRows(Rows):
    """The places of a split in rows of `length`, in one pass.

    Attributes:
      num_whole: rows that are not padded; the last may be short.
    """

    def __init__(self, stream: Stream, length: int, bos: int, characters: np.ndarray):
        """`stream` has its `eos`; `characters` [vocab_size, C] are those of each word."""
        self._stream = stream
        self._length = length
        self._bos = bos
        self._characters = characters
        self.num_rows = -(-stream.num_tokens // length)
        self.num_whole = stream.num_tokens // length
        self.pass_tokens = stream.num_tokens

    def windows(self, window_tokens: int) -> list[np.ndarray]:
        """One, for rows are read in the order of the text."""
        del window_tokens
        return [np.array([0, self.num_rows])]

    def order(self, window_tokens: int, batch_size: int, seed: int, name: str) -> "StreamOrder":
        """The order of the text, in each row of a batch."""
        del window_tokens, seed, name
        return StreamOrder(self, self._length, batch_size)

    def shortage(self, length: int, batch_size: int) -> str:
        """See `Rows.shortage`."""
        return (
            f"has {self._stream.num_tokens} training words, a batch of streams takes {batch_size * length}: "
            "lower config.train.batch_size or give more text"
        )

    def example(self, item: int, rng: np.random.Generator) -> Example:
        """`characters` int32 [2, length, C] and `targets` int32 [2, length], forward and backward; nothing is drawn.

        Where the row is short, `mask` [length] is 0 at padding and 1 elsewhere.
        """
        del rng
        start = item * self._length
        places = np.arange(start, min(start + self._length, self._stream.num_tokens))
        begins = self._stream.documents(start, start + len(places))
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

    def documents(self, item: int, rng: np.random.Generator) -> range:
        """See `Rows.documents`."""
        del rng
        start = item * self._length
        return self._stream.numbers(start, min(start + self._length, self._stream.num_tokens))

    def rows_with(self, document: int) -> list[range]:
        """See `Rows.rows_with`."""
        start, stop = self._stream.stretch(document)
        return [range(start // self._length, (stop - 1) // self._length + 1)]

    def _words(self, places: np.ndarray, begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What is at these places, and what is before it; each one's document begins at `begin`."""
        first = max(0, int(places.min()) - 1)
        tokens, _ = self._stream.read(first, int(places.max()) + 1)
        before = np.where(places == begin, self._bos, tokens[np.maximum(places - first - 1, 0)])
        return tokens[places - first], before


class StreamOrder:
    """The order of streams' rows over batches: row r of every batch reads on in its own share of the text.

    Once a row has come to the end of its share it goes on with the next one's, and from the end of the text to its
    begin: there is no end of an epoch.

    Attributes:
      layout: whose rows they are.
      num_items: rows in as many batches as the text makes.
    """

    def __init__(self, layout: StreamRows, length: int, batch_size: int):
        self.layout = layout
        self._length = length
        self._batch_size = batch_size
        self._share = layout.num_whole // batch_size
        self.num_items = self._share * batch_size

    def item(self, k: int) -> int:
        """The row of the text that comes k-th."""
        batch, row = divmod(k, self._batch_size)
        return (row * self._share + batch) % self.layout.num_whole

    def places(self, rows: Sequence[int] | np.ndarray, first: int, last: int) -> np.ndarray:
        """See `Order.places`."""
        found, batches = [], np.array([first // self._batch_size, -(-last // self._batch_size)])
        for item in rows:
            if item < self.layout.num_whole:
                starts = (item - np.arange(self._batch_size) * self._share) % self.layout.num_whole
                for row, start in enumerate(starts.tolist()):
                    # Every so many batches a row of the batch comes to the same row of the text.
                    begin = (
                        start + -(-(max(0, int(batches[0]) - start)) // self.layout.num_whole) * self.layout.num_whole
                    )
                    found.append(np.arange(begin, batches[1], self.layout.num_whole) * self._batch_size + row)
        places = np.concatenate([np.zeros(0, np.int64), *found])
        return np.sort(places[(places >= first) & (places < last)])

    def resume(self, k: int, before: "StreamOrder") -> int:
        """Where to go on after k rows in the order `before`: a whole number of batches, as many words into the text."""
        places = k * before._length
        return -(-places // (self._batch_size * self._length)) * self._batch_size
