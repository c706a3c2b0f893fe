"""Pairs for next-sentence prediction (BERT) and for sentence-order prediction (ALBERT).

The rules are those of `create_pretraining_data.py` in google-research/bert (Devlin et al. 2019, arXiv:1810.04805) and
in google-research/albert (Lan et al. 2020, arXiv:1909.11942). BERT draws a random second part for half of the pairs;
ALBERT instead swaps the two parts of half of the pairs. In both, a pair with only one sentence has a random second
part. RoBERTa's pairs of two single sentences (Liu et al. 2019, arXiv:1907.11692) follow BERT's rules, applied to two
sentences at a time. The start of an example depends on the previous example of the document, because the sentences that
a random second part replaces are used again. The index of a split (`index.py`) has these columns, for each pass:

    starts     first token of the first part
    lengths_a  number of tokens of the first part, before truncation
    lengths_b  number of tokens of the second part, which follows the first part; for a random second part, -1 times
               its minimum number of tokens
    starts_b   first token of the second part; only for rows of fixed size. For a random second part, `lengths_b` is
               then -1 times its exact number of tokens.

Swaps and truncation are drawn each time that an example is read. Random second parts are drawn at that time, too,
except for rows of fixed size.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from typing_extensions import override

from plm_jax import objectives
from plm_jax.common import ranges, trees
from plm_jax.data import cache
from plm_jax.data.layouts import index
from plm_jax.data.layouts.formats import Example
from plm_jax.data.layouts.layout import Layout, RowRequest
from plm_jax.data.layouts.randomness import generator

# Probability of a random second part, and of a swap if the task is sentence order.
RANDOM_NEXT = SWAPPED = 0.5
PARTNER_TRIES = 10
# Random parts come from the same stretch of text as the first part, so that reads stay close together; `prepare` has
# shuffled the documents. BERT's code also draws them from its current input files, not from the whole corpus.
STRETCH_TOKENS = 2**21
_COLUMNS = {"starts": "<i8", "lengths_a": "<i4", "lengths_b": "<i4"}


@dataclass(frozen=True)
class SentencePairs(Layout):
    """Two spans of text per row; `pair_label` is 0 if the second span follows the first span in the text, else 1.

    Attributes:
      task: meaning of label 1, which about half of the pairs have. `next_sentence`: the second span is random text from
        another document (BERT). `sentence_order`: the two spans are swapped (ALBERT). For either task, the second span
        is random if the first sentence of a pair is the last sentence of its document or fills the row alone.
      parts: `segments`: each part is one or more sentences, and the two parts fill the row (BERT, and RoBERTa's
        SEGMENT-PAIR). `sentences`: each part is a single sentence (RoBERTa's SENTENCE-PAIR). Single sentences leave
        much of a row empty; a run reports the padding.
      short_probability: share of documents that are split into pairs shorter than a row; ignored if `parts` is
        `sentences`.
      duplicates: number of different passes over the documents. Each epoch reads one pass; after the last pass, the
        first pass is read again.
    """

    kind: ClassVar[str] = "sentence_pairs"
    labels_pairs: ClassVar[bool] = True
    plural: ClassVar[str] = "sentence pairs"
    num_texts: ClassVar[int] = 2
    least_length: ClassVar[int] = 5
    short_probability: ranges.Share = 0.1
    duplicates: Annotated[int, ranges.Range(1, 10**6)] = 10
    task: Literal["next_sentence", "sentence_order"] = "next_sentence"
    parts: Literal["segments", "sentences"] = "segments"

    @property
    @override
    def is_full(self) -> bool:
        return self.parts == "segments"

    @override
    def blank(self, length: int, objective: objectives.BoundObjective, num_characters: int = 0) -> Example:
        return super().blank(length, objective) | {"pair_label": np.zeros((), np.int32)}

    @override
    def open(self, request: RowRequest) -> "PairRows":
        stream = f"pairs/{request.identity}/{request.name}"

        def walk_pass(number: int) -> Iterator[index.RowBlock]:
            return self._walk(request, functools.partial(generator, request.seed, stream, number))

        settings = [trees.to_dict(self), request.length, request.seed]
        columns = _COLUMNS | ({"starts_b": "<i8"} if request.fixed_sizes else {})
        # A pass over 2 million sentences takes half a second.
        return PairRows(index.open_index(request, settings, columns, walk_pass, self.duplicates), request, self)

    def _walk(
        self, request: RowRequest, generator_of: Callable[[int], np.random.Generator]
    ) -> Iterator[index.RowBlock]:
        """Yields the pairs of a pass; `generator_of` returns the generator of a block of documents."""
        longest, random_next = request.length - 3, RANDOM_NEXT if self.task == "next_sentence" else 0.0
        partners = _Partners(request.split)
        for block, (sentences, documents) in enumerate(index.blocks(request.split)):
            rng, num_documents = generator_of(block), len(documents) - 1
            short = rng.random(num_documents) < self.short_probability
            lengths = rng.integers(2, longest, num_documents, endpoint=True)
            targets = np.where(short, lengths, longest)
            draws = rng.random((len(sentences) - 1, 2))
            pairs = walk(sentences, documents, targets, draws, random_next, self.parts == "sentences")
            fixed = partners.fix(*pairs, rng) if request.fixed_sizes else pairs
            yield index.RowBlock(num_documents, fixed)


def walk(
    sentences: np.ndarray,
    documents: np.ndarray,
    targets: np.ndarray,
    draws: np.ndarray,
    random_next: float = RANDOM_NEXT,
    single: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the pairs of some documents.

    Args:
      sentences: [s + 1], position of the first token of each sentence, followed by the end of the last sentence.
      documents: [d + 1], index of the first sentence of each document, followed by the number of sentences.
      targets: [d], target number of tokens of the pairs of each document.
      draws: [s, 2], two random numbers in [0, 1) for the pair that begins at each sentence. The first number decides
        where the pair is cut in two parts, and the second number decides whether the second part is random.
      random_next: probability of a random second part. If a pair has a single sentence, its second part is always
        random.
      single: whether each part is one sentence, regardless of the target.

    Returns:
      Three arrays: the columns `starts`, `lengths_a` and `lengths_b` of the index.
    """
    counts = np.diff(documents)
    target, last = np.repeat(targets, counts), np.repeat(documents[1:], counts)
    numbers = np.arange(len(last))
    # Computes the pair that would begin at each sentence, then follows the path of actual pairs.
    end = np.minimum(numbers + 2 if single else np.searchsorted(sentences, sentences[:-1] + target), last)
    choices = end - numbers - 1
    cut = numbers + 1 + (draws[:, 0] * choices).astype(np.int64)
    is_random = (choices == 0) | (draws[:, 1] < random_next)
    path = index.follow(np.where(is_random, cut, end))
    starts, middle = sentences[path], sentences[cut[path]]
    lengths_a = middle - starts
    least_b = 1 if single else np.maximum(target[path] - lengths_a, 1)
    return starts, lengths_a, np.where(is_random[path], -least_b, sentences[end[path]] - middle)


def truncate(num_a: int, num_b: int, room: int) -> tuple[int, int]:
    """Returns both lengths after repeatedly reducing the longer one (B if equal) by 1 until they fit into `room`."""
    kept_a = min(num_a, max(room - room // 2, room - num_b))
    return kept_a, min(num_b, room - kept_a)


class PairRows(index.IndexedRows):
    """Rows `[CLS] A [SEP] B [SEP]` of `length` tokens."""

    def __init__(self, rows: index.Index, request: RowRequest, layout: SentencePairs):
        super().__init__(rows, request)
        self._lengths_a, self._lengths_b = rows.columns["lengths_a"], rows.columns["lengths_b"]
        self._format = layout.row_format(request.objective.special)
        self._swaps = layout.task == "sentence_order"
        self._partners, self._starts_b = _Partners(request.split), rows.columns.get("starts_b")

    @override
    def max_sizes(self, first: int, stop: int) -> np.ndarray:
        num_special = self._length - self._format.room(self._length, 2)
        return self._lengths_a[first:stop] + np.abs(self._lengths_b[first:stop]) + num_special

    @override
    def example(self, item: int, rng: np.random.Generator) -> Example:
        """Returns a pair and its `pair_label` [] int32: 0 if B follows A in the text, else 1."""
        start_a, num_a, num_b = int(self._starts[item]), int(self._lengths_a[item]), int(self._lengths_b[item])
        label, start_b = int(num_b < 0), start_a + num_a
        if label:
            start_b, num_b = self._random_part(item, rng)
        elif self._swaps and rng.random() < SWAPPED:
            label, (start_a, num_a), (start_b, num_b) = 1, (start_b, num_b), (start_a, num_a)
        room = self._format.room(self._length, 2)
        kept_a, kept_b = truncate(num_a, num_b, room)
        if num_a + num_b > room:  # Each dropped token is the first or the last one, at random.
            cut_a, cut_b = rng.binomial((num_a - kept_a, num_b - kept_b), 0.5).tolist()
            start_a, start_b = start_a + cut_a, start_b + cut_b
        spans = (start_a, start_a + kept_a), (start_b, start_b + kept_b)
        row = self._format.row([self._split.tokens(*span) for span in spans], self._length)
        row["pair_label"] = np.array(label, np.int32)
        return self._with_starts(row, spans, (kept_a, kept_b), self._format)

    @override
    def documents(self, item: int, rng: np.random.Generator) -> list[int]:
        start = int(self._starts[item])
        starts = [start, self._random_part(item, rng)[0]] if self._lengths_b[item] < 0 else [start]
        return [number for token in starts for number in self._split.numbers(token, token + 1)]

    @override
    def rows_with(self, document: int) -> Iterator[np.ndarray]:
        """Yields arrays of the rows of the document, and of rows whose random second part may come from it."""
        documents = self._split.documents
        begin, end = documents[document : document + 2].tolist()
        for first, last in itertools.pairwise(self._passes):
            starts = self._starts[first:last]
            yield np.arange(*(first + starts.searchsorted([begin, end])))
            for stretch in {begin // STRETCH_TOKENS, *self._lonely}:
                edges = documents.searchsorted((stretch * STRETCH_TOKENS, (stretch + 1) * STRETCH_TOKENS))
                tokens = [int(documents[min(edge, self._split.num_documents)]) for edge in edges.tolist()]
                low, high = (first + starts.searchsorted(tokens)).tolist()
                rows = low + (self._lengths_b[low:high] < 0).nonzero()[0]
                yield rows[(self._starts[rows] < begin) | (self._starts[rows] >= end)]

    @functools.cached_property
    def _lonely(self) -> list[int]:
        """Indices of the stretches of STRETCH_TOKENS tokens in which a single document begins.

        The random second parts of the pairs of such a document come from the whole split.
        """
        edges = np.arange(-(-self._split.num_tokens // STRETCH_TOKENS) + 1) * STRETCH_TOKENS
        firsts = np.minimum(self._split.documents.searchsorted(edges), self._split.num_documents)
        return (np.diff(firsts) == 1).nonzero()[0].tolist()

    def _random_part(self, item: int, rng: np.random.Generator) -> tuple[int, int]:
        """Returns the first token and the number of tokens of a random second part."""
        if self._starts_b is not None:
            return int(self._starts_b[item]), -int(self._lengths_b[item])
        return self._partners.draw(int(self._starts[item]), -int(self._lengths_b[item]), rng)


class _Partners:
    """Random second parts of the pairs of a split."""

    def __init__(self, split: cache.DocumentTable):
        self._split = split
        self._near = functools.lru_cache(16)(self._documents_of)

    def draw(self, start: int, least: int, rng: np.random.Generator) -> tuple[int, int]:
        """Draws consecutive sentences of another document: at least `least` tokens, unless the document ends first.

        The other document begins in the same stretch of STRETCH_TOKENS tokens as the document that contains the token
        `start`. If no other document begins in this stretch, it is drawn from the whole split. If PARTNER_TRIES draws
        all yield the document that contains `start`, the sentences come from this document.

        Returns:
          A pair: the first token and the number of tokens of these sentences.
        """
        documents, sentences = self._split.documents, self._split.sentences
        excluded = int(documents.searchsorted(start, side="right")) - 1
        choices = self._near(int(documents[excluded]) // STRETCH_TOKENS)
        start, stop = _draw_partners(documents, sentences, excluded, choices, least, rng)
        return int(start), int(stop) - int(start)

    def fix(
        self, starts: np.ndarray, lengths_a: np.ndarray, lengths_b: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Draws the random second parts of all pairs by the rules of `draw`.

        Returns:
          Four arrays: the columns `starts`, `lengths_a`, `lengths_b` and `starts_b` of the index.
        """
        documents, sentences = np.asarray(self._split.documents), np.asarray(self._split.sentences)
        starts_b, lengths_b = starts + lengths_a, lengths_b.copy()
        (random,) = (lengths_b < 0).nonzero()
        excluded = documents.searchsorted(starts[random], side="right") - 1
        stretches, inverse = np.unique(documents[excluded] // STRETCH_TOKENS, return_inverse=True)
        choices = np.array([self._near(stretch) for stretch in stretches.tolist()]).reshape(-1, 2)[inverse].T
        first, stop = _draw_partners(documents, sentences, excluded, choices, -lengths_b[random], rng)
        starts_b[random], lengths_b[random] = first, first - stop
        return starts, lengths_a, lengths_b, starts_b

    def _documents_of(self, stretch: int) -> tuple[int, int]:
        """Returns the first document that begins in a stretch, and the end of the range of these documents.

        If fewer than two documents begin in the stretch, the range contains all documents of the split.
        """
        edges = stretch * STRETCH_TOKENS, (stretch + 1) * STRETCH_TOKENS
        first, end = np.minimum(self._split.documents.searchsorted(edges), self._split.num_documents).tolist()
        return (first, end) if end - first > 1 else (0, self._split.num_documents)


def _draw_partners(
    documents: Any, sentences: Any, excluded: Any, choices: Any, least: Any, rng: np.random.Generator
) -> tuple[Any, Any]:
    """Draws random second parts for one pair, or for an array of pairs.

    Args:
      documents: first token of each document, followed by the end of the last document.
      sentences: first token of each sentence.
      excluded: index of the document of the first part.
      choices: first document and end of the range of documents to draw from.
      least: minimum number of tokens, unless the document ends first.

    Returns:
      A pair: the first token and the end of the second part, or arrays of them.
    """
    document = rng.integers(*choices)
    for _ in range(PARTNER_TRIES - 1):
        again = document == excluded
        if not np.any(again):
            break
        document = np.where(again, rng.integers(*choices), document)
    end = documents[document + 1]
    start = sentences[rng.integers(sentences.searchsorted(documents[document]), sentences.searchsorted(end))]
    last = sentences.searchsorted(start + least)
    stop = np.minimum(sentences[np.minimum(last, len(sentences) - 1)], end)
    return start, np.where(last == len(sentences), end, stop)
