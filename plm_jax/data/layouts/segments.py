"""Rows of two segments of a document without a label, ELECTRA's (Clark et al. 2020, arXiv:2003.10555).

The rules are those of `build_pretraining_dataset.py` in google-research/electra. A row takes sentences of one document
until they have as many tokens as were drawn for it, so where it begins depends on the one before it. The split is
walked once, and what is found stays on disk, memory-mapped, beside the cache or its local copy:

    CACHE_DIR/SOURCE/index/KEY/rows.npy        int64 [1]: how many rows there are
    CACHE_DIR/SOURCE/index/KEY/starts.npy      int64 [rows + 1]: first token of each row, and the end
    CACHE_DIR/SOURCE/index/KEY/targets.npy     int32 [rows]: the tokens that each should have

KEY is a hash of all that decides them. Which sentences are the first segment is drawn by example.
"""

import os

import numpy as np
from tqdm import tqdm

from plm_jax import config, objectives
from plm_jax.data import cache, layouts
from plm_jax.data.layouts import pairs

# Share of the rows whose sentences are all one segment, and chance that the sentence with which the first one would be
# more than half of the row is still part of it.
ONE_SEGMENT, GOES_BEYOND = 0.1, 0.5
SHORTEST = 5


def walk(sentences: np.ndarray, documents: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of some documents.

    Args:
      sentences: [s + 1], the first token of each sentence, and the end.
      documents: [d + 1], the first sentence of each document, and the end.
      targets: [s], how many tokens a row that begins at a sentence should have.

    Returns:
      The first token of each row, and how many it should have.
    """
    last = np.repeat(documents[1:], np.diff(documents))
    path = pairs.follow(np.minimum(np.searchsorted(sentences, sentences[:-1] + targets), last))
    return sentences[path], targets[path]


def in_first(sizes: list[int], target: int, rng: np.random.Generator) -> list[bool]:
    """Of sentences with so many tokens, whether each is of the first segment of a row that should have `target`."""
    limit = np.inf if rng.random() < ONE_SEGMENT else (target - 3) // 2
    found, num_first, all_first = [], 0, True
    for size in sizes:
        fits = num_first == 0 or num_first + size < limit
        fits = fits or (all_first and num_first < limit and rng.random() < GOES_BEYOND)
        num_first, all_first = num_first + size * fits, all_first and fits
        found.append(fits)
    return found


def _write(folder: str, split: cache.Split, layout: config.Segments, length: int, seed: int, stream: str) -> None:
    """Walks the split and writes the index's files into `folder`."""
    starts = cache.NpyAppender(os.path.join(folder, "starts.npy"))
    targets = cache.NpyAppender(os.path.join(folder, "targets.npy"), np.dtype("<i4"))
    with tqdm(None, "indexing sentences", split.num_documents, unit=" documents", delay=2) as bar:
        for block, (sentences, documents) in enumerate(pairs.blocks(split)):
            rng, num = layouts.generator(seed, stream, block), len(sentences) - 1
            short = rng.random(num) < layout.short_probability
            wanted = np.where(short, rng.integers(SHORTEST, length, num, endpoint=True), length)
            for file, values in zip((starts, targets), walk(sentences, documents, wanted), strict=True):
                file.append(values)
            bar.update(len(documents) - 1)
    starts.append(np.array([split.num_tokens]))
    starts.close()
    cache.save(os.path.join(folder, "rows.npy"), np.array([targets.close()]))


class Segments:
    """`[CLS] first [SEP] second [SEP]` in rows of `length`: a `layouts.Layout` of one pass."""

    def __init__(
        self,
        source: cache.Source,
        split: str,
        layout: config.Segments,
        length: int,
        seed: int,
        special: objectives.Special,
        reads: tuple[str, ...] = (),
    ):
        """Opens the index, or makes it: once for each length and seed.

        Rows have `word_starts` where the split has them, if the objective `reads` those.

        Raises:
          UserError: the index is damaged or cannot be written.
        """
        self._split, self._length, self._special = source.splits[split], length, special
        stream = f"segments/{source.identity}/{split}"
        folder = pairs.open_index(
            source,
            [split, config.to_dict(layout), length, seed],
            lambda made: _write(made, self._split, layout, length, seed, stream),
        )
        self._has_words = "word_starts" in reads and self._split.has_words
        self.num_rows = int(cache.load(os.path.join(folder, "rows.npy"), 1)[0])
        self._starts = cache.load(os.path.join(folder, "starts.npy"), self.num_rows + 1)
        self._targets = cache.load(os.path.join(folder, "targets.npy"), self.num_rows, np.dtype("<i4"))
        self.pass_tokens = self._split.num_tokens

    def windows(self, window_tokens: int) -> list[np.ndarray]:
        """See `Layout`."""
        return [layouts.windows_of(self._starts[:-1], self._split.num_tokens, window_tokens)]

    def example(self, item: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """A row, see `pairs.framed`."""
        start, stop = self._starts[item : item + 2].tolist()
        sentences = self._split.sentences
        bounds = sentences[slice(*sentences.searchsorted((start, stop)))] - start
        sizes = np.diff(bounds, append=stop - start)
        is_first = np.repeat(in_first(sizes.tolist(), int(self._targets[item]), rng), sizes)
        first = is_first.nonzero()[0][: self._length - 2]
        second = (~is_first).nonzero()[0][: max(0, self._length - len(first) - 3)]
        tokens = self._split.tokens(start, stop)
        made = pairs.framed(tokens[first], tokens[second], self._length, self._special)
        if self._has_words:
            begins = np.zeros(stop - start, np.bool_)
            begins[self._split.word_starts(start, stop)] = True
            words_a, words_b = (begins[part].nonzero()[0] for part in (first, second))
            made["word_starts"] = np.concatenate([1 + words_a, 2 + len(first) + words_b])
        return made
