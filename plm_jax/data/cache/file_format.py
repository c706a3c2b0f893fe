"""Format of a cache on disk: file names, sizes and the manifest.

    CACHE_DIR/SOURCE/manifest.json         format, identity, source, vocabulary, columns, counts of each split;
                                           `validation`: the rule that chose the validation rows, and the overlap
                                           of these rows with the training rows
    CACHE_DIR/SOURCE/files.json            files from which the cache was made (`staleness`)
    CACHE_DIR/SOURCE/word_initial.npy      bool [vocab_size]: whether a token begins a word
    CACHE_DIR/SOURCE/SPLIT/tokens-00000.array_record, …   tokens of all documents, RECORD_TOKENS per
                                           record, SHARD_RECORDS records per file
    CACHE_DIR/SOURCE/SPLIT/documents.npy   int64 [documents + 1]: index of the first token of each document, and the
                                           number of tokens
    CACHE_DIR/SOURCE/SPLIT/COLUMN.npy      values of a column, one document after another; values of the kind `start`
                                           are int64 and count from the split's first token
    CACHE_DIR/SOURCE/SPLIT/COLUMN.offsets.npy   for the kind `value`, int64 [documents + 1]: index of the first value of
                                           each document, and the number of values
    CACHE_DIR/SOURCE/SPLIT/COLUMN.milestones.npy   for `documents` and the kind `start`, int64: number of values below
                                           each multiple of MILESTONE_TOKENS, from 0 to the first multiple that is not
                                           below the number of tokens
    CACHE_DIR/SOURCE/SPLIT/unigram.npy     int64 [vocab_size]: number of occurrences of each token
    CACHE_DIR/SOURCE/SPLIT/checksums.npy   uint32: CRC-32 of each block of `vectors.BLOCK_BYTES` bytes, first of the
                                           tokens of all records and then of the values of each vector, file after
                                           file in the manifest's order

Older formats are rejected, because copies of their validation rows may be among their training rows.
"""

import dataclasses
import itertools
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from plm_jax.common import storage, trees
from plm_jax.common.errors import UserError, one_line
from plm_jax.data.cache.columns import Column
from plm_jax.data.cache.vectors import BLOCK_BYTES, damaged

# Version of the file format, and version of the tokens and their order, which alone is part of identities.
FORMAT, CONTENT = 6, 4
RECORD_TOKENS = 2**15
SHARD_RECORDS = 64
MILESTONE_TOKENS = 2**19
SPLITS = ("train", "validation")
FILES = "files.json"


@dataclass(frozen=True)
class CachedVocabulary:
    """Description of the vocabulary in a manifest, without the special ids.

    Attributes:
      id: hash of the vocabulary (`vocabularies.identity`).
      size: number of ids.
      kind: scheme of the spec, such as `wordpiece`.
      files: dict from the name of each file to its SHA-256.
      sentinels: number of sentinel ids.
      lowercase: `VocabularyConfig.lowercase`.
    """

    id: str
    size: int
    kind: str
    files: dict[str, str]
    sentinels: int = 0
    lowercase: bool = False


@dataclass(frozen=True)
class Counts:
    """Description of a split in a manifest.

    Attributes:
      documents: number of documents.
      tokens: number of tokens.
      bytes: number of UTF-8 bytes of the documents' text.
      sizes: number of values of each column except the tokens, and of the offsets of each column of kind `value`
        (`offsets_name`), by name.
      blocks: number of checksums of the tokens and of each vector, by name, in the order of the checksums.
      crc32: CRC-32 of all checksums.
    """

    documents: int
    tokens: int
    bytes: int
    sizes: dict[str, int]
    blocks: dict[str, int]
    crc32: int


@dataclass(frozen=True)
class Manifest:
    """Fields of a cache's manifest that are needed to read the cache.

    Attributes:
      word_initial: checksums of the blocks of the file `word_initial.npy`.
    """

    identity: str
    vocabulary: CachedVocabulary
    columns: tuple[Column, ...]
    splits: dict[str, Counts]
    word_initial: tuple[int, ...]
    segmenter: str | None = None
    has_inputs_targets: bool = False
    texts: tuple[str, ...] = ()


def shard_name(number: int) -> str:
    """Returns the name of a token file of a split; its first record is record `number * SHARD_RECORDS` of the split."""
    return f"tokens-{number:05d}.array_record"


def offsets_name(column: str) -> str:
    """Returns the name of the vector of a column of kind `value` that has the index of each document's first value."""
    return f"{column}.offsets"


def milestones_name(vector: str) -> str:
    """Returns the name of the vector with the milestones of a sorted vector (`sorted_ids.milestones`)."""
    return f"{vector}.milestones"


def crc32(manifest: Mapping[str, Any]) -> int:
    """Returns the CRC-32 of a manifest, computed without its field `crc32`."""
    fields = {name: value for name, value in manifest.items() if name != "crc32"}
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode("utf-8"))


