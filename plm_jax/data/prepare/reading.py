"""The documents of a run's sources: in which order, which of them are held out, and the identity of what they make."""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax import config
from plm_jax.data import vocabularies
from plm_jax.data.cache import columns, form, staleness
from plm_jax.data.sources import files
from plm_jax.data.sources.corpus import Record, Skipped, ignore


class Document(NamedTuple):
    """A text, its number within the source, and whether it is for validation; of an example `text` is its first.

    Attributes:
      others: of an example the texts that follow; None: it is a document.
      values: of each column that it brings along what it has: its `origin`, and what its source says of it.
    """

    number: int
    text: str
    held_out: bool
    others: tuple[str, ...] | None = None
    values: Mapping[str, Any] = {}


class Piece(NamedTuple):
    """A part of a source that one worker reads: of a split all or a shard."""

    split: str
    shard: Any


def pieces(name: str, source: config.Source, most: int = 1) -> list[Piece]:
    """The parts of a source, in order; where it can be parted anywhere up to `most` of a split."""
    corpus = source.open(name)
    splits = [split for split in form.SPLITS if split in corpus.splits]
    return [Piece(split, shard) for split in splits for shard in corpus.shards(split, most)]


def splits(name: str, source: config.Source) -> tuple[str, ...]:
    """The splits that a source has of its own."""
    return tuple(source.open(name).splits)


def brought(name: str, source: config.Source) -> tuple[columns.Column, ...]:
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
    run: config.Run,
    name: str,
    piece: Piece,
    first: int,
    skipped: Skipped | None = None,
    advance: Callable[[int], Any] = ignore,
) -> Iterator[Document]:
    """The documents of a piece, numbered from `first`; of a source without a validation split CRC-32 holds some out.

    Where the run skips bad rows, `skipped` counts them. `advance` is told how much more was read.
    """
    corpus, fraction = run.data.sources[name].open(name), run.data.validation_fraction
    skipped = (skipped or Skipped()) if run.data.bad_rows == "skip" else None
    found = corpus.read(piece.split, piece.shard, skipped, advance)
    for number, record in enumerate(filter(_has_text, found), first):
        held = piece.split == "validation" if "validation" in corpus.splits else held_out(record.text, fraction)
        values = {**record.values, "origin": columns.origin(record.file, record.place)}
        yield Document(number, record.text, held, record.others, values)


def _has_text(record: Record) -> bool:
    """Whether there is anything to tokenise."""
    return bool(record.text.strip() or any(record.others or ()))


def all_documents(
    run: config.Run, name: str, skipped: Skipped | None = None, advance: Callable[[int], Any] = ignore
) -> Iterator[Document]:
    """All documents of a source, one piece after another."""
    number = 0
    for piece in pieces(name, run.data.sources[name]):
        for document in documents(run, name, piece, number, skipped, advance):
            yield document
            number = document.number + 1


def key(number: int, text: bytes) -> int:
    """64 bits that decide a document's place; equal texts differ by their number, so as not to end up side by side."""
    digest = hashlib.blake2b(number.to_bytes(8, "little"), digest_size=8)
    digest.update(text)
    return int.from_bytes(digest.digest(), "big")


def held_out(text: str, fraction: float) -> bool:
    """Whether a document of a source without a validation split is for validation."""
    return zlib.crc32(text.encode("utf-8")) % 1000 < 1000 * fraction


def hold_out(texts: Sequence[str], fraction: float) -> list[bool]:
    """Which of all documents of such a source are for validation: if CRC-32 takes none, that of the smallest hash."""
    held = [held_out(text, fraction) for text in texts]
    if not any(held) and holds_first(len(texts), fraction):
        held[min(range(len(texts)), key=lambda number: key(number, texts[number].encode("utf-8")))] = True
    return held


def holds_first(num_documents: int, fraction: float) -> bool:
    """Whether of so many documents, of which CRC-32 takes none, one is held out; never the only one."""
    return fraction > 0 and num_documents > 1


def identity(
    run: config.Run, name: str, vocabulary: vocabularies.Vocabulary, contents: Sequence[str] | None = None
) -> str:
    """SHA-256 of a source's contents, its `fingerprint`, task definition, vocabulary and what decides a cache's tokens.

    The definition of columns that the source brings counts, too, and the code of a segmenter.
    """
    source = run.data.sources[name]
    corpus = source.open(name)
    what = {
        "contents": corpus.fingerprint() if contents is None else contents,
        "task": files.definition(source),
        "validation_fraction": None if "validation" in corpus.splits else run.data.validation_fraction,
        "vocabulary": vocabularies.identity(vocabulary),
        "format": form.CONTENT,
    }
    if name in run.data.segmenters:
        what["segmenter"], *code = staleness.segmenter(run, name)
        if code:
            what["segmenter_code"] = code
    if run.data.bad_rows == "skip" and corpus.skips_bad_rows:
        what["bad_rows"] = "skip"
    if corpus.columns:
        what["columns"] = columns.described(corpus.columns)
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode("utf-8")).hexdigest()
