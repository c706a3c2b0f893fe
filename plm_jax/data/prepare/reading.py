"""Documents of a run's sources: their order, which documents are held out, and the identity of a source's cache."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plm_jax.data import vocabularies
from plm_jax.data.cache import columns, file_format, staleness
from plm_jax.data.config import DataConfig
from plm_jax.data.prepare import groups
from plm_jax.data.sources import files
from plm_jax.data.sources.corpus import Record, Skipped, ignore
from plm_jax.data.sources.source import Source

# Number of documents that are counted at a time.
_COUNTED = 1000


class Document(NamedTuple):
    """Document or example of a source.

    Attributes:
      number: number of the document within the source, counted from 0.
      text: text of a document, or first text of an example.
      validates: whether the document is in the source's own validation split.
      further_texts: texts of an example after the first; None for a document.
      values: values of the columns of `source_columns`, by name.
      group: `Record.group` of the document.
      tokens: `Record.tokens` of the document.
    """

    number: int
    text: str
    validates: bool = False
    further_texts: tuple[str, ...] | None = None
    values: Mapping[str, Any] = {}
    group: str | None = None
    tokens: np.ndarray | None = None

    def is_held_out(self, rule: groups.HeldOutRule) -> bool:
        """Whether the rule holds the document out for validation."""
        return self.validates or (rule.bound > 0 and _key(self) < rule.bound)


class SourcePiece(NamedTuple):
    """Part of a source that one worker reads: a split or a shard of a split."""

    split: str
    shard: Any


def pieces(name: str, source: Source, most: int = 1) -> list[SourcePiece]:
    """Returns the parts of a source, in order: the shards of the training split, and then of the validation split.

    A split that can be divided anywhere has at most `most` shards.
    """
    corpus = source.open(name)
    splits = [split for split in file_format.SPLITS if split in corpus.splits]
    return [SourcePiece(split, shard) for split in splits for shard in corpus.shards(split, most)]


def splits(name: str, source: Source) -> tuple[str, ...]:
    """Returns the splits that a source has: `train`, and `validation` if it has its own."""
    return tuple(source.open(name).splits)


def source_columns(name: str, source: Source) -> tuple[columns.Column, ...]:
    """Returns the columns whose values come from a source, not from tokenization.

    Raises:
      UserError: the cache cannot store one of these columns.
    """
    additional = source.open(name).columns
    standard = (columns.SENTENCE_STARTS, columns.WORD_STARTS, columns.FIRST_BYTES, *columns.OFFSETS, columns.ORIGIN)
    columns.check(additional, standard)
    return (columns.ORIGIN, *additional)


def documents(
    data: DataConfig,
    name: str,
    piece: SourcePiece,
    first: int,
    skipped: Skipped | None = None,
    advance: Callable[[int], Any] = ignore,
) -> Iterator[Document]:
    """Yields the documents of a piece, numbered from `first`; leaves out records without text.

    Args:
      skipped: counter of rows and bad rows, which is increased if `data.bad_rows` is "skip"; None: no counter.
      advance: called with the amount that was read since the last call, in the unit of `Corpus.progress`.

    Raises:
      UserError: the source is damaged or does not fit its settings, or a row is bad and `data.bad_rows` is "stop".
    """
    corpus = data.sources[name].open(name)
    skipped = (skipped or Skipped()) if data.bad_rows == "skip" else None
    records = corpus.read(piece.split, piece.shard, skipped, advance)
    validates = piece.split == "validation"
    for number, record in enumerate((record for record in records if not record.is_empty), first):
        values = {**record.values, "origin": columns.origin(record.file, record.row_number)}
        yield Document(number, record.text, validates, record.other_texts, values, record.group, record.tokens)


def all_documents(
    data: DataConfig, name: str, skipped: Skipped | None = None, advance: Callable[[int], Any] = ignore
) -> Iterator[Document]:
    """Yields all documents of a source, numbered from 0. Other arguments and errors are those of `documents`."""
    return documents_of(data, name, pieces(name, data.sources[name]), 0, skipped, advance)


def documents_of(
    data: DataConfig,
    name: str,
    pieces: Iterable[SourcePiece],
    first: int,
    skipped: Skipped | None = None,
    advance: Callable[[int], Any] = ignore,
) -> Iterator[Document]:
    """Yields the documents of several pieces, one piece after another, numbered from `first`.

    Other arguments and errors are those of `documents`.
    """
    number = first
    for piece in pieces:
        for document in documents(data, name, piece, number, skipped, advance):
            yield document
            number = document.number + 1


def key(number: int, text: bytes) -> int:
    """Returns the 64-bit hash that sets a document's position in the cache.

    The hash covers the text, in UTF-8, and the document's number. Equal texts thus do not end up next to each other.
    """
    digest = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=8)
    digest.update(text)
    return int.from_bytes(digest.digest(), "big")


def rule(data: DataConfig, name: str) -> groups.HeldOutRule:
    """Returns the rule that chooses the held-out documents of a source; reads only as many documents as necessary."""
    if "validation" in splits(name, data.sources[name]):
        return groups.HeldOutRule("source")
    fraction, counted = data.validation_fraction, groups.Groups()
    documents = all_documents(data, name)
    while not counted.is_settled(fraction) and (batch := list(itertools.islice(documents, _COUNTED))):
        counted.add(groups.Groups.of([_key(document) for document in batch]))
    return counted.rule(fraction)


def _key(row: Document | Record) -> int:
    """Returns the hash of a row's group."""
    return groups.key(row.text if row.group is None else row.group)


def hold_out(records: Sequence[Record], fraction: float) -> list[bool]:
    """Returns whether `prepare` holds out each record; False for records without text.

    Args:
      records: all records of a source that has no validation split.
    """
    keys = [None if record.is_empty else _key(record) for record in records]
    bound = groups.Groups.of([key for key in keys if key is not None]).rule(fraction).bound
    return [key is not None and key < bound for key in keys]


def identity(
    data: DataConfig, name: str, vocabulary: vocabularies.Vocabulary, contents: Sequence[str] | None = None
) -> str:
    """Returns the identity of the cache of the source `name`, a SHA-256 in hex.

    The hash covers the contents, definition and columns of the source, the vocabulary, the format of the cache, the
    settings that affect documents and splits, and the code of a segmenter.

    Args:
      contents: `Corpus.fingerprint` of the source; None: it is computed.
    """
    source = data.sources[name]
    corpus = source.open(name)
    determinants = {
        "contents": corpus.fingerprint() if contents is None else contents,
        "task": files.definition(source),
        "validation_fraction": None if "validation" in corpus.splits else data.validation_fraction,
        "vocabulary": vocabularies.identity(vocabulary),
        "format": file_format.CONTENT,
    }
    if name in data.segmenters:
        determinants["segmenter"], *code = staleness.segmenter(data, name)
        if code:
            determinants["segmenter_code"] = code
    if data.bad_rows == "skip" and corpus.skips_bad_rows:
        determinants["bad_rows"] = "skip"
    if corpus.columns:
        determinants["columns"] = columns.describe(corpus.columns)
    return hashlib.sha256(json.dumps(determinants, sort_keys=True).encode("utf-8")).hexdigest()
