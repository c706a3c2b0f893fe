"""Rows of whole sentences, RoBERTa's FULL-SENTENCES and DOC-SENTENCES (Liu et al. 2019, arXiv:1907.11692).

As in fairseq's `TokenBlockDataset` (`complete` and `complete_doc`) each row takes sentences until the next one does not
fit, so where a row begins depends on the one before it. BART's rows are the same (Lewis et al. 2020, arXiv:1910.13461),
but nothing stands between documents, and what frames a row comes with the noise. The split is walked once, and what is
found stays on disk, memory-mapped, beside the cache or its local copy:

    CACHE_DIR/SOURCE/index/KEY/rows.npy        int64 [1]: how many rows there are
    CACHE_DIR/SOURCE/index/KEY/starts.npy      int64 [rows + 1]: first token of each row, and the end, in the stream of
                                               documents each followed by a separator, if there is one

KEY is a hash of all that decides it. A row ends wherever one of the blocks of documents does that are walked at once,
about every 262,144 sentences.
"""

import os

import numpy as np
from tqdm import tqdm

from plm_jax import config, objectives
from plm_jax.data import cache, layouts
from plm_jax.data.layouts import pairs


def walk(
    sentences: np.ndarray, documents: np.ndarray, room: int, cross_documents: bool, separated: bool = True
) -> np.ndarray:
    """Where rows begin in some documents, each followed by a separator if they are `separated`.

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
    begins_document[documents] = separated
    starts = sentences + begins_document.cumsum() - separated
    ends = starts - begins_document  # A separator at a row's end takes no room.
    following = ends.searchsorted(starts[:-1] + room, side="right") - 1
    if not cross_documents:
        following = np.minimum(following, np.repeat(documents[1:], np.diff(documents)))
    return starts[pairs.follow(following)]


def _write(folder: str, split: cache.Split, room: int, cross_documents: bool, separated: bool) -> None:
    """Walks the split and writes the index's file into `folder`."""
    file = cache.NpyAppender(os.path.join(folder, "starts.npy"))
    walked = 0
    with tqdm(None, "indexing sentences", split.num_documents, unit=" documents", delay=2) as bar:
        for sentences, documents in pairs.blocks(split):
            file.append(walked + walk(sentences, documents, room, cross_documents, separated))
            walked += separated * (len(documents) - 1)
            bar.update(len(documents) - 1)
    file.append(np.array([split.num_tokens + walked]))
    cache.save(os.path.join(folder, "rows.npy"), np.array([file.close() - 1]))


class WholeSentences:
    """`[CLS] sentences [SEP]`, with `[SEP]` between documents, in rows of `length`: a `layouts.Layout` of one pass.

    For an objective that frames a text itself: the sentences alone, in rows of what it takes.
    """

    def __init__(
        self,
        source: cache.Source,
        split: str,
        layout: config.WholeSentences,
        length: int,
        objective: objectives.BoundObjective,
    ):
        """Opens the index, or makes it: once for each length.

        Rows have `sentence_starts`, and `word_starts` where the split has them, if the objective `reads` those.

        Raises:
          UserError: the index is damaged or cannot be written.
        """
        opened, special = source.splits[split], objective.special
        self._framed, self._length, self._special = not objective.frames, length, special
        room = length - 2
        if not self._framed:
            self._length = room = objective.input_length(length)
        folder = pairs.open_index(
            source,
            [split, config.to_dict(layout), room, self._framed],
            lambda made: _write(made, opened, room, layout.cross_documents, self._framed),
        )
        self._separator = layouts.marks(special)[1] if self._framed else None
        self._stream = layouts.Stream(opened, self._separator, special.pad)
        self._reads = [name for name in objective.reads if name != "word_starts" or opened.has_words]
        self.num_rows = int(cache.load(os.path.join(folder, "rows.npy"), 1)[0])
        self._starts = cache.load(os.path.join(folder, "starts.npy"), self.num_rows + 1)
        self.pass_tokens = self._stream.num_tokens

    def windows(self, window_tokens: int) -> list[np.ndarray]:
        """See `Layout`."""
        return [layouts.windows_of(self._starts[:-1], self._stream.num_tokens, window_tokens)]

    def example(self, item: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """A row, see `layouts.framed`, or `layouts.row` if it is not; nothing is drawn."""
        del rng
        start, stop = self._starts[item : item + 2].tolist()
        tokens, begins = self._stream.read(start, stop)
        if self._framed:
            # A separator stands already where the row's last document ends.
            tokens = tokens[:-1] if tokens[-1] == self._separator else tokens
            made = layouts.framed([tokens], self._length, self._special)
        else:
            made = layouts.row(tokens, begins, self._length, separate=False, pad=self._special.pad or 0)
        starts = {"sentence_starts": self._stream.sentence_starts, "word_starts": self._stream.word_starts}
        return made | {name: self._framed + starts[name](start, stop) for name in self._reads}
