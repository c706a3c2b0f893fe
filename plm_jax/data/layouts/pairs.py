"""Pairs for next-sentence prediction (BERT) and for sentence-order prediction (ALBERT).

The rules are those of `create_pretraining_data.py` in google-research/bert (Devlin et al. 2019, arXiv:1810.04805) and
in google-research/albert (Lan et al. 2020, arXiv:1909.11942), where the second part is put before the first instead of
being random, but in chunks of one sentence. RoBERTa's pairs of two single sentences (Liu et al. 2019,
arXiv:1907.11692) are the same with chunks of two sentences. Where an example begins depends on the one
before it in its document, because sentences that a random second part displaces are put back. So each pass over the
text is walked once, and what it finds stays on disk, memory-mapped, beside the cache or its local copy:

    CACHE_DIR/SOURCE/index/KEY/passes.npy      int64 [duplicates + 1]: first example of each pass, and the end
    CACHE_DIR/SOURCE/index/KEY/starts.npy      int64 [examples]: first token of the first part
    CACHE_DIR/SOURCE/index/KEY/lengths_a.npy   int32 [examples]: tokens of the first part, before truncation
    CACHE_DIR/SOURCE/index/KEY/lengths_b.npy   int32 [examples]: tokens of the second part, which follows the first; if
                                               negative, at least so many come from somewhere else

KEY is a hash of all that decides them. Partners of random pairs, swaps and what is truncated are drawn by example.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.data import cache, layouts

FORMAT = 1
BLOCK_SENTENCES = 2**18
# Share of pairs whose second part is from elsewhere, and, where order is the task, that are swapped.
RANDOM_NEXT = SWAPPED = 0.5
PARTNER_TRIES = 10
# Random parts come from the same stretch of text as the first part, for `prepare` has shuffled the documents: what is
# read stays close together. The source, too, draws from the documents of the files at hand, not from the whole corpus.
STRETCH_TOKENS = 2**21
_FILES = {"starts": np.dtype("<i8"), "lengths_a": np.dtype("<i4"), "lengths_b": np.dtype("<i4")}


def walk(
    sentences: np.ndarray,
    documents: np.ndarray,
    targets: np.ndarray,
    draws: np.ndarray,
    random_next: float = RANDOM_NEXT,
    single: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pairs of some documents, each from its first sentence to its last.

    Args:
      sentences: [s + 1], the first token of each sentence, and the end.
      documents: [d + 1], the first sentence of each document, and the end.
      targets: [d], how many tokens a pair of each document should have.
      draws: [s, 2], uniform in [0, 1), for the pair that begins at a sentence: where it is cut, and whether at random.
      random_next: chance of a second part from elsewhere where the document has one.
      single: each part is one sentence, whatever the target.

    Returns:
      `starts`, `lengths_a` and `lengths_b` of the index, in order.
    """
    counts = np.diff(documents)
    target, last = np.repeat(targets, counts), np.repeat(documents[1:], counts)
    index = np.arange(len(last))
    # What a pair that begins at a sentence would be is found for all sentences at once, then the path is followed.
    end = np.minimum(index + 2 if single else np.searchsorted(sentences, sentences[:-1] + target), last)
    choices = end - index - 1
    cut = index + 1 + (draws[:, 0] * choices).astype(np.int64)
    is_random = (choices == 0) | (draws[:, 1] < random_next)
    path = follow(np.where(is_random, cut, end))
    starts, middle = sentences[path], sentences[cut[path]]
    lengths_a = middle - starts
    wanted = 1 if single else np.maximum(target[path] - lengths_a, 1)
    return starts, lengths_a, np.where(is_random[path], -wanted, sentences[end[path]] - middle)


def follow(following: np.ndarray) -> np.ndarray:
    """Where a path from 0 to beyond the end comes by, if from each place it goes on to that in `following`."""
    steps, visited, at = following.tolist(), [], 0
    while at < len(steps):
        visited.append(at)
        at = steps[at]
    return np.array(visited)


