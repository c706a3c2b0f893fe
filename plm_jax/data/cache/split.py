"""A split of a cache, opened, and what layouts read of one."""

import abc
import functools
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from array_record.python import array_record_module

from plm_jax.common.errors import one_line
from plm_jax.data.cache import form
from plm_jax.data.cache.columns import Column
from plm_jax.data.cache.vectors import damaged, load

_OPTIONS = "readahead_buffer_size:0,index_storage_option:in_memory,footer_prefetch_bytes:0"
_OPEN_SHARDS = 32


class Documents(abc.ABC):
    """Tokenised documents one after another, and what more is known of them in columns: what layouts read.

    Attributes:
      documents: int64 [num_documents + 1], the first token of each document, and the end.
    """

    documents: np.ndarray
    num_documents: int
    num_tokens: int

    @abc.abstractmethod
    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop) of all documents one after another."""

    @abc.abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is a column `name` besides the tokens."""

    @abc.abstractmethod
    def column(self, name: str) -> np.ndarray:
        """All of a column that is there, one document after another; starts count from the first document's begin."""

    @property
    def sentences(self) -> np.ndarray:
        """int64 [sentences], the first token of each."""
        return self.column("sentence_starts")

    def starts(self, name: str, start: int, stop: int) -> np.ndarray:
        """Where in tokens [start, stop) the parts begin whose first tokens a column holds."""
        column = self.column(name)
        begin, end = column.searchsorted((start, stop))
        return column[begin:end] - start


