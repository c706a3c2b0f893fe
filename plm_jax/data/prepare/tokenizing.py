"""Tokenization of documents in batches, with a process per core, into tokens and the columns stored with them."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from plm_jax.common import workers
from plm_jax.common.errors import UserError
from plm_jax.data import vocabularies
from plm_jax.data.cache import columns
from plm_jax.data.cache.columns import Column, Values
from plm_jax.data.config import DataConfig
from plm_jax.data.prepare import groups, reading, segmenters
from plm_jax.data.prepare.reading import Document
from plm_jax.data.prepare.shuffle import Shuffle, open_files
from plm_jax.data.vocabularies import sentences
from plm_jax.data.vocabulary_config import VocabularyConfig

_BATCH_CHARACTERS = 2**20
# So few batches are tokenized in less time than worker processes take to start.
_INLINE_BATCHES = 4
Item = TypeVar("Item")
Rule = Callable[[str], list[int]]  # Text → characters at which parts other than the first begin.


class Batch(NamedTuple):
    """Consecutive documents or examples of a source.

    Attributes:
      first: number of the first document within the source.
      texts: text of each document, or first text of each example; empty texts for a tokenized source.
      further_texts: texts of each example after the first; None for documents.
      groups: `group` of each document.
      validates: `validates` of each document.
      values: values of each document in each column of the source, by name.
      tokens: tokens of each document of a tokenized source; None for texts.
    """

    first: int
    texts: list[str]
    further_texts: list[tuple[str, ...]] | None
    groups: list[str | None]
    validates: list[bool]
    values: dict[str, list[Any]]
    tokens: list[np.ndarray] | None = None


class TokenBlock(NamedTuple):
    """Tokenized documents in the format of the shuffle.

    Attributes:
      documents: number of documents with tokens.
      groups: groups of all documents, with and without tokens.
      files: bytes to append to each file of the shuffle, in the order of `shuffle.FILES`.
    """

    documents: int
    groups: groups.Groups
    files: list[bytes]

    def __len__(self) -> int:
        return sum(map(len, self.files))


class TokenizingTask(NamedTuple):
    """Settings with which a worker tokenizes the documents of a source.

    Attributes:
      segmenter: name of the function that splits texts into words; None if the source has no segmenter.
      source_columns: columns whose values come from the source.
      keeps_offsets: whether the cache stores at which characters of its text each token begins and ends.
    """

    vocabulary: VocabularyConfig
    segmenter: str | None
    source_columns: tuple[Column, ...]
    keeps_offsets: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns of the cache, without the tokens."""
        words = (columns.WORD_STARTS,) if self.segmenter else ()
        offsets = columns.OFFSETS if self.keeps_offsets else ()
        return (columns.SENTENCE_STARTS, *words, columns.FIRST_BYTES, *offsets, *self.source_columns)


def task(data: DataConfig, vocabulary: VocabularyConfig, name: str) -> TokenizingTask:
    """Returns the task of tokenizing the source `name`."""
    source = data.sources[name]
    keeps_offsets = source.open(name).keeps_offsets
    return TokenizingTask(vocabulary, data.segmenters.get(name), reading.source_columns(name, source), keeps_offsets)


def encoder(task: TokenizingTask) -> Callable[[Batch], TokenBlock]:
    """Returns a function that tokenizes a batch; loads the vocabulary and the segmenter."""
    vocabulary = vocabularies.load_plain(task.vocabulary)
    rules: dict[str, Rule] = {"sentence_starts": sentences.boundaries}
    if task.segmenter:
        rules["word_starts"] = segmenters.load(task.segmenter)
    shuffle = Shuffle(vocabulary.vocab_size, task.columns)
    return lambda batch: encode(batch, task, vocabulary, rules, shuffle)


