"""Format of a cache on disk: file names, sizes and the manifest.

    CACHE_DIR/SOURCE/manifest.json         format, identity, source, vocabulary, columns, counts of each split;
                                           `validation`: the rule that chose the held-out rows, and their overlap
                                           with the training rows
    CACHE_DIR/SOURCE/files.json            of which files it was made, see `staleness`
    CACHE_DIR/SOURCE/word_initial.npy      bool [vocab_size]: whether a token begins a word
    CACHE_DIR/SOURCE/SPLIT/tokens-00000.array_record, …   the tokens of all documents, RECORD_TOKENS a record,
                                           SHARD_RECORDS records a file
    CACHE_DIR/SOURCE/SPLIT/documents.npy   int64 [documents + 1]: first token of each document, and the end
    CACHE_DIR/SOURCE/SPLIT/COLUMN.npy      a column's values, those of one document after another; of kind `start` they
                                           are int64 and count from the split's first token
    CACHE_DIR/SOURCE/SPLIT/COLUMN.offsets.npy   of kind `value`, int64 [documents + 1]: first value of each, and the end
    CACHE_DIR/SOURCE/SPLIT/COLUMN.milestones.npy   of `documents` and of kind `start`, int64: how many of its values are
                                           below token 0, MILESTONE_TOKENS, … and the split's end
    CACHE_DIR/SOURCE/SPLIT/unigram.npy     int64 [vocab_size]: how often each token occurs
    CACHE_DIR/SOURCE/SPLIT/checksums.npy   uint32: CRC-32 of each block of these files, in the manifest's order: of
                                           each `vectors.BLOCK_BYTES` of the tokens of all records, and of each vector's
                                           values; a file's first is after those of the files before it

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

# The form of the files, and what decides which tokens are in them, and in which order: identities count that alone.
FORMAT, CONTENT = 6, 4
RECORD_TOKENS = 2**15
SHARD_RECORDS = 64
MILESTONE_TOKENS = 2**19
SPLITS = ("train", "validation")
FILES = "files.json"


@dataclass(frozen=True)
class CachedVocabulary:
    """What a manifest says of the vocabulary, special ids apart."""

    id: str
    size: int
    kind: str
    files: dict[str, str]
    sentinels: int = 0
    lowercase: bool = False


@dataclass(frozen=True)
class Counts:
    """What a manifest says of a split.

    Attributes:
      bytes: of its documents' text.
      sizes: how many values each column but the tokens has.
      blocks: number of checksums of each file.
      crc32: that of all checksums.
    """

    documents: int
    tokens: int
    bytes: int
    sizes: dict[str, int]
    blocks: dict[str, int]
    crc32: int


@dataclass(frozen=True)
class Manifest:
    """What a manifest says of what is in the cache.

    Attributes:
      word_initial: the checksums of that file.
    """

    identity: str
    vocabulary: CachedVocabulary
    columns: tuple[Column, ...]
    splits: dict[str, Counts]
    word_initial: tuple[int, ...]
    segmenter: str | None = None
    has_inputs_targets: bool = False


def shard_name(number: int) -> str:
    """The file of a split's records from `number * SHARD_RECORDS` on."""
    return f"tokens-{number:05d}.array_record"


def offsets_name(column: str) -> str:
    """What the vector is called that says where a column's values of each document begin."""
    return f"{column}.offsets"


def milestones_name(vector: str) -> str:
    """What the vector is called that says how many values of a rising one are below every so many-th token."""
    return f"{vector}.milestones"


def crc32(manifest: Mapping[str, Any]) -> int:
    """That of a manifest but for its own `crc32`."""
    others = {name: value for name, value in manifest.items() if name != "crc32"}
    return zlib.crc32(json.dumps(others, sort_keys=True).encode("utf-8"))