def truncate(num_a: int, num_b: int, room: int) -> tuple[int, int]:
    """What is left of two lengths when the longer one, B if they are equal, loses one until both fit into `room`."""
    kept_a = min(num_a, max(room - room // 2, room - num_b))
    return kept_a, min(num_b, room - kept_a)


def framed(part_a: np.ndarray, part_b: np.ndarray, length: int, special: objectives.Special) -> dict[str, np.ndarray]:
    """Two parts, of which the second may be empty, as the model sees them.

    Returns:
      `tokens`, `mask` (0 at padding) and `token_types` (0 for `[CLS] A [SEP]`, 1 for `B [SEP]`) [length], int32.
    """
    made = layouts.framed([part_a, part_b] if len(part_b) else [part_a], length, special)
    token_types = np.zeros(length, np.int32)
    if len(part_b):
        token_types[2 + len(part_a) : 3 + len(part_a) + len(part_b)] = 1
    return made | {"token_types": token_types}


def blocks(split: cache.Split) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """`sentences` and `documents` as `walk` takes them, of whole documents with about BLOCK_SENTENCES a time."""
    edges = np.searchsorted(split.documents, split.sentences[::BLOCK_SENTENCES])
    for first, last in itertools.pairwise(np.unique([*edges, split.num_documents])):
        documents = split.documents[first : last + 1]
        begin, end = np.searchsorted(split.sentences, documents[[0, -1]])
        sentences = np.append(split.sentences[begin:end], documents[-1])
        yield sentences, np.searchsorted(sentences, documents)


def _write(folder: str, split: cache.Split, layout: config.SentencePairs, length: int, seed: int, stream: str) -> None:
    """Walks all passes and writes the index's files into `folder`."""
    longest = length - 3
    files = {name: cache.NpyAppender(os.path.join(folder, f"{name}.npy"), dtype) for name, dtype in _FILES.items()}
    passes, random_next = [0], RANDOM_NEXT if layout.task == "next_sentence" else 0.0
    total = layout.duplicates * split.num_documents
    with tqdm(None, "indexing sentence pairs", total, unit=" documents", delay=2) as bar:
        for number in range(layout.duplicates):
            passes.append(passes[-1])
            for block, (sentences, documents) in enumerate(blocks(split)):
                rng = layouts.generator(seed, stream, number, block)
                num_documents = len(documents) - 1
                short = rng.random(num_documents) < layout.short_probability
                lengths = rng.integers(2, longest, num_documents, endpoint=True)
                targets = np.where(short, lengths, longest)
                draws = rng.random((len(sentences) - 1, 2))
                found = walk(sentences, documents, targets, draws, random_next, layout.parts == "sentences")
                for file, values in zip(files.values(), found, strict=True):
                    file.append(values)
                passes[-1] += len(found[0])
                bar.update(num_documents)
    for file in files.values():
        file.close()
    cache.save(os.path.join(folder, "passes.npy"), np.array(passes, np.int64))


def open_index(source: cache.Source, key: Sequence[Any], write: Callable[[str], None]) -> str:
    """The folder of an index, which is made if it is missing; of several makers at once the first to end is taken.

    Args:
      key: all that decides what is in it, the source apart.
      write: writes the files into a folder.

    Raises:
      UserError: it cannot be written.
    """
    key = [FORMAT, source.identity, *key]
    root = os.path.join(source.folder, "index")
    folder = os.path.join(root, hashlib.sha256(json.dumps(key).encode("utf-8")).hexdigest()[:16])
    if os.path.exists(folder):
        return folder
    try:
        os.makedirs(root, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=root) as temporary:
            made = os.path.join(temporary, "index")
            os.mkdir(made)
            write(made)
            with contextlib.suppress(OSError):  # Another one was first.
                os.rename(made, folder)
    except OSError as error:
        raise UserError(
            f"cannot write {root} ({error.strerror}): make it writable or move config.data.cache_dir"
        ) from error
    return folder


class SentencePairs:
    """`[CLS] A [SEP] B [SEP]` in rows of `length`: a `layouts.Layout`."""

    def __init__(
        self,
        source: cache.Source,
        split: str,
        layout: config.SentencePairs,
        length: int,
        seed: int,
        special: objectives.Special,
        reads: tuple[str, ...] = (),
    ):
        """Opens the index, or makes it: once for each length and seed, half a second for 2 million sentences a pass.

        Pairs have `word_starts` where the split has them, if the objective `reads` those.

        Raises:
          UserError: the index is damaged or cannot be written.
        """
        stream = f"pairs/{source.identity}/{split}"
        folder = open_index(
            source,
            [split, config.to_dict(layout), length, seed],
            lambda made: _write(made, source.splits[split], layout, length, seed, stream),
        )
        self._split = source.splits[split]
        self._length = length
        self._swaps = layout.task == "sentence_order"
        self._special = special
        self._has_words = "word_starts" in reads and self._split.has_words
        self._near = functools.lru_cache(16)(self._documents_of)
        self._passes = cache.load(os.path.join(folder, "passes.npy"), layout.duplicates + 1).tolist()
        self._starts, self._lengths_a, self._lengths_b = (
            cache.load(os.path.join(folder, f"{name}.npy"), self._passes[-1], dtype) for name, dtype in _FILES.items()
        )
        self.num_rows = self._passes[1]
        self.pass_tokens = self._split.num_tokens

    def windows(self, window_tokens: int) -> list[np.ndarray]:
        """See `Layout`."""
        return [
            first + layouts.windows_of(self._starts[first:end], self._split.num_tokens, window_tokens)
            for first, end in itertools.pairwise(self._passes)
        ]

    def example(self, item: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """A pair, see `framed`, and `pair_label` [] int32, 0 if B follows A in the text, 1 if it goes before it or is
        from somewhere else.
        """
        start_a, num_a, num_b = int(self._starts[item]), int(self._lengths_a[item]), int(self._lengths_b[item])
        label, start_b = int(num_b < 0), start_a + num_a
        if label:
            start_b, num_b = self._partner(start_a, -num_b, rng)
        elif self._swaps and rng.random() < SWAPPED:
            label, (start_a, num_a), (start_b, num_b) = 1, (start_b, num_b), (start_a, num_a)
        room = self._length - 3
        kept_a, kept_b = truncate(num_a, num_b, room)
        if num_a + num_b > room:  # Each token that goes is the first or the last.
            cut_a, cut_b = rng.binomial((num_a - kept_a, num_b - kept_b), 0.5).tolist()
            start_a, start_b = start_a + cut_a, start_b + cut_b
        part_a, part_b = (self._split.tokens(s, s + n) for s, n in ((start_a, kept_a), (start_b, kept_b)))
        made = framed(part_a, part_b, self._length, self._special) | {"pair_label": np.array(label, np.int32)}
        if self._has_words:
            words_a, words_b = (self._split.word_starts(s, s + n) for s, n in ((start_a, kept_a), (start_b, kept_b)))
            made["word_starts"] = np.concatenate([1 + words_a, 2 + kept_a + words_b])
        return made

    def _documents_of(self, stretch: int) -> tuple[int, int]:
        """The first document that begins in a stretch and the one after the last; of all where there is but one."""
        edges = stretch * STRETCH_TOKENS, (stretch + 1) * STRETCH_TOKENS
        first, end = self._split.documents[:-1].searchsorted(edges).tolist()
        return (first, end) if end - first > 1 else (0, self._split.num_documents)

    def _partner(self, start: int, wanted: int, rng: np.random.Generator) -> tuple[int, int]:
        """The first token and the number of tokens of whole sentences, `wanted` or more, or up to their document's end.

        The document is another one than that of the token `start`, but for ten failures to draw one, and begins in the
        same stretch; where there is no other in it, anywhere.
        """
        documents, sentences = self._split.documents, self._split.sentences
        own = int(documents.searchsorted(start, side="right")) - 1
        choices = self._near(int(documents[own]) // STRETCH_TOKENS)
        for _ in range(PARTNER_TRIES):
            document = int(rng.integers(*choices))
            if document != own:
                break
        begin, end = documents[document : document + 2].tolist()
        first = int(rng.integers(*sentences.searchsorted((begin, end)).tolist()))
        start = int(sentences[first])
        last = int(sentences.searchsorted(start + wanted))
        return start, (end if last == len(sentences) else min(int(sentences[last]), end)) - start