def encode(
    batch: Batch, task: TokenizingTask, vocabulary: vocabularies.Vocabulary, rules: dict[str, Rule], shuffle: Shuffle
) -> TokenBlock:
    """Tokenizes a batch. Documents without tokens are dropped, but counted in the groups.

    Args:
      rules: for each column of starts, such as `word_starts`, the function that finds these starts in a text.

    Raises:
      UserError: a tokenized document has an id that the vocabulary lacks, or a segmenter does not fit a text.
    """
    if batch.tokens is not None:
        batch = batch._replace(texts=_decode(batch.tokens, vocabulary))
    texts = [text.encode("utf-8") for text in batch.texts]
    num_bytes = np.array(list(map(len, texts)), np.uint64)
    if batch.tokens is not None:
        values = _gather_tokens(batch.tokens, vocabulary)
    elif batch.further_texts is None:
        values = _encode_texts(batch.texts, vocabulary, rules)
    else:
        values = encode_examples(batch.texts, batch.further_texts, vocabulary, task.keeps_offsets)
        missing = rules.keys() - values.keys()
        values |= {name: columns.gather(columns.WORD_STARTS, [()] * len(texts)) for name in missing}
        num_bytes += np.array([len("".join(rest).encode("utf-8")) for rest in batch.further_texts], np.uint64)
    values |= {column.name: columns.gather(column, batch.values[column.name]) for column in task.source_columns}
    keys = [reading.key(number, text) for number, text in enumerate(texts, batch.first)]
    group_keys = groups.keys(batch.texts, batch.further_texts, batch.groups, batch.validates)
    rows = shuffle.rows(keys, num_bytes, group_keys, values)
    sizes = values["tokens"].sizes
    assert sizes is not None, "tokens have no sizes"
    (chosen,) = sizes.nonzero()
    files = [*shuffle.shards(rows, values, chosen), group_keys[chosen].tobytes()]
    return TokenBlock(len(chosen), groups.Groups.of(group_keys["group"]), files)


def _decode(documents: list[np.ndarray], vocabulary: vocabularies.Vocabulary) -> list[str]:
    """Returns the texts of tokenized documents.

    Raises:
      UserError: the vocabulary lacks an id.
    """
    ids = np.concatenate(documents)
    if (unknown := ids[(ids < 0) | (ids >= vocabulary.vocab_size)]).size:
        raise UserError(
            f"a tokenized document has the id {unknown[0]}, but the vocabulary has {vocabulary.vocab_size:,} ids: "
            "check the source's dtype and config.vocabulary"
        )
    return [_decode_whole(document, vocabulary) for document in documents]


def _decode_whole(document: np.ndarray, vocabulary: vocabularies.Vocabulary) -> str:
    """Returns the text of a tokenized document. Unlike `decode`, it does not stop at an eos."""
    parts = np.split(document, (document == vocabulary.eos_id).nonzero()[0] + 1)
    return "".join(map(vocabulary.decode, parts))


def _gather_tokens(documents: list[np.ndarray], vocabulary: vocabularies.Vocabulary) -> dict[str, Values]:
    """Returns the columns of tokenized documents. Each document is one sentence."""
    firsts = [len(vocabulary.decode(document[:1]).encode("utf-8")) for document in documents]
    return {
        "tokens": columns.gather(columns.tokens(vocabulary.vocab_size), documents),
        "sentence_starts": columns.gather(columns.SENTENCE_STARTS, [(0,)] * len(documents)),
        "first_bytes": Values(np.array(firsts)),
    }


def _encode_texts(texts: list[str], vocabulary: vocabularies.Vocabulary, rules: dict[str, Rule]) -> dict[str, Values]:
    """Returns the columns of texts, such as their tokens and the starts of sentences."""
    ids, ends, starts, first_bytes = vocabulary.encode_parts(texts, list(rules.values()))
    values = {"tokens": Values(ids, np.diff(ends)), "first_bytes": Values(np.array(first_bytes))}
    for name, flat in zip(rules, starts, strict=True):
        values[name] = _within_documents(flat, np.diff(np.searchsorted(flat, ends)), ends)
    return values


