"""Rows of one document each, DistilBERT's (Sanh et al. 2019, arXiv:1910.01108).

The rules are those of huggingface/transformers, research_projects/distillation (`scripts/binarized_data.py`, where a
document is a line, and `lm_seqs_dataset.py`): each document stands between `[CLS]` and `[SEP]`. One that is longer than
a row is cut, marks and all, into pieces of two tokens less, each of which gets the marks that it lacks. Rows of at most
11 tokens go, and rows of which at least half are unknown. The split is walked once, and what is found stays on disk,
memory-mapped, beside the cache or its local copy:

    CACHE_DIR/SOURCE/index/KEY/rows.npy        int64 [1]: how many rows there are
    CACHE_DIR/SOURCE/index/KEY/starts.npy      int64 [rows]: first token of text of each row
    CACHE_DIR/SOURCE/index/KEY/lengths.npy     int32 [rows]: how many tokens of text it has

KEY is a hash of all that decides them.
"""

import os
from collections.abc import Iterator

import numpy as np
from tqdm import tqdm

from plm_jax import config, objectives
from plm_jax.data import cache, layouts
from plm_jax.data.layouts import pairs

BLOCK_TOKENS = 2**20
# Of a row, marks counted: most tokens of one that goes, and the share of unknown ones with which it goes.
TOO_SHORT, TOO_UNKNOWN = 11, 0.5


def cut(documents: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of documents that begin at `documents` [d + 1], the end among them, for rows of `length`.

    Returns:
      Where each piece begins and ends; it may be empty.
    """
    step = length - 2
    sizes = np.diff(documents) + 2
    counts = np.where(sizes <= length, 1, -(-sizes // step))
    begins, ends = np.repeat(documents[:-1], counts), np.repeat(documents[1:], counts)
    number = np.arange(len(begins)) - np.repeat(counts.cumsum() - counts, counts)
    # The mark that begins a document is cut off with its first piece, so that it is one token shorter.
    starts = np.where(number == 0, begins, begins - 1 + number * step)
    stops = np.where(np.repeat(counts, counts) == 1, ends, np.minimum(begins - 1 + (number + 1) * step, ends))
    return starts, stops


def _blocks(split: cache.Split) -> Iterator[np.ndarray]:
    """Where documents begin, and the end, about BLOCK_TOKENS a time."""
    first = 0
    while first < split.num_documents:
        edge = int(split.documents[first]) + BLOCK_TOKENS
        last = min(max(first + 1, int(split.documents.searchsorted(edge))), split.num_documents)
        yield np.asarray(split.documents[first : last + 1])
        first = last


def _write(folder: str, split: cache.Split, length: int, unk: int | None) -> None:
    """Walks the split and writes the index's files into `folder`."""
    starts = cache.NpyAppender(os.path.join(folder, "starts.npy"))
    lengths = cache.NpyAppender(os.path.join(folder, "lengths.npy"), np.dtype("<i4"))
    with tqdm(None, "indexing documents", split.num_documents, unit=" documents", delay=2) as bar:
        for documents in _blocks(split):
            begins, ends = cut(documents, length)
            sizes = ends - begins + 2
            keep = sizes > TOO_SHORT
            if unk is not None:
                unknown = split.tokens(int(documents[0]), int(documents[-1])) == unk
                before = np.concatenate([[0], unknown.cumsum()])
                keep &= before[ends - documents[0]] - before[begins - documents[0]] < TOO_UNKNOWN * sizes
            starts.append(begins[keep])
            lengths.append((ends - begins)[keep])
            bar.update(len(documents) - 1)
    starts.close()
    cache.save(os.path.join(folder, "rows.npy"), np.array([lengths.close()]))


class Documents:
    """`[CLS] document [SEP]` in rows of `length`: a `layouts.Layout` of one pass."""

    def __init__(
        self,
        source: cache.Source,
        split: str,
        layout: config.Documents,
        length: int,
        special: objectives.Special,
        reads: tuple[str, ...] = (),
    ):
        """Opens the index, or makes it: once for each length.

        Rows have `word_starts` where the split has them, if the objective `reads` those.

        Raises:
          UserError: the index is damaged or cannot be written.
        """
        self._split, self._length, self._special = source.splits[split], length, special
        folder = pairs.open_index(
            source,
            [split, config.to_dict(layout), length],
            lambda made: _write(made, self._split, length, special.unk),
        )
        self._has_words = "word_starts" in reads and self._split.has_words
        self.num_rows = int(cache.load(os.path.join(folder, "rows.npy"), 1)[0])
        self._starts = cache.load(os.path.join(folder, "starts.npy"), self.num_rows)
        self._lengths = cache.load(os.path.join(folder, "lengths.npy"), self.num_rows, np.dtype("<i4"))
        self.pass_tokens = self._split.num_tokens

    def windows(self, window_tokens: int) -> list[np.ndarray]:
        """See `Layout`."""
        return [layouts.windows_of(self._starts, self._split.num_tokens, window_tokens)]

    def example(self, item: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """A row, see `layouts.framed`; nothing is drawn."""
        del rng
        start = int(self._starts[item])
        stop = start + int(self._lengths[item])
        made = layouts.framed([self._split.tokens(start, stop)], self._length, self._special)
        return made | ({"word_starts": 1 + self._split.word_starts(start, stop)} if self._has_words else {})

    def share_left_out(self) -> float:
        """The share of the split's tokens that are in no row."""
        return 1 - int(self._lengths.sum(dtype=np.int64)) / max(1, self._split.num_tokens)