class Split(Documents):
    """A split of a source, opened; safe to read from several threads. Vectors are memory-mapped.

    Attributes:
      columns: all but the tokens, by name.
    """

    def __init__(
        self,
        locate: Callable[[str], str],
        counts: Mapping[str, Any],
        columns: Sequence[Column],
        vocab_size: int,
        cached_tokens: int,
        files: Mapping[str, str] | None = None,
    ):
        """Opens it.

        Args:
          locate: gives the local path of a file of the split.
          counts: what the manifest says of it.
          columns: the tokens and all others.
          cached_tokens: about how many tokens are kept in memory.
          files: of columns in files of another name, that.
        """
        self._locate = locate
        self._dtype = np.dtype(next(column.dtype for column in columns if column.name == "tokens"))
        self._vocab_size = vocab_size
        self.columns = {column.name: column for column in columns if column.name != "tokens"}
        self.num_tokens, self.num_documents, self.num_bytes = (counts[k] for k in ("tokens", "documents", "bytes"))
        self._sizes, self._blocks, self._files = counts["sizes"], counts.get("blocks"), files or {}
        self._crc32 = counts.get("crc32")
        self._num_records = -(-self.num_tokens // form.RECORD_TOKENS)
        self._lock = threading.Lock()
        self._vector = functools.cache(self._load)
        self._reader = functools.lru_cache(_OPEN_SHARDS)(self._open_shard)
        self._record = functools.lru_cache(max(2, -(-cached_tokens // form.RECORD_TOKENS)))(self._read)
        self.documents = self._vector("documents")
        if self.documents[0] != 0 or self.documents[-1] != self.num_tokens:
            raise damaged(locate("documents.npy"), "does not span the tokens")

    @functools.cached_property
    def _checksums(self) -> dict[str, np.ndarray]:
        """Of each file the CRC-32 of its blocks; none of an old cache."""
        if self._blocks is None:
            return {}
        path = self._locate(form.CHECKSUMS)
        found = load(path, sum(self._blocks.values()), np.uint32)
        if zlib.crc32(found.tobytes()) != self._crc32:
            raise damaged(path, "its bytes have changed")
        return dict(zip(self._blocks, np.split(found, np.cumsum(list(self._blocks.values()))[:-1]), strict=True))

    def _length_and_dtype(self, name: str) -> tuple[int, str]:
        known = {"documents": (self.num_documents + 1, "<i8"), "unigram": (self._vocab_size, "<i8")}
        if name in known:
            return known[name]
        if name not in self.columns:
            return self.num_documents + 1, "<i8"  # The offsets of a column.
        column = self.columns[name]
        return self._sizes[name], "<i8" if column.kind == "start" else column.dtype

    def _load(self, name: str, check_all: bool = False) -> np.ndarray:
        """A vector of the split; a short one is checked."""
        path = self._locate(f"{self._files.get(name, name)}.npy")
        checksums = self._checksums.get(name)
        found = None if checksums is None else checksums.tolist()
        return load(path, *self._length_and_dtype(name), found, check_all)

    def check(self) -> None:
        """Opens every file once.

        Raises:
          UserError: one is missing or damaged.
        """
        for name in self._vectors():
            self._vector(name)
        for shard in range(-(-self._num_records // form.SHARD_RECORDS)):
            self._open_shard(shard)

    def verify(self) -> None:
        """Reads every file to its end.

        Raises:
          UserError: one is missing or damaged.
        """
        for name in self._vectors():
            self._load(name, check_all=True)
        for index, crc32 in enumerate(self._checksums.get("tokens", [])):
            if zlib.crc32(self._read(index)) != crc32:
                raise damaged(self._locate(form.shard_name(index // form.SHARD_RECORDS)), "its bytes have changed")

    def _vectors(self) -> list[str]:
        offsets = [form.offsets_name(name) for name, column in self.columns.items() if column.kind == "value"]
        return ["documents", *self.columns, *offsets, "unigram"]

    def has(self, name: str) -> bool:
        """See `Documents.has`."""
        return name in self.columns

    def column(self, name: str) -> np.ndarray:
        """See `Documents.column`."""
        return self._vector(name)

    def of_document(self, name: str, number: int) -> np.ndarray:
        """A column's values of one document; of kind `document` a single one, of `start` counted from its begin."""
        kind, (start, stop) = self.columns[name].kind, self.documents[number : number + 2].tolist()
        if kind == "start":
            return self.starts(name, start, stop)
        if kind == "document":
            return self._vector(name)[number]
        if kind == "value":
            start, stop = self._vector(form.offsets_name(name))[number : number + 2].tolist()
        return self._vector(name)[start:stop]

    @property
    def unigram(self) -> np.ndarray:
        """int64 [vocab_size]: how often each token occurs."""
        return self._vector("unigram")

    def _open_shard(self, shard: int) -> Any:
        expected = min(form.SHARD_RECORDS, self._num_records - shard * form.SHARD_RECORDS)
        path = self._locate(form.shard_name(shard))
        try:
            reader = array_record_module.ArrayRecordReader(path, _OPTIONS)
            found = reader.num_records()
        except (RuntimeError, ValueError) as error:
            raise damaged(path, one_line(error)) from error
        if found != expected:
            raise damaged(path, f"has {found} records, not {expected}")
        return reader

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop) of all documents one after another, in the stored type, read-only."""
        if stop <= start:
            return np.zeros(0, self._dtype)
        size = form.RECORD_TOKENS
        first, last = start // size, (stop - 1) // size
        with self._lock:
            records = [self._record(r) for r in range(first, last + 1)]
        joined = records[0] if first == last else np.concatenate(records)
        return joined[start - first * size : stop - first * size]

    def _read(self, index: int) -> np.ndarray:
        """A record, which ArrayRecord checks against a hash of its own."""
        shard, place = divmod(index, form.SHARD_RECORDS)
        reader = self._reader(shard)
        try:
            (data,) = reader.read([place])
        except (RuntimeError, ValueError, IndexError) as error:
            raise damaged(self._locate(form.shard_name(shard)), one_line(error)) from error
        expected = min(form.RECORD_TOKENS, self.num_tokens - index * form.RECORD_TOKENS)
        if len(data) != expected * self._dtype.itemsize:
            raise damaged(self._locate(form.shard_name(shard)), f"record {place} has the wrong size")
        return np.frombuffer(data, self._dtype)
