"""Opened split of a cache, and the interface through which layouts read documents."""

import abc
import functools
import threading
from typing import Any

import numpy as np
from typing_extensions import override

from plm_jax.common import storage
from plm_jax.common.errors import one_line
from plm_jax.data.cache import file_format, sorted_ids
from plm_jax.data.cache.checked import Vectors
from plm_jax.data.cache.mirror import Folder
from plm_jax.data.cache.shards import Shard
from plm_jax.data.cache.sorted_ids import PagedVector
from plm_jax.data.cache.vectors import Checksums, damaged, is_short

_OPTIONS = "readahead_buffer_size:0,index_storage_option:in_memory,footer_prefetch_bytes:0"
_OPEN_SHARDS = 32
# If a process reads fewer rows than this from a remote file of tokens, it fetches only these rows. If it reads more, it
# fetches the whole file: a request takes about as long as fetching a 64th of a file.
_FEW_ROWS = 64


class DocumentTable(abc.ABC):
    """Interface of tokenized documents with columns, which layouts read.

    Attributes:
      documents: int64 [num_documents + 1], index of the first token of each document, followed by the number of tokens.
    """

    documents: np.ndarray | PagedVector
    num_documents: int
    num_tokens: int

    @abc.abstractmethod
    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Returns tokens [start, stop) of the concatenated documents."""

    @abc.abstractmethod
    def has(self, name: str) -> bool:
        """Returns whether the documents have a column `name`; the tokens do not count as a column."""

    @abc.abstractmethod
    def column(self, name: str) -> np.ndarray | PagedVector:
        """Returns the values of all documents in a column.

        Values of the kind `start` are counted from the first token of the first document.
        """

    @functools.cached_property
    def milestones(self) -> np.ndarray:
        """Milestones of `documents` (`sorted_ids.milestones`), which make searches faster."""
        return sorted_ids.milestones(self.documents, self.num_tokens)

    def span(self, document: int) -> tuple[int, int]:
        """Returns the span [start, stop) of a document's tokens."""
        start, stop = self.documents[document : document + 2].tolist()
        return start, stop

    def numbers(self, start: int, stop: int) -> range:
        """Returns the range of the documents that contain the tokens [start, stop)."""
        first, last = self.documents.searchsorted((start, stop - 1), side="right").tolist()
        return range(first - 1, last)

    def search(self, extra: int = 0) -> sorted_ids.Search:
        """Returns a `Search` that counts the documents that begin at or before a position.

        Args:
          extra: number of positions that each document occupies in addition to its tokens, such as 1 for a separator.
        """
        return sorted_ids.Search(self.documents, self.milestones, extra)

    @property
    def sentences(self) -> np.ndarray | PagedVector:
        """Index of the first token of each sentence, int64 [num_sentences]."""
        return self.column("sentence_starts")

    def starts(self, name: str, start: int, stop: int) -> np.ndarray:
        """Returns the starts of sentences or words among the tokens [start, stop), counted from `start`.

        Args:
          name: column that has the starts, such as `word_starts`.
        """
        column = self.column(name)
        begin, end = column.searchsorted((start, stop))
        return column[begin:end] - start


