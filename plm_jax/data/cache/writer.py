"""Writes a cache's splits, and puts a finished one in its place."""

import glob
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.common import storage
from plm_jax.data.cache import form
from plm_jax.data.cache.columns import FIRST_BYTES, SENTENCE_STARTS, Column, Values, tokens
from plm_jax.data.cache.columns import describe as describe_columns
from plm_jax.data.cache.sorted_ids import MilestonesWriter
from plm_jax.data.cache.vectors import NpyAppender, crc32s, save, save_checksums

_OPTIONS = "group_size:1,uncompressed"


class SplitWriter:
    """Writes one split's files into `folder`, which it makes."""

    def __init__(self, folder: str, vocab_size: int, columns: Sequence[Column] = (SENTENCE_STARTS, FIRST_BYTES)):
        """`columns` are all but the tokens."""
        os.makedirs(folder)
        self._folder = folder
        self._columns = tuple(columns)
        self._tokens = _TokensWriter(folder, vocab_size)
        self._documents = NpyAppender(os.path.join(folder, "documents.npy"))
        self._vectors: dict[str, NpyAppender] = {}
        rising = ["documents", *(column.name for column in columns if column.kind == "start")]
        files = {name: NpyAppender(os.path.join(folder, f"{form.milestones_name(name)}.npy")) for name in rising}
        self._milestone_files = {form.milestones_name(name): file for name, file in files.items()}
        self._milestones = {name: MilestonesWriter(file.append) for name, file in files.items()}
        for column in columns:
            dtype = "<i8" if column.kind == "start" else column.dtype
            self._vectors[column.name] = NpyAppender(os.path.join(folder, f"{column.name}.npy"), dtype)
            if column.kind == "value":
                name = form.offsets_name(column.name)
                self._vectors[name] = NpyAppender(os.path.join(folder, f"{name}.npy"))
                self._vectors[name].append(np.zeros(1))
        self._num_values = dict.fromkeys(self._vectors, 0)
        self._num_bytes = 0

    def add(self, found: Mapping[str, Values], num_bytes: int) -> None:
        """Adds whole documents.

        Args:
          found: `tokens` and each of the columns; starts are counted from the first token of their document.
          num_bytes: of their text in UTF-8.
        """
        flat, sizes = found["tokens"]
        assert sizes is not None
        begins = self._tokens.num_tokens + np.cumsum(sizes) - sizes
        self._documents.append(begins)
        self._milestones["documents"].add(begins)
        self._num_bytes += num_bytes
        for column in self._columns:
            values, counts = found[column.name]
            if column.kind == "start" and counts is not None:
                values = values + np.repeat(begins, counts)
                self._milestones[column.name].add(values)
            if column.kind == "value" and counts is not None:
                name = form.offsets_name(column.name)
                self._vectors[name].append(self._num_values[column.name] + np.cumsum(counts))
            self._vectors[column.name].append(values)
            self._num_values[column.name] += len(values)
        self._tokens.add(flat)

    def close(self) -> dict[str, Any]:
        """Ends the files, syncs them to disk and gives what the manifest says of the split."""
        self._tokens.close()
        self._documents.append(end := np.array([self._tokens.num_tokens]))
        self._milestones["documents"].add(end)
        checksums = {"tokens": self._tokens.checksums}
        for milestones in self._milestones.values():
            milestones.close(self._tokens.num_tokens)
        for name, file in self._milestone_files.items():
            file.close()
            checksums[name] = file.checksums
        sizes = {}
        for name, vector in {"documents": self._documents, **self._vectors}.items():
            sizes[name] = vector.close()
            checksums[name] = vector.checksums
        checksums["unigram"] = save(os.path.join(self._folder, "unigram.npy"), self._tokens.unigram)
        blocks, crc32 = save_checksums(self._folder, checksums)
        return {
            "documents": sizes.pop("documents") - 1,
            "tokens": self._tokens.num_tokens,
            "bytes": self._num_bytes,
            "sizes": sizes,
            "blocks": blocks,
            "crc32": crc32,
        }


class _TokensWriter:
    """Writes the tokens of a split in records.

    Attributes:
      unigram: int64 [vocab_size], how often each token occurs.
      checksums: the CRC-32 of each block of all records.
    """

    def __init__(self, folder: str, vocab_size: int):
        self._folder = folder
        self._dtype = np.dtype(tokens(vocab_size).dtype)
        self._shard: Any = None
        self._num_records = 0
        self.checksums: list[int] = []
        self.unigram = np.zeros(vocab_size, np.int64)
        self._pending: list[np.ndarray] = []
        self._num_pending = 0
        self.num_tokens = 0

    def add(self, flat: np.ndarray) -> None:
        self.num_tokens += len(flat)
        self._pending.append(np.asarray(flat, self._dtype))
        self._num_pending += len(flat)
        if self._num_pending >= form.RECORD_TOKENS:
            self._flush(whole_records_only=True)

    def _flush(self, whole_records_only: bool) -> None:
        size, found = form.RECORD_TOKENS, np.concatenate([np.zeros(0, self._dtype), *self._pending])
        end = len(found) // size * size if whole_records_only else len(found)
        for start in range(0, end, size):
            record = found[start : min(start + size, end)]
            self._write(record.tobytes())
            self.unigram += np.bincount(record, minlength=len(self.unigram))
        self._pending, self._num_pending = [found[end:].copy()], len(found) - end

    def _write(self, data: bytes) -> None:
        shard, place = divmod(self._num_records, form.SHARD_RECORDS)
        if place == 0:
            from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

            self._close_shard()
            self._shard_path = os.path.join(self._folder, form.shard_name(shard))
            self._shard = array_record_module.ArrayRecordWriter(self._shard_path, _OPTIONS)
        self._shard.write(data)
        self._num_records += 1
        # Records but the last are whole blocks.
        self.checksums += crc32s(data, form.token_block_bytes(self._dtype.itemsize))

    def _close_shard(self) -> None:
        if self._shard is not None:
            self._shard.close()
            with open(self._shard_path, "rb") as file:
                os.fsync(file.fileno())

    def close(self) -> None:
        self._flush(whole_records_only=False)
        self._close_shard()


def describe(vocab_size: int, columns: Sequence[Column], word_initial: np.ndarray, folder: str) -> dict[str, Any]:
    """Writes which tokens begin words, and gives what a manifest says of this and of the columns of all splits."""
    checksums = save(os.path.join(folder, "word_initial.npy"), word_initial)
    return {"columns": describe_columns([tokens(vocab_size), *columns]), "word_initial": checksums}


def publish(temporary: str, final: str, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest, last of all, and renames the folder to `final`, replacing what is there."""
    with open(os.path.join(temporary, "manifest.json"), "w") as file:
        written = {"format": form.FORMAT} | form.sizes() | dict(manifest)
        json.dump(written | {"crc32": form.crc32(written)}, file, indent=2)
        storage.sync(file)
    storage.replace_folder(temporary, final)


def upload(folder: str, remote: str, show_progress: bool = True) -> None:
    """Copies a published cache to a remote folder, replacing what is there; the manifest goes first and comes last.

    Raises:
      UserError: the store cannot be reached.
    """
    manifest = os.path.join(remote, "manifest.json")
    storage.remove(manifest)
    storage.remove(remote)
    paths = storage.glob(os.path.join(glob.escape(folder), "**"))
    names = [os.path.relpath(path, folder) for path in paths if not path.endswith("manifest.json")]
    storage.upload(folder, names, remote, f"uploading to {remote}" if show_progress else None)
    storage.copy(os.path.join(folder, "manifest.json"), manifest)
