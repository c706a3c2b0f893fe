"""A split of a cache, opened, and what layouts read of one."""

import abc
import functools
import threading
from typing import Any

import numpy as np
from typing_extensions import override

from plm_jax.common import storage
from plm_jax.common.errors import one_line
from plm_jax.data.cache import form
from plm_jax.data.cache import sorted_ids as rising
from plm_jax.data.cache.checked import Vectors
from plm_jax.data.cache.mirror import Folder
from plm_jax.data.cache.shards import Shard
from plm_jax.data.cache.sorted_ids import Ranged
from plm_jax.data.cache.vectors import Checksums, damaged, is_short

_OPTIONS = "readahead_buffer_size:0,index_storage_option:in_memory,footer_prefetch_bytes:0"
_OPEN_SHARDS = 32
# Who reads fewer rows of a remote file of tokens fetches these alone, else the file: a request costs about as much as
# the 64th part of one.
_FEW_ROWS = 64


class DocumentTable(abc.ABC):
    """Tokenised documents one after another, and what more is known of them in columns: what layouts read.

    Attributes:
      documents: int64 [num_documents + 1], the first token of each document, and the end.
    """

    documents: np.ndarray | Ranged
    num_documents: int
    num_tokens: int

    @abc.abstractmethod
    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop) of all documents one after another."""

    @abc.abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is a column `name` besides the tokens."""

    @abc.abstractmethod
    def column(self, name: str) -> np.ndarray | Ranged:
        """All of a column that is there, one document after another; starts count from the first document's begin."""

    @functools.cached_property
    def milestones(self) -> np.ndarray:
        """How many documents begin before each so many-th token, see `rising`."""
        return rising.milestones(self.documents, self.num_tokens)

    def span(self, document: int) -> tuple[int, int]:
        """Returns the tokens [start, stop) of a document."""
        start, stop = self.documents[document : document + 2].tolist()
        return start, stop

    def numbers(self, start: int, stop: int) -> range:
        """The documents that tokens [start, stop) are of."""
        first, last = self.documents.searchsorted((start, stop - 1), side="right").tolist()
        return range(first - 1, last)

    def search(self, extra: int = 0) -> rising.Search:
        """Finds documents by the place where they begin if each takes so many `extra` places besides its tokens."""
        return rising.Search(self.documents, self.milestones, extra)

    @property
    def sentences(self) -> np.ndarray | Ranged:
        """int64 [sentences], the first token of each."""
        return self.column("sentence_starts")

    def starts(self, name: str, start: int, stop: int) -> np.ndarray:
        """Where in tokens [start, stop) the parts begin whose first tokens a column holds."""
        column = self.column(name)
        begin, end = column.searchsorted((start, stop))
        return column[begin:end] - start


