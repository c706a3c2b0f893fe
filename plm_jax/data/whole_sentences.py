"""Rows of whole sentences, RoBERTa's FULL-SENTENCES and DOC-SENTENCES (Liu et al. 2019, arXiv:1907.11692).

As in fairseq's `TokenBlockDataset` (`complete` and `complete_doc`) each row takes sentences until the next one does not
fit, so where a row begins depends on the one before it. The split is walked once, and what is found stays on disk,
memory-mapped, beside the cache or its local copy:

    CACHE_DIR/SOURCE/index/KEY/rows.npy        int64 [1]: how many rows there are
    CACHE_DIR/SOURCE/index/KEY/starts.npy      int64 [rows + 1]: first token of each row, and the end, in the stream of
                                               documents each followed by a separator

KEY is a hash of all that decides it. A row ends wherever one of the blocks of documents does that are walked at once,
about every 262,144 sentences.
"""

import os

import numpy as np
from tqdm import tqdm

from plm_jax import config, objectives
from plm_jax.data import cache, pairs
from plm_jax.data.layouts import Stream


def walk(sentences: np.ndarray, documents: np.ndarray, room: int, cross_documents: bool) -> np.ndarray:
    """Where rows begin in some documents, each followed by a separator.

    Args:
      sentences: [s + 1], the first token of each sentence, and the end.
      documents: [d + 1], the first sentence of each document, and the end.
      room: tokens of a row, separators between documents counted.
      cross_documents: whether a row goes on in the next document.

    Returns:
      The first token of each row; separators before it are counted from the first document on.
    """
    pieces = -(-np.diff(sentences) // room)  # A sentence too long for a row is as many.
    places = np.concatenate([[0], pieces.cumsum()])
    number = np.arange(places[-1]) - np.repeat(places[:-1], pieces)
    sentences = np.append(np.repeat(sentences[:-1], pieces) + room * number, sentences[-1])
    documents = places[documents]
    begins_document = np.zeros(len(sentences), np.int64)
    begins_document[documents] = 1
    starts = sentences + begins_document.cumsum() - 1
    ends = starts - begins_document  # A separator at a row's end takes no room.
    following = ends.searchsorted(starts[:-1] + room, side="right") - 1
    if not cross_documents:
        following = np.minimum(following, np.repeat(documents[1:], np.diff(documents)))
    return starts[pairs.follow(following)]


def row(tokens: np.ndarray, length: int, special: objectives.Special) -> dict[str, np.ndarray]:
    """`tokens` with what begins and ends a row; `tokens` and `mask` (0 at padding) [length], int32.

    `tokens` may end with the separator already, where their last document ends.
    """
    begin, separator = _around(special)
    tokens = tokens[:-1] if len(tokens) and tokens[-1] == separator else tokens
    end = 1 + len(tokens)
    made = np.full(length, special.pad or 0, np.int32)
    made[0], made[1:end], made[end] = begin, tokens, separator
    return {"tokens": made, "mask": (np.arange(length) <= end).astype(np.int32)}


def _around(special: objectives.Special) -> tuple[int, int]:
    """What begins a row, and what ends it and stands between documents."""
    has_pair = special.cls is not None and special.sep is not None
    return (special.cls, special.sep) if has_pair else (special.bos, special.eos)


def _write(folder: str, split: cache.Split, room: int, cross_documents: bool) -> None:
    """Walks the split and writes the index's file into `folder`."""
    file = cache.NpyAppender(os.path.join(folder, "starts.npy"))
    walked = 0
    with tqdm(None, "indexing sentences", split.num_documents, unit=" documents", delay=2) as bar:
        for sentences, documents in pairs.blocks(split):
            file.append(walked + walk(sentences, documents, room, cross_documents))
            walked += len(documents) - 1
            bar.update(len(documents) - 1)
    file.append(np.array([split.num_tokens + split.num_documents]))
    cache.save(os.path.join(folder, "rows.npy"), np.array([file.close() - 1]))


class WholeSentences:
    """`[CLS] sentences [SEP]`, with `[SEP]` between documents, in rows of `length`: a `layouts.Layout` of one pass."""

    def __init__(
        self,
        source: cache.Source,
        split: str,
        layout: config.WholeSentences,
        length: int,
        special: objectives.Special,
        reads: tuple[str, ...] = (),
    ):
        """Opens the index, or makes it: once for each length.

        Rows have `word_starts` where the split has them, if the objective `reads` those.

        Raises:
          UserError: the index is damaged or cannot be written.
        """
        self._length, self._special = length, special
        opened = source.splits[split]
        folder = pairs.open_index(
            source,
            [split, config.to_dict(layout), length],
            lambda made: _write(made, opened, length - 2, layout.cross_documents),
        )
        self._stream = Stream(opened, _around(special)[1], special.pad)
        self._has_words = opened.has_words and "word_starts" in reads
        self.num_rows = int(cache.load(os.path.join(folder, "rows.npy"), 1)[0])
        self._starts = cache.load(os.path.join(folder, "starts.npy"), self.num_rows + 1)
        self.pass_tokens = self._stream.num_tokens

    def windows(self, window_tokens: int) -> list[np.ndarray]:
        """See `Layout`."""
        edges = np.arange(-(-self._stream.num_tokens // window_tokens) + 1, dtype=np.int64) * window_tokens
        return [np.searchsorted(self._starts[:-1], edges)]

    def example(self, item: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """A row, see `row`; nothing is drawn."""
        del rng
        start, stop = self._starts[item : item + 2].tolist()
        made = row(self._stream.read(start, stop)[0], self._length, self._special)
        return made | ({"word_starts": 1 + self._stream.word_starts(start, stop)} if self._has_words else {})