def encode_examples(
    firsts: list[str], further_texts: list[tuple[str, ...]], vocabulary: vocabularies.Vocabulary, keeps_offsets: bool
) -> dict[str, Values]:
    """Returns the tokens and columns of examples. An example is a document, and its texts are the sentences.

    The sentence starts include those of texts without tokens.

    Args:
      firsts: first text of each example.
      further_texts: texts of each example after the first.
      keeps_offsets: whether to return the columns `columns.OFFSETS`.
    """
    texts = [text for first, rest in zip(firsts, further_texts, strict=True) for text in (first, *rest)]
    counts = np.array([1 + len(rest) for rest in further_texts])
    values: dict[str, Values] = {}
    if keeps_offsets:
        encoded = vocabulary.encode_spans(texts)
        ids, *offsets = (np.concatenate([np.zeros(0, np.int64), *part]) for part in zip(*encoded, strict=True))
        starts = np.cumsum([0, *(len(spans.ids) for spans in encoded)])
    else:
        (ids, starts, _, _), offsets = vocabulary.encode_parts(texts, []), ()
    ends = starts[np.append(0, np.cumsum(counts))]
    for column, flat in zip(columns.OFFSETS, offsets, strict=False):
        values[column.name] = Values(flat, np.diff(ends))
    return values | {
        "tokens": Values(ids, np.diff(ends)),
        "sentence_starts": _within_documents(starts[:-1], counts, ends),
        "first_bytes": Values(np.zeros(len(firsts), np.int64)),
    }


def _within_documents(starts: np.ndarray, sizes: np.ndarray, ends: np.ndarray) -> Values:
    """Converts offsets in a batch to offsets in the documents.

    Args:
      starts: sorted offsets from the first token of the batch.
      sizes: number of offsets in each document.
      ends: index of the first token of each document, and then the total number of tokens.
    """
    return Values(starts - np.repeat(ends[:-1], sizes), sizes)


def in_batches(documents: Iterable[Document]) -> Iterator[Batch]:
    """Yields batches of documents, which must have consecutive numbers, in order."""
    for batch in batches(documents, _BATCH_CHARACTERS, _num_characters):
        numbers, texts, validates, further_texts, values, group_names, tokens = map(list, zip(*batch, strict=True))
        by_column = {name: [document[name] for document in values] for name in values[0]}
        has_examples, has_tokens = further_texts[0] is not None, tokens[0] is not None
        yield Batch(
            numbers[0],
            texts,
            further_texts if has_examples else None,
            group_names,
            validates,
            by_column,
            tokens if has_tokens else None,
        )


def _num_characters(document: Document) -> int:
    """Returns the size of a document: its number of tokens if it is tokenized, otherwise its number of characters."""
    if document.tokens is not None:
        return len(document.tokens)
    return sum(map(len, (document.text, *(document.further_texts or ()))))


def batches(items: Iterable[Item], limit: int, size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yields lists of consecutive items. A list ends as soon as the total `size` of its items reaches `limit`."""
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
    """Yields the results of `encoder` for batches of documents, in this process."""
    return map(encoder, in_batches(documents))


def tokenize(documents: Iterable[Document], task: TokenizingTask, folder: str) -> tuple[int, groups.Groups]:
    """Tokenizes documents into the shuffle files of a folder, with a process per core.

    If there are only a few batches, they are tokenized in this process. Results are written in the order of the
    documents. The files thus do not depend on the number of processes.

    Returns:
      A pair: the number of documents with tokens, and the groups of all documents.
    """
    num_documents, all_groups, remaining = 0, groups.Groups(), in_batches(documents)
    head = list(itertools.islice(remaining, _INLINE_BATCHES))
    every_batch, processes = itertools.chain(head, remaining), workers.cores()
    if processes == 1 or len(head) < _INLINE_BATCHES:
        processes = 0
    with open_files(folder) as files, contextlib.ExitStack() as stack:
        if processes:
            results = workers.in_order(encoder, (task,), every_batch, processes)
            token_blocks = stack.enter_context(contextlib.closing(results))
        else:
            token_blocks = map(encoder(task), every_batch)
        for block in token_blocks:
            for file, data in zip(files, block.files, strict=True):
                file.write(data)
            num_documents += block.documents
            all_groups.add(block.groups)
    return num_documents, all_groups
