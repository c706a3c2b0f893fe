"""The documents of a run's sources: in which order, which of them are held out, and the identity of what they make."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax.data import vocabularies
from plm_jax.data.cache import columns, form, staleness
from plm_jax.data.config import DataConfig
from plm_jax.data.prepare import groups
from plm_jax.data.sources import files
from plm_jax.data.sources.corpus import Record, Skipped, ignore
from plm_jax.data.sources.source import Source

# Number of documents that are counted at a time.
_COUNTED = 1000


class Document(NamedTuple):
    """A text and its number within the source; `text` is the first text of an example.

    Attributes:
      validates: whether it is in the source's own validation split.
      others: of an example the texts that follow; None: it is a document.
      values: of each column that it brings along what it has: its `origin`, and what its source says of it.
      group: the group of its `Record`.
    """

    number: int
    text: str
    validates: bool = False
    others: tuple[str, ...] | None = None
    values: Mapping[str, Any] = {}
    group: str | None = None

    def is_held_out(self, rule: groups.HeldOutRule) -> bool:
        """Whether the rule holds the document out for validation."""
        return self.validates or (rule.bound > 0 and _key(self) < rule.bound)


class SourcePiece(NamedTuple):
    """A part of a source that one worker reads: of a split all or a shard."""

    split: str
    shard: Any


def pieces(name: str, source: Source, most: int = 1) -> list[SourcePiece]:
    """The parts of a source, in order; where it can be parted anywhere up to `most` of a split."""
    corpus = source.open(name)
    splits = [split for split in form.SPLITS if split in corpus.splits]
    return [SourcePiece(split, shard) for split in splits for shard in corpus.shards(split, most)]


def splits(name: str, source: Source) -> tuple[str, ...]:
    """The splits that a source has of its own."""
    return tuple(source.open(name).splits)


def brought(name: str, source: Source) -> tuple[columns.Column, ...]:
    """The columns that documents of a source bring along.

    Raises:
      UserError: one of its own that cannot be kept.
    """
    own = source.open(name).columns
    columns.check(
        own, (columns.SENTENCE_STARTS, columns.WORD_STARTS, columns.FIRST_BYTES, *columns.OFFSETS, columns.ORIGIN)
    )
    return (columns.ORIGIN, *own)


def documents(
    data: DataConfig,
    name: str,
    piece: SourcePiece,
    first: int,
    skipped: Skipped | None = None,
    advance: Callable[[int], Any] = ignore,
) -> Iterator[Document]:
    """Yields the documents of a piece, numbered from `first`.

    Where the data skip bad rows, `skipped` counts them. `advance` is told how much more was read.
    """
    corpus = data.sources[name].open(name)
    skipped = (skipped or Skipped()) if data.bad_rows == "skip" else None
    records = corpus.read(piece.split, piece.shard, skipped, advance)
    for number, record in enumerate((record for record in records if record.has_text), first):
        values = {**record.values, "origin": columns.origin(record.file, record.row_number)}
        yield Document(number, record.text, piece.split == "validation", record.other_texts, values, record.group)


def all_documents(
    data: DataConfig, name: str, skipped: Skipped | None = None, advance: Callable[[int], Any] = ignore
) -> Iterator[Document]:
    """All documents of a source, one piece after another."""
    number = 0
    for piece in pieces(name, data.sources[name]):
        for document in documents(data, name, piece, number, skipped, advance):
            yield document
            number = document.number + 1


def key(number: int, text: bytes) -> int:
    """64 bits that decide a document's place; equal texts differ by their number, so as not to end up side by side."""
    digest = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=8)
    digest.update(text)
    return int.from_bytes(digest.digest(), "big")


def rule(data: DataConfig, name: str) -> groups.HeldOutRule:
    """Returns the rule that chooses the held-out documents of a source, reading as few documents as it needs."""
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
    """Returns whether `prepare` holds out each record; `records` is all of a source without a validation split."""
    keys = [_key(record) if record.has_text else None for record in records]
    bound = groups.Groups.of([key for key in keys if key is not None]).rule(fraction).bound
    return [key is not None and key < bound for key in keys]


def identity(
    data: DataConfig, name: str, vocabulary: vocabularies.Vocabulary, contents: Sequence[str] | None = None
) -> str:
    """SHA-256 of a source's contents, its `fingerprint`, task definition, vocabulary and what decides a cache's tokens.

    It also covers the definitions of the source's columns, and the code of a segmenter.
    """
    source = data.sources[name]
    corpus = source.open(name)
    what = {
        "contents": corpus.fingerprint() if contents is None else contents,
        "task": files.definition(source),
        "validation_fraction": None if "validation" in corpus.splits else data.validation_fraction,
        "vocabulary": vocabularies.identity(vocabulary),
        "format": form.CONTENT,
    }
    if name in data.segmenters:
        what["segmenter"], *code = staleness.segmenter(data, name)
        if code:
            what["segmenter_code"] = code
    if data.bad_rows == "skip" and corpus.skips_bad_rows:
        what["bad_rows"] = "skip"
    if corpus.columns:
        what["columns"] = columns.described(corpus.columns)
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode("utf-8")).hexdigest()