def read_manifest(folder: str) -> dict[str, Any]:
    """Returns the manifest in a source's folder.

    Raises:
      UserError: the manifest is missing, damaged, unreachable, or has a format other than FORMAT.
    """
    path = os.path.join(folder, "manifest.json")
    try:
        manifest = json.loads(storage.read(path))
    except FileNotFoundError:
        raise UserError(f"there is no cache at {folder}: run `python -m plm_jax prepare --config=…`") from None
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, one_line(error)) from error
    stored = manifest.get("format") if isinstance(manifest, dict) else None
    if stored != FORMAT:
        raise UserError(
            f"{path} has format {stored}, this version reads {FORMAT}: run `python -m plm_jax prepare --config=…` again"
        )
    if manifest.get("crc32") != crc32(manifest):
        raise damaged(path, "it has changed")
    if not isinstance(manifest.get("identity"), str):
        raise damaged(path, "lacks 'identity'")
    return manifest


def parse(folder: str, manifest: Mapping[str, Any]) -> Manifest:
    """Parses a manifest that `read_manifest` has read from a folder; ignores fields that `Manifest` lacks.

    Raises:
      UserError: a field is missing or invalid, or the cache has records, files or milestones of other sizes.
    """
    path, known = os.path.join(folder, "manifest.json"), {f.name for f in dataclasses.fields(Manifest)}
    tree = {name: value for name, value in manifest.items() if name in known}
    vocabulary_fields = {f.name for f in dataclasses.fields(CachedVocabulary)}
    if isinstance(tree.get("vocabulary"), dict):
        tree["vocabulary"] = {name: value for name, value in tree["vocabulary"].items() if name in vocabulary_fields}
    try:
        parsed = trees.parse(Manifest, tree, "manifest")
        _check(parsed)
    except (UserError, TypeError, ValueError, SyntaxError) as error:  # NumPy raises these for types.
        raise damaged(path, one_line(error)) from error
    if any(manifest.get(name, value) != value for name, value in sizes().items()):
        raise damaged(path, "its records have another size")
    return parsed


def _check(manifest: Manifest) -> None:
    """Rejects values that have the right types but are invalid."""
    columns = {column.name: column for column in manifest.columns}
    names = [*manifest.splits, *columns]
    if not all(map(str.isidentifier, names)) or "tokens" not in columns:
        raise UserError(f"manifest names {', '.join(names)}")
    for column in manifest.columns:
        if np.dtype(column.dtype).kind not in "biuf":
            raise UserError(f"manifest.columns.{column.name} is of {column.dtype}")
    vectors = {*columns} - {"tokens"}
    vectors |= {offsets_name(name) for name, column in columns.items() if column.kind == "value"}
    starts = ["documents", *(name for name, column in columns.items() if column.kind == "start")]
    needed = {*vectors, "tokens", "documents", "unigram", *map(milestones_name, starts)}
    for split, counts in manifest.splits.items():
        for lacking in sorted(vectors - counts.sizes.keys()) or sorted(needed - counts.blocks.keys()):
            raise UserError(f"manifest.splits.{split} lacks {lacking}")
        if min(counts.documents, counts.tokens, manifest.vocabulary.size, *counts.sizes.values(), 0) < 0:
            raise UserError(f"manifest.splits.{split} has numbers below 0")


def sizes() -> dict[str, int]:
    """Returns the fields of the manifest with the sizes of records, token files and milestones."""
    return {"record_tokens": RECORD_TOKENS, "shard_records": SHARD_RECORDS, "milestone_tokens": MILESTONE_TOKENS}


def token_block_bytes(item_bytes: int) -> int:
    """Returns the number of bytes of tokens that a checksum covers: BLOCK_BYTES, but at most one record.

    Args:
      item_bytes: number of bytes of a token.
    """
    return min(BLOCK_BYTES, RECORD_TOKENS * item_bytes)


def files_json(rows: Mapping[str, Any]) -> bytes:
    """Returns the contents of `files.json`.

    Args:
      rows: for each split, the list of its files. A file is a list [name, size, modification time, change time,
        SHA-256].
    """
    return json.dumps(dict(rows) | {"crc32": crc32(rows)}).encode("utf-8")


def read_files(folder: str) -> dict[str, list[Any]] | None:
    """Returns the argument `rows` of `files_json`, read from `files.json`; None if that is missing or damaged."""
    try:
        rows = json.loads(storage.read(os.path.join(folder, FILES)))
        checksum = rows.pop("crc32", None)  # Older files have none.
        is_valid = checksum in (None, crc32(rows)) and all(map(_is_file, itertools.chain(*rows.values())))
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return None
    return rows if is_valid else None


def _is_file(row: Any) -> bool:
    """Whether an entry is [name, size, modification time, change time, SHA-256].

    For a file in a bucket, its version replaces each of the two times.
    """
    types = str, int, int | str, int | str, str
    return isinstance(row, list) and len(row) == len(types) and all(map(isinstance, row, types))
