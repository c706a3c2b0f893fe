"""ELMo's contiguous streams: a row of a batch goes on where the same row of the batch before ended.

Each document is framed by `<S>` and `</S>`: of n words it makes n + 1 places. At the k-th place forward reading sees
the word before the k-th (first `<S>`) and predicts the k-th (last `</S>`); backward reading does the same with the
words in reverse, from `</S>` to `<S>`. Both directions go through the documents in the same order, so the state that
they carry is at any time that of the documents before (allenai/bilm-tf, bilm/data.py, where a line is a document).
"""

import os
from typing import Any

import numpy as np

from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data import layouts
from plm_jax.data.vocabularies import words


class Streams:
    """The places of a split in rows of `length`, numbered in the order of the text: a layout of one pass.

    Attributes:
      num_rows: rows that hold all places; the last may be short and is then padded.
      num_whole: rows that are not padded.
    """

    def __init__(self, stream: layouts.Stream, length: int, bos: int, characters: np.ndarray):
        """`stream` has its `eos`; `characters` [vocab_size, C] are those of each word."""
        self._stream = stream
        self._length = length
        self._bos = bos
        self._characters = characters
        self.num_rows = -(-stream.num_tokens // length)
        self.num_whole = stream.num_tokens // length

    def example(self, item: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
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

    def _words(self, places: np.ndarray, begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What is at these places, and what is before it; each one's document begins at `begin`."""
        first = max(0, int(places.min()) - 1)
        tokens, _ = self._stream.read(first, int(places.max()) + 1)
        before = np.where(places == begin, self._bos, tokens[np.maximum(places - first - 1, 0)])
        return tokens[places - first], before


class RowOrder:
    """The order of streams' rows over batches: row r of every batch reads on in its own share of the text.

    Once a row has come to the end of its share it goes on with the next one's, and from the end of the text to its
    begin: there is no end of an epoch.

    Attributes:
      layout: whose rows they are.
      num_items: rows in as many batches as the text makes.
    """

    def __init__(self, layout: Streams, length: int, batch_size: int):
        self.layout = layout
        self._length = length
        self._batch_size = batch_size
        self._share = layout.num_whole // batch_size
        self.num_items = self._share * batch_size

    def item(self, k: int) -> int:
        """The row of the text that comes k-th."""
        batch, row = divmod(k, self._batch_size)
        return (row * self._share + batch) % self.layout.num_whole

    def resume(self, k: int, before: "RowOrder") -> int:
        """Where to go on after k rows in the order `before`: a whole number of batches, as many words into the text."""
        places = k * before._length
        return -(-places // (self._batch_size * self._length)) * self._batch_size


def spelling(cache_dir: str, vocabulary: dict[str, Any], length: int) -> np.ndarray:
    """The characters uint16 [vocab_size, length] of a cache's words, from the copy of their file beside it.

    Args:
      vocabulary: what the manifest says of it.

    Raises:
      UserError: it is no vocabulary of words, or its file is missing or has changed.
    """
    if vocabulary["kind"] != "words":
        raise UserError(f"streams read whole words: set config.vocabulary.spec to words:FILE, not {vocabulary['kind']}")
    ((name, digest),) = vocabulary["files"].items()
    path = os.path.join(cache_dir, "vocabulary", name)
    if not storage.exists(path) or storage.sha256(path) != digest:
        raise UserError(f"{path} is not the vocabulary of the cache: run `python -m plm_jax.prepare --config=…` again")
    return words.characters(words.read(path), length)
