"""Writes the splits of a cache, and publishes and uploads finished caches."""

import glob
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.common import storage
from plm_jax.data.cache import file_format
from plm_jax.data.cache.columns import FIRST_BYTES, SENTENCE_STARTS, Column, Values, tokens
from plm_jax.data.cache.columns import describe as describe_columns
from plm_jax.data.cache.sorted_ids import MilestonesWriter
from plm_jax.data.cache.vectors import BlockChecksums, NpyAppender, save, save_checksums

_OPTIONS = "group_size:1,uncompressed"


class SplitWriter:
    """Writer of the files of a split into a new folder."""

    def __init__(self, folder: str, vocab_size: int, columns: Sequence[Column] = (SENTENCE_STARTS, FIRST_BYTES)):
        """Creates the folder, which must not exist, and its files; `columns` are the columns except the tokens."""
        os.makedirs(folder)
        self._folder = folder
        self._columns = tuple(columns)
        self._tokens = _TokensWriter(folder, vocab_size)
        self._documents = NpyAppender(os.path.join(folder, "documents.npy"))
        self._vectors: dict[str, NpyAppender] = {}
        sorted_names = ["documents", *(column.name for column in columns if column.kind == "start")]
        files = {
            name: NpyAppender(os.path.join(folder, f"{file_format.milestones_name(name)}.npy")) for name in sorted_names
        }
        self._milestone_files = {file_format.milestones_name(name): file for name, file in files.items()}
        self._milestones = {name: MilestonesWriter(file.append) for name, file in files.items()}
        for column in columns:
            dtype = "<i8" if column.kind == "start" else column.dtype
            self._vectors[column.name] = NpyAppender(os.path.join(folder, f"{column.name}.npy"), dtype)
            if column.kind == "value":
                name = file_format.offsets_name(column.name)
                self._vectors[name] = NpyAppender(os.path.join(folder, f"{name}.npy"))
                self._vectors[name].append(np.zeros(1))
        self._num_values = dict.fromkeys(self._vectors, 0)
        self._num_bytes = 0

    def add(self, documents: Mapping[str, Values], num_bytes: int) -> None:
        """Adds whole documents.

        Args:
          documents: values of `tokens` and of each column, by name. Values of columns of kind `start` are token indices
            relative to the first token of the document.
          num_bytes: number of UTF-8 bytes of the documents' text.
        """
        flat, sizes = documents["tokens"]
        assert sizes is not None
        begins = self._tokens.num_tokens + np.cumsum(sizes) - sizes
        self._documents.append(begins)
        self._milestones["documents"].add(begins)
        self._num_bytes += num_bytes
        for column in self._columns:
            values, counts = documents[column.name]
            if column.kind == "start" and counts is not None:
                values = values + np.repeat(begins, counts)
                self._milestones[column.name].add(values)
            if column.kind == "value" and counts is not None:
                name = file_format.offsets_name(column.name)
                self._vectors[name].append(self._num_values[column.name] + np.cumsum(counts))
            self._vectors[column.name].append(values)
            self._num_values[column.name] += len(values)
        self._tokens.add(flat)

    def close(self) -> dict[str, Any]:
        """Closes the files, syncs them to disk and returns the description of the split for the manifest."""
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
    """Writer of the tokens of a split, in records.

    Attributes:
      unigram: int64 [vocab_size], number of occurrences of each token, complete after `close`.
      checksums: CRC-32 of each block of the records, complete after `close`.
    """

    def __init__(self, folder: str, vocab_size: int):
        self._folder = folder
        self._dtype = np.dtype(tokens(vocab_size).dtype)
        self._shard: Any = None
        self._num_records = 0
        # Every record except the last consists of whole blocks.
        self.checksums = BlockChecksums(file_format.token_block_bytes(self._dtype.itemsize))
        self.unigram = np.zeros(vocab_size, np.int64)
        self._pending: list[np.ndarray] = []
        self._num_pending = 0
        self.num_tokens = 0

    def add(self, flat: np.ndarray) -> None:
        self.num_tokens += len(flat)
        self._pending.append(np.asarray(flat, self._dtype))
        self._num_pending += len(flat)
        if self._num_pending >= file_format.RECORD_TOKENS:
            self._flush(whole_records_only=True)

    def _flush(self, whole_records_only: bool) -> None:
        size, pending = file_format.RECORD_TOKENS, np.concatenate([np.zeros(0, self._dtype), *self._pending])
        end = len(pending) // size * size if whole_records_only else len(pending)
        for start in range(0, end, size):
            record = pending[start : min(start + size, end)]
            self._write(record.tobytes())
            self.unigram += np.bincount(record, minlength=len(self.unigram))
        self._pending, self._num_pending = [pending[end:].copy()], len(pending) - end

    def _write(self, data: bytes) -> None:
        shard, position = divmod(self._num_records, file_format.SHARD_RECORDS)
        if position == 0:
            from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

            self._close_shard()
            self._shard_path = os.path.join(self._folder, file_format.shard_name(shard))
            self._shard = array_record_module.ArrayRecordWriter(self._shard_path, _OPTIONS)
        self._shard.write(data)
        self._num_records += 1
        self.checksums.add(data)

    def _close_shard(self) -> None:
        if self._shard is not None:
            self._shard.close()
            with open(self._shard_path, "rb") as file:
                os.fsync(file.fileno())

    def close(self) -> None:
        self._flush(whole_records_only=False)
        self._close_shard()
        self.checksums.close()


def describe(vocab_size: int, columns: Sequence[Column], word_initial: np.ndarray, folder: str) -> dict[str, Any]:
    """Writes `word_initial.npy` into `folder`; returns the manifest fields that describe this file and the columns.

    Args:
      columns: columns of each split, except the tokens.
      word_initial: bool [vocab_size], whether a token begins a word.
    """
    checksums = save(os.path.join(folder, "word_initial.npy"), word_initial)
    return {"columns": describe_columns([tokens(vocab_size), *columns]), "word_initial": checksums.tolist()}


def publish(temporary: str, final: str, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest into the folder `temporary` and renames the folder to `final`, replacing an older cache.

    The fields with the format, the sizes and the checksum of the manifest are added to `manifest`.
    """
    with open(os.path.join(temporary, "manifest.json"), "w") as file:
        fields = {"format": file_format.FORMAT} | file_format.sizes() | dict(manifest)
        json.dump(fields | {"crc32": file_format.crc32(fields)}, file, indent=2)
        storage.sync(file)
    storage.replace_folder(temporary, final)


def upload(folder: str, remote: str, show_progress: bool = True) -> None:
    """Copies a published cache to a remote folder, replacing an older cache.

    The old manifest is removed first, and the new manifest is written last.

    Raises:
      UserError: the store is unreachable.
    """
    manifest = os.path.join(remote, "manifest.json")
    storage.remove(manifest)
    storage.remove(remote)
    paths = storage.glob(os.path.join(glob.escape(folder), "**"))
    names = [os.path.relpath(path, folder) for path in paths if not path.endswith("manifest.json")]
    storage.upload(folder, names, remote, f"uploading to {remote}" if show_progress else None)
    storage.copy(os.path.join(folder, "manifest.json"), manifest)
