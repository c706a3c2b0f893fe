"""Documents to tokens and to the columns that are kept beside them, in batches, with a process for each core."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from plm_jax.data import vocabularies
from plm_jax.data.cache import columns
from plm_jax.data.cache.columns import Column, Values
from plm_jax.data.config import DataConfig
from plm_jax.data.prepare import groups, reading, segmenters, workers
from plm_jax.data.prepare.reading import Document
from plm_jax.data.prepare.shuffle import Shuffle, open_files
from plm_jax.data.vocabularies import sentences
from plm_jax.data.vocabulary_config import VocabularyConfig

_BATCH_CHARACTERS = 2**20
# Fewer are tokenised before other processes have begun.
_INLINE_BATCHES = 4
Item = TypeVar("Item")
Rule = Callable[[str], list[int]]  # Text → the characters at which a part other than the first begins.


class Batch(NamedTuple):
    """Some documents one after another: the number of the first; of examples the texts are their first.

    Attributes:
      others: of examples the texts that follow; None: they are documents.
      groups, validates: `group` and `validates` of each document.
      values: of each column that documents bring along those of all.
    """

    first: int
    texts: list[str]
    others: list[tuple[str, ...]] | None
    groups: list[str | None]
    validates: list[bool]
    values: dict[str, list[Any]]


class TokenBlock(NamedTuple):
    """Tokenized documents and their number.

    Attributes:
      documents: number of documents with tokens.
      groups: groups of all documents, with and without tokens.
      files: bytes to append to each file of the spill.
    """

    documents: int
    groups: groups.Groups
    files: list[bytes]

    def __len__(self) -> int:
        return sum(map(len, self.files))


class TokenizingTask(NamedTuple):
    """What a worker has to know of a source to tokenise its documents.

    Attributes:
      segmenter: finds the words where the vocabulary does not.
      brought: the columns that documents bring along.
      keeps_offsets: see `Corpus`.
    """

    vocabulary: VocabularyConfig
    segmenter: str | None
    brought: tuple[Column, ...]
    keeps_offsets: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """All that is kept besides the tokens."""
        words = (columns.WORD_STARTS,) if self.segmenter else ()
        offsets = columns.OFFSETS if self.keeps_offsets else ()
        return (columns.SENTENCE_STARTS, *words, columns.FIRST_BYTES, *offsets, *self.brought)


def task(data: DataConfig, vocabulary: VocabularyConfig, name: str) -> TokenizingTask:
    """Returns the task of tokenizing a source."""
    source = data.sources[name]
    keeps_offsets = source.open(name).keeps_offsets
    return TokenizingTask(vocabulary, data.segmenters.get(name), reading.brought(name, source), keeps_offsets)


def encoder(task: TokenizingTask) -> Callable[[Batch], TokenBlock]:
    """What tokenises, here or in a process of its own."""
    vocabulary = vocabularies.load_plain(task.vocabulary)
    rules: dict[str, Rule] = {"sentence_starts": sentences.boundaries}
    if task.segmenter:
        rules["word_starts"] = segmenters.load(task.segmenter)
    spill = Shuffle(vocabulary.vocab_size, task.columns)
    return lambda batch: encode(batch, task, vocabulary, rules, spill)


def encode(
    batch: Batch, task: TokenizingTask, vocabulary: vocabularies.Vocabulary, rules: dict[str, Rule], spill: Shuffle
) -> TokenBlock:
    """The documents of a batch that have tokens; `rules` find the starts of parts of texts, each for a column."""
    texts = [text.encode("utf-8") for text in batch.texts]
    num_bytes = np.array(list(map(len, texts)), np.uint64)
    if batch.others is None:
        found = _texts(batch.texts, vocabulary, rules)
    else:
        found = _examples(batch.texts, batch.others, vocabulary, task.keeps_offsets)
        found |= {name: columns.gather(columns.WORD_STARTS, [()] * len(texts)) for name in rules.keys() - found.keys()}
        num_bytes += np.array([len("".join(others).encode("utf-8")) for others in batch.others], np.uint64)
    found |= {column.name: columns.gather(column, batch.values[column.name]) for column in task.brought}
    keys = [reading.key(number, text) for number, text in enumerate(texts, batch.first)]
    of_groups = groups.keys(batch.texts, batch.others, batch.groups, batch.validates)
    rows = spill.rows(keys, num_bytes, of_groups, found)
    sizes = found["tokens"].sizes
    assert sizes is not None, "tokens have no sizes"
    (chosen,) = sizes.nonzero()
    files = [*spill.shards(rows, found, chosen), of_groups[chosen].tobytes()]
    return TokenBlock(len(chosen), groups.Groups.of(of_groups["group"]), files)


def _texts(texts: list[str], vocabulary: vocabularies.Vocabulary, rules: dict[str, Rule]) -> dict[str, Values]:
    """The tokens of texts, and where parts begin in each."""
    ids, ends, starts, first_bytes = vocabulary.encode_parts(texts, list(rules.values()))
    found = {"tokens": Values(ids, np.diff(ends)), "first_bytes": Values(np.array(first_bytes))}
    for name, of_all in zip(rules, starts, strict=True):
        found[name] = _within(of_all, np.diff(np.searchsorted(of_all, ends)), ends)
    return found


def _examples(
    firsts: list[str], others: list[tuple[str, ...]], vocabulary: vocabularies.Vocabulary, keeps_offsets: bool
) -> dict[str, Values]:
    """The tokens of the texts of each example as those of one document, of which these are the sentences.

    Each may have no tokens, and yet begins.
    """
    texts = [text for first, rest in zip(firsts, others, strict=True) for text in (first, *rest)]
    counts = np.array([1 + len(rest) for rest in others])
    found: dict[str, Values] = {}
    if keeps_offsets:
        encoded = vocabulary.encode_spans(texts)
        ids, *offsets = (np.concatenate([np.zeros(0, np.int64), *part]) for part in zip(*encoded, strict=True))
        starts = np.cumsum([0, *(len(spans.ids) for spans in encoded)])
    else:
        (ids, starts, _, _), offsets = vocabulary.encode_parts(texts, []), ()
    ends = starts[np.append(0, np.cumsum(counts))]
    for column, values in zip(columns.OFFSETS, offsets, strict=False):
        found[column.name] = Values(values, np.diff(ends))
    return found | {
        "tokens": Values(ids, np.diff(ends)),
        "sentence_starts": _within(starts[:-1], counts, ends),
        "first_bytes": Values(np.zeros(len(firsts), np.int64)),
    }


def _within(starts: np.ndarray, sizes: np.ndarray, ends: np.ndarray) -> Values:
    """Starts counted from the first token of their document; documents begin and the last one ends at `ends`."""
    return Values(starts - np.repeat(ends[:-1], sizes), sizes)


def in_batches(documents: Iterable[Document]) -> Iterator[Batch]:
    """All documents, whose numbers have no gaps."""
    for found in batches(documents, _BATCH_CHARACTERS, _num_characters):
        numbers, texts, validates, others, values, of_groups = map(list, zip(*found, strict=True))
        brought = {name: [of[name] for of in values] for name in values[0]}
        yield Batch(numbers[0], texts, None if others[0] is None else others, of_groups, validates, brought)


def _num_characters(document: Document) -> int:
    return sum(map(len, (document.text, *(document.others or ()))))


def batches(items: Iterable[Item], limit: int, size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items in lists, each of which ends when its sizes add up to `limit`."""
    batch, total = [], 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= limit:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def blocks(documents: Iterable[Document], encoder: Callable[[Batch], TokenBlock]) -> Iterator[TokenBlock]:
    """The documents tokenised in this process."""
    return map(encoder, in_batches(documents))


def tokenise(documents: Iterable[Document], task: TokenizingTask, folder: str) -> tuple[int, groups.Groups]:
    """Spills all documents, with a process for each core; returns the number with tokens, and the groups of all.

    What processes make comes in the order of the documents, so that their number makes no difference.
    """
    number, of_groups, found = 0, groups.Groups(), in_batches(documents)
    head = list(itertools.islice(found, _INLINE_BATCHES))
    found, processes = itertools.chain(head, found), workers.cores()
    if processes == 1 or len(head) < _INLINE_BATCHES:
        processes = 0
    with open_files(folder) as files, contextlib.ExitStack() as stack:
        if processes:
            made = stack.enter_context(contextlib.closing(workers.in_order(encoder, (task,), found, processes)))
        else:
            made = map(encoder(task), found)
        for block in made:
            for file, data in zip(files, block.files, strict=True):
                file.write(data)
            number += block.documents
            of_groups.add(block.groups)
    return number, of_groups