class Split(DocumentTable):
    """Opened split of a source; can be read from several threads.

    Short vectors are read whole, and long vectors page by page. If this process reads only a small share of a remote
    cache, tokens are fetched by range. Tokens and vectors are compared with their checksums when they are read.

    Attributes:
      columns: columns except the tokens, by name.
      num_bytes: number of UTF-8 bytes of the documents' text.
    """

    def __init__(self, root: Folder, name: str, manifest: file_format.Manifest, cached_tokens: int, share: float = 1.0):
        """Opens the split.

        Args:
          root: folder of the source's cache, which contains the folder `name` of the split.
          cached_tokens: approximate number of tokens that are held in memory.
          share: share of the rows of a batch that this process reads, between 0 and 1.

        Raises:
          UserError: the file of the starts of documents is missing or damaged.
        """
        counts = manifest.splits[name]
        self._root, self._name, self._share, self._manifest = root, name, share, manifest
        self._vectors = Vectors(root, name, counts.blocks, counts.crc32, share)
        self._dtype = np.dtype(next(column.dtype for column in manifest.columns if column.name == "tokens"))
        self.columns = {column.name: column for column in manifest.columns if column.name != "tokens"}
        self.num_tokens, self.num_documents, self.num_bytes = counts.tokens, counts.documents, counts.bytes
        self._counts = counts
        self._num_records = -(-self.num_tokens // file_format.RECORD_TOKENS)
        self._lock = threading.Lock()
        self._vector = functools.cache(self._load)
        self._reader = functools.lru_cache(_OPEN_SHARDS)(self._open_shard)
        self._record = functools.lru_cache(max(2, -(-cached_tokens // file_format.RECORD_TOKENS)))(self._read)
        self.documents = self._vector("documents")
        if self.documents[0] != 0 or self.documents[-1] != self.num_tokens:
            raise damaged(self._vectors.path("documents"), "does not span the tokens")

    @functools.cached_property
    @override
    def milestones(self) -> np.ndarray:
        return self._milestones("documents")

    def _milestones(self, name: str) -> np.ndarray:
        """Returns the milestones of a sorted vector."""
        milestones = file_format.milestones_name(name)
        return self._vectors.whole(milestones, *self._shape(milestones))

    def _shape(self, name: str) -> tuple[int, str, int | None]:
        """Returns the length, dtype and maximum of a vector; the maximum is None if the vector need not be sorted."""
        vector, _, suffix = name.rpartition(".")
        if name == "documents":
            return self.num_documents + 1, "<i8", self.num_tokens
        if name == "unigram":
            return self._manifest.vocabulary.size, "<i8", None
        if suffix == "milestones":
            maximum = self.num_documents + 1 if vector == "documents" else self._counts.sizes[vector]
            return -(-self.num_tokens // file_format.MILESTONE_TOKENS) + 1, "<i8", maximum
        if suffix == "offsets":
            return self.num_documents + 1, "<i8", self._counts.sizes[vector]
        if self.columns[name].kind == "start":
            return self._counts.sizes[name], "<i8", self.num_tokens
        return self._counts.sizes[name], self.columns[name].dtype, None

    def _load(self, name: str) -> np.ndarray | PagedVector:
        """Opens a vector of the split."""
        length, dtype, limit = self._shape(name)
        is_long = not is_short(length * np.dtype(dtype).itemsize)
        is_start = name == "documents" or (name in self.columns and self.columns[name].kind == "start")
        milestones = self._milestones(name) if is_long and is_start else None
        return self._vectors.open(name, length, dtype, limit, milestones)

    def check(self) -> None:
        """Checks the files of the split without reading all of them.

        Reads short vectors whole, and the header and the last page of long vectors. Lists the token files and opens the
        first and the last token file. Everything else is checked when it is read.

        Raises:
          UserError: a file is missing or damaged.
        """
        for name in self._names():
            vector = self._load(name)  # Not cached, because it may not be used.
            if isinstance(vector, PagedVector):
                vector[-1]
        shards = range(-(-self._num_records // file_format.SHARD_RECORDS))
        names = set(storage.names(self._root(self._name)))
        for shard in shards:
            if file_format.shard_name(shard) not in names:
                raise damaged(self._root(self._name, file_format.shard_name(shard)), "is missing")
        for shard in {*shards[:1], *shards[-1:]}:
            self._open_shard(shard)

    def verify(self) -> None:
        """Reads and checks all files of the split.

        Raises:
          UserError: a file is missing or damaged.
        """
        self._vectors.verified_checksums()
        for name in self._names():
            self._vectors.whole(name, *self._shape(name))
        for index in range(self._num_records):
            self._read(index, check_all=True)

    def _names(self) -> list[str]:
        """Returns the names of all vectors."""
        offsets = [file_format.offsets_name(name) for name, column in self.columns.items() if column.kind == "value"]
        starts = ["documents", *(name for name, column in self.columns.items() if column.kind == "start")]
        return ["documents", *self.columns, *offsets, *map(file_format.milestones_name, starts), "unigram"]

    @override
    def has(self, name: str) -> bool:
        return name in self.columns

    @override
    def column(self, name: str) -> np.ndarray | PagedVector:
        return self._vector(name)

    def of_document(self, name: str, number: int) -> np.ndarray:
        """Returns the values of a column for one document.

        A column of the kind `document` has a single value. Values of the kind `start` are counted from the document's
        first token.
        """
        kind, (start, stop) = self.columns[name].kind, self.span(number)
        if kind == "start":
            return self.starts(name, start, stop)
        if kind == "document":
            return self._vector(name)[number]
        if kind == "value":
            start, stop = self._vector(file_format.offsets_name(name))[number : number + 2].tolist()
        return self._vector(name)[start:stop]

    @property
    def unigram(self) -> np.ndarray:
        """Number of occurrences of each token, int64 [vocab_size]; raises `UserError` if the file is damaged."""
        counts = np.asarray(self._vector("unigram"))
        if counts.min(initial=0) < 0 or counts.sum() != self.num_tokens:
            raise damaged(self._vectors.path("unigram"), "its counts do not add up to the number of tokens")
        return counts

    def _open_shard(self, shard: int) -> Any:
        expected = min(file_format.SHARD_RECORDS, self._num_records - shard * file_format.SHARD_RECORDS)
        # Imported here because settings of layouts are also read on machines without this library.
        from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

        path = self._root(self._name, file_format.shard_name(shard))
        try:
            reader = array_record_module.ArrayRecordReader(path, _OPTIONS)
            num_records = reader.num_records()
        except (RuntimeError, ValueError) as error:
            raise damaged(path, one_line(error)) from error
        if num_records != expected:
            raise damaged(path, f"has {num_records} records, not {expected}")
        return reader

    @override
    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Returns tokens [start, stop) of the concatenated documents, in the stored type; the array may be read-only.

        Raises:
          UserError: a token file is missing or damaged.
        """
        if stop <= start:
            return np.zeros(0, self._dtype)
        size = file_format.RECORD_TOKENS
        rows = self._share * size * file_format.SHARD_RECORDS / (stop - start)
        if self._root.is_remote and self._share <= 0.5 and rows < _FEW_ROWS:
            return np.frombuffer(self._fetch(start, stop), self._dtype)
        first, last = start // size, (stop - 1) // size
        with self._lock:
            records = [self._record(r) for r in range(first, last + 1)]
        joined = records[0] if first == last else np.concatenate(records)
        return joined[start - first * size : stop - first * size]

    @property
    def _token_checksums(self) -> Checksums:
        return self._vectors.checksums("tokens", file_format.token_block_bytes(self._dtype.itemsize))

    def _fetch(self, start: int, stop: int) -> bytes:
        """Fetches the bytes of tokens [start, stop) of a remote split, without copying files."""
        shard, item, parts = file_format.RECORD_TOKENS * file_format.SHARD_RECORDS, self._dtype.itemsize, []
        for number in range(start // shard, (stop - 1) // shard + 1):
            first = number * shard
            size = min(shard, self.num_tokens - first) * item
            bounds = max(start - first, 0) * item, min(stop - first, shard) * item
            parts.append(self._fetch_of_shard(number, *bounds, size))
        return b"".join(parts)

    def _fetch_of_shard(self, number: int, begin: int, end: int, size: int) -> bytes:
        """Fetches and checks bytes [begin, end) of the tokens in a remote file.

        Args:
          number: index of the file.
          size: number of bytes of all tokens in the file.
        """
        name, checksums, item = file_format.shard_name(number), self._token_checksums, self._dtype.itemsize
        shard = Shard(
            lambda *bounds: self._root.read(*bounds, self._name, name), file_format.RECORD_TOKENS * item, size
        )
        try:
            first, last = checksums.covering(begin, end, size)
            data = shard.read(first, last)
        except ValueError as error:
            raise damaged(self._root.origin(self._name, name), one_line(error)) from error
        if not checksums.match(number * file_format.SHARD_RECORDS * shard.record_bytes + first, data):
            raise damaged(self._root.origin(self._name, name), "its bytes have changed")
        return data[begin - first : end - first]

    def _read(self, index: int, check_all: bool = False) -> np.ndarray:
        """Reads a record and compares its first and last block (with `check_all`, every block) with their checksums."""
        shard, position = divmod(index, file_format.SHARD_RECORDS)
        reader, path = self._reader(shard), self._root(self._name, file_format.shard_name(shard))
        try:
            (data,) = reader.read([position])
        except (RuntimeError, ValueError, IndexError) as error:
            raise damaged(path, one_line(error)) from error
        size = file_format.RECORD_TOKENS * self._dtype.itemsize
        if len(data) != min(size, self.num_tokens * self._dtype.itemsize - index * size):
            raise damaged(path, f"record {position} has the wrong size")
        # ArrayRecord has compared the record with its hash. The checksums show that it is the right record.
        checksums, end = self._token_checksums, len(data)
        block = checksums.block_bytes
        parts = [(0, end)] if check_all else [(0, min(block, end)), ((end - 1) // block * block, end)]
        if not all(checksums.match(index * size + first, data[first:last]) for first, last in parts):
            raise damaged(path, "its bytes have changed")
        return np.frombuffer(data, self._dtype)