class Split(DocumentTable):
    """A split of a source, opened; safe to read from several threads.

    Short vectors are read whole, long ones by pages; of a remote cache tokens are read by range where few are wanted.
    Everything that is read is compared with its checksums.

    Attributes:
      columns: all but the tokens, by name.
    """

    def __init__(self, place: Folder, name: str, manifest: form.Manifest, cached_tokens: int, share: float = 1.0):
        """Opens it.

        Args:
          place: the source's folder, in which `name` is the split's.
          cached_tokens: about how many tokens are kept in memory.
          share: of the rows around each one that is read, how many are, too.
        """
        counts = manifest.splits[name]
        self._place, self._name, self._share, self._manifest = place, name, share, manifest
        self._vectors = Vectors(place, name, counts.blocks, counts.crc32, share)
        self._dtype = np.dtype(next(column.dtype for column in manifest.columns if column.name == "tokens"))
        self.columns = {column.name: column for column in manifest.columns if column.name != "tokens"}
        self.num_tokens, self.num_documents, self.num_bytes = counts.tokens, counts.documents, counts.bytes
        self._counts = counts
        self._num_records = -(-self.num_tokens // form.RECORD_TOKENS)
        self._lock = threading.Lock()
        self._vector = functools.cache(self._load)
        self._reader = functools.lru_cache(_OPEN_SHARDS)(self._open_shard)
        self._record = functools.lru_cache(max(2, -(-cached_tokens // form.RECORD_TOKENS)))(self._read)
        self.documents = self._vector("documents")
        if self.documents[0] != 0 or self.documents[-1] != self.num_tokens:
            raise damaged(self._vectors.path("documents"), "does not span the tokens")

    @functools.cached_property
    @override
    def milestones(self) -> np.ndarray:
        return self._milestones("documents")

    def _milestones(self, name: str) -> np.ndarray:
        """Returns the milestones of a sorted vector."""
        milestones = form.milestones_name(name)
        return self._vectors.whole(milestones, *self._shape(milestones))

    def _shape(self, name: str) -> tuple[int, str, int | None]:
        """A vector's length and type, and up to which its numbers rise; None: they need not."""
        of, _, what = name.rpartition(".")
        if name == "documents":
            return self.num_documents + 1, "<i8", self.num_tokens
        if name == "unigram":
            return self._manifest.vocabulary.size, "<i8", None
        if what == "milestones":
            most = self.num_documents + 1 if of == "documents" else self._counts.sizes[of]
            return -(-self.num_tokens // form.MILESTONE_TOKENS) + 1, "<i8", most
        if what == "offsets":
            return self.num_documents + 1, "<i8", self._counts.sizes[of]
        if self.columns[name].kind == "start":
            return self._counts.sizes[name], "<i8", self.num_tokens
        return self._counts.sizes[name], self.columns[name].dtype, None

    def _load(self, name: str) -> np.ndarray | Ranged:
        """A vector of the split."""
        length, dtype, limit = self._shape(name)
        is_long = not is_short(length * np.dtype(dtype).itemsize)
        is_start = name == "documents" or (name in self.columns and self.columns[name].kind == "start")
        milestones = self._milestones(name) if is_long and is_start else None
        return self._vectors.open(name, length, dtype, limit, milestones)

    def check(self) -> None:
        """Looks at every vector, of long ones at both ends; sees that all files of tokens are in the folder; opens the
        first and the last of them.

        There may be many: what is not looked at is checked when it is read.

        Raises:
          UserError: one is missing or damaged.
        """
        for name in self._names():
            found = self._load(name)  # Kept only where it is asked for.
            if isinstance(found, Ranged):
                found[-1]
        shards = range(-(-self._num_records // form.SHARD_RECORDS))
        names = set(storage.names(self._place(self._name)))
        for shard in shards:
            if form.shard_name(shard) not in names:
                raise damaged(self._place(self._name, form.shard_name(shard)), "is missing")
        for shard in {*shards[:1], *shards[-1:]}:
            self._open_shard(shard)

    def verify(self) -> None:
        """Reads every file to its end.

        Raises:
          UserError: one is missing or damaged.
        """
        self._vectors.verified_checksums()
        for name in self._names():
            self._vectors.whole(name, *self._shape(name))
        for index in range(self._num_records):
            self._read(index, check_all=True)

    def _names(self) -> list[str]:
        """Those of all vectors."""
        offsets = [form.offsets_name(name) for name, column in self.columns.items() if column.kind == "value"]
        starts = ["documents", *(name for name, column in self.columns.items() if column.kind == "start")]
        return ["documents", *self.columns, *offsets, *map(form.milestones_name, starts), "unigram"]

    @override
    def has(self, name: str) -> bool:
        return name in self.columns

    @override
    def column(self, name: str) -> np.ndarray | Ranged:
        return self._vector(name)

    def of_document(self, name: str, number: int) -> np.ndarray:
        """A column's values of one document; of kind `document` a single one, of `start` counted from its begin."""
        kind, (start, stop) = self.columns[name].kind, self.span(number)
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
        found = np.asarray(self._vector("unigram"))
        if found.min(initial=0) < 0 or found.sum() != self.num_tokens:
            raise damaged(self._vectors.path("unigram"), "its counts are not those of the tokens")
        return found

    def _open_shard(self, shard: int) -> Any:
        expected = min(form.SHARD_RECORDS, self._num_records - shard * form.SHARD_RECORDS)
        # Not at the top: settings of layouts are read where the library is missing.
        from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

        path = self._place(self._name, form.shard_name(shard))
        try:
            reader = array_record_module.ArrayRecordReader(path, _OPTIONS)
            found = reader.num_records()
        except (RuntimeError, ValueError) as error:
            raise damaged(path, one_line(error)) from error
        if found != expected:
            raise damaged(path, f"has {found} records, not {expected}")
        return reader

    @override
    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop) of all documents one after another, in the stored type, read-only."""
        if stop <= start:
            return np.zeros(0, self._dtype)
        size = form.RECORD_TOKENS
        rows = self._share * size * form.SHARD_RECORDS / (stop - start)
        if self._place.is_remote and self._share <= 0.5 and rows < _FEW_ROWS:
            return np.frombuffer(self._fetch(start, stop), self._dtype)
        first, last = start // size, (stop - 1) // size
        with self._lock:
            records = [self._record(r) for r in range(first, last + 1)]
        joined = records[0] if first == last else np.concatenate(records)
        return joined[start - first * size : stop - first * size]

    @property
    def _token_checksums(self) -> Checksums:
        return self._vectors.checksums("tokens", form.token_block_bytes(self._dtype.itemsize))

    def _fetch(self, start: int, stop: int) -> bytes:
        """The bytes of tokens [start, stop) of a remote split, of which no copy is kept."""
        shard, item, parts = form.RECORD_TOKENS * form.SHARD_RECORDS, self._dtype.itemsize, []
        for number in range(start // shard, (stop - 1) // shard + 1):
            first = number * shard
            size = min(shard, self.num_tokens - first) * item
            wanted = max(start - first, 0) * item, min(stop - first, shard) * item
            parts.append(self._fetch_of_shard(number, *wanted, size))
        return b"".join(parts)

    def _fetch_of_shard(self, number: int, begin: int, end: int, size: int) -> bytes:
        """Bytes [begin, end) of the `size` bytes of tokens in a remote file, and in one with what is checked."""
        name, checksums, item = form.shard_name(number), self._token_checksums, self._dtype.itemsize
        shard = Shard(lambda *bounds: self._place.read(*bounds, self._name, name), form.RECORD_TOKENS * item, size)
        try:
            first, last = checksums.covering(begin, end, size)
            data = shard.read(first, last)
        except ValueError as error:
            raise damaged(self._place.origin(self._name, name), one_line(error)) from error
        if not checksums.are(number * form.SHARD_RECORDS * shard.record_bytes + first, data):
            raise damaged(self._place.origin(self._name, name), "its bytes have changed")
        return data[begin - first : end - first]

    def _read(self, index: int, check_all: bool = False) -> np.ndarray:
        """A record, which ArrayRecord compares with a hash of its own."""
        shard, place = divmod(index, form.SHARD_RECORDS)
        reader, path = self._reader(shard), self._place(self._name, form.shard_name(shard))
        try:
            (data,) = reader.read([place])
        except (RuntimeError, ValueError, IndexError) as error:
            raise damaged(path, one_line(error)) from error
        size = form.RECORD_TOKENS * self._dtype.itemsize
        if len(data) != min(size, self.num_tokens * self._dtype.itemsize - index * size):
            raise damaged(path, f"record {place} has the wrong size")
        # That the record is whole its hash has told; that it is this one, its ends do, and in a `verify` all of it.
        checksums, end = self._token_checksums, len(data)
        block = checksums.block_bytes
        parts = [(0, end)] if check_all else [(0, min(block, end)), ((end - 1) // block * block, end)]
        if not all(checksums.are(index * size + first, data[first:last]) for first, last in parts):
            raise damaged(path, "its bytes have changed")
        return np.frombuffer(data, self._dtype)