def read_manifest(folder: str) -> dict[str, Any]:
    """Returns the manifest in a source's folder.

    Raises:
      UserError: it is missing, damaged, out of reach, or in a format other than FORMAT.
    """
    path = os.path.join(folder, "manifest.json")
    try:
        manifest = json.loads(storage.read(path))
    except FileNotFoundError:
        raise UserError(f"there is no cache at {folder}: run `python -m plm_jax prepare --config=…`") from None
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, one_line(error)) from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise UserError(
            f"{path} has format {found}, this version reads {FORMAT}: run `python -m plm_jax prepare --config=…` again"
        )
    if manifest.get("crc32") != crc32(manifest):
        raise damaged(path, "it has changed")
    if not isinstance(manifest.get("identity"), str):
        raise damaged(path, "lacks 'identity'")
    return manifest


def parse(folder: str, manifest: Mapping[str, Any]) -> Manifest:
    """What the manifest in a folder, as it was read, says of what is in the cache.

    Raises:
      UserError: something is missing or wrong.
    """
    path, known = os.path.join(folder, "manifest.json"), {f.name for f in dataclasses.fields(Manifest)}
    tree = {name: value for name, value in manifest.items() if name in known}
    of_vocabulary = {f.name for f in dataclasses.fields(CachedVocabulary)}
    if isinstance(tree.get("vocabulary"), dict):
        tree["vocabulary"] = {name: value for name, value in tree["vocabulary"].items() if name in of_vocabulary}
    try:
        found = trees.parse(Manifest, tree, "manifest")
        _check(found)
    except (UserError, TypeError, ValueError, SyntaxError) as error:  # As NumPy has it of types.
        raise damaged(path, one_line(error)) from error
    if any(manifest.get(name, value) != value for name, value in sizes().items()):
        raise damaged(path, "its records have another size")
    return found


def _check(manifest: Manifest) -> None:
    """Refuses what types alone do not tell."""
    columns = {column.name: column for column in manifest.columns}
    names = [*manifest.splits, *columns]
    if not all(map(str.isidentifier, names)) or "tokens" not in columns:
        raise UserError(f"manifest names {', '.join(names)}")
    for column in manifest.columns:
        if np.dtype(column.dtype).kind not in "biuf":
            raise UserError(f"manifest.columns.{column.name} is of {column.dtype}")
    others = {*columns} - {"tokens"}
    others |= {offsets_name(name) for name, column in columns.items() if column.kind == "value"}
    starts = ["documents", *(name for name, column in columns.items() if column.kind == "start")]
    needed = {*others, "tokens", "documents", "unigram", *map(milestones_name, starts)}
    for split, counts in manifest.splits.items():
        for lacking in sorted(others - counts.sizes.keys()) or sorted(needed - counts.blocks.keys()):
            raise UserError(f"manifest.splits.{split} lacks {lacking}")
        if min(counts.documents, counts.tokens, manifest.vocabulary.size, *counts.sizes.values(), 0) < 0:
            raise UserError(f"manifest.splits.{split} has numbers below 0")


def sizes() -> dict[str, int]:
    """How many tokens or records there are in what a cache is divided into."""
    return {"record_tokens": RECORD_TOKENS, "shard_records": SHARD_RECORDS, "milestone_tokens": MILESTONE_TOKENS}


def token_block_bytes(item_bytes: int) -> int:
    """How many bytes of tokens of so many bytes each have a checksum, a record at most."""
    return min(BLOCK_BYTES, RECORD_TOKENS * item_bytes)


def files_json(rows: Mapping[str, Any]) -> bytes:
    """What `files.json` holds: of each split its files, each a list that begins with the name, and their CRC-32."""
    return json.dumps(dict(rows) | {"crc32": crc32(rows)}).encode("utf-8")


def read_files(folder: str) -> dict[str, list[Any]] | None:
    """What `files.json` says of each split's files; None: it is not there, or not as it was written."""
    try:
        rows = json.loads(storage.read(os.path.join(folder, FILES)))
        noted = rows.pop("crc32", None)  # Older ones have none.
        is_whole = noted in (None, crc32(rows)) and all(map(_is_file, itertools.chain(*rows.values())))
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return None
    return rows if is_whole else None


def _is_file(row: Any) -> bool:
    """Whether an entry has a file's name, size, two times (or twice the mark of its store), and SHA-256."""
    types = str, int, int | str, int | str, str
    return isinstance(row, list) and len(row) == len(types) and all(map(isinstance, row, types))
