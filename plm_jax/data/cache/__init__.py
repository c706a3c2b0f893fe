"""The cache of tokenised documents: what `prepare` writes and the trainer reads.

    CACHE_DIR/SOURCE/manifest.json         format, identity, source, vocabulary, dtype, counts of each split
    CACHE_DIR/SOURCE/files.json            of which files it was made, see `origins`
    CACHE_DIR/SOURCE/word_initial.npy      bool [vocab_size]: whether a token begins a word
    CACHE_DIR/SOURCE/SPLIT/tokens-00000.array_record, …   the tokens of all documents, RECORD_TOKENS a record,
                                           SHARD_RECORDS records a file
    CACHE_DIR/SOURCE/SPLIT/documents.npy   int64 [documents + 1]: first token of each document, and the end
    CACHE_DIR/SOURCE/SPLIT/first_bytes.npy int32 [documents]: UTF-8 bytes of each document's first token
    CACHE_DIR/SOURCE/SPLIT/sentences.npy   int64 [sentences]: first token of each sentence
    CACHE_DIR/SOURCE/SPLIT/words.npy       int64 [words]: first token of each word, of a source with a segmenter alone
    CACHE_DIR/SOURCE/SPLIT/unigram.npy     int64 [vocab_size]: how often each token occurs

Documents hold no special tokens. Where the manifest says `has_examples`, a document is an example, and its sentences
are two, its inputs and its targets; either may have no tokens. Records are read through a small cache, the .npy files
are memory-mapped and a few token files are open at once, so memory does not grow with the corpus. Of a remote cache
each file is fetched when it is first read (`Mirror`), so that the disk need not hold the corpus either. NumPy and
array_record only.
"""

import abc
import contextlib
import functools
import glob
import itertools
import json
import os
import threading
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from array_record.python import array_record_module

from plm_jax.common import storage
from plm_jax.common.errors import UserError, one_line

FORMAT = 3
RECORD_TOKENS = 2**15
SHARD_RECORDS = 64
SPLITS = ("train", "validation")
_WRITER_OPTIONS = "group_size:1,uncompressed"
_READER_OPTIONS = "readahead_buffer_size:0,index_storage_option:in_memory,footer_prefetch_bytes:0"
_OPEN_SHARDS = 32
# How much of the disk the token files of remote caches may take together, and how many fetches go between two looks.
_MIRROR_BYTES = 2**35
_MIRROR_FETCHES = 64


def dtype_for(vocab_size: int) -> np.dtype:
    """The type of stored tokens: uint16 where it holds every id, else uint32; little-endian."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def shard_name(number: int) -> str:
    """The file of a split's records from `number * SHARD_RECORDS` on."""
    return f"tokens-{number:05d}.array_record"


class NpyAppender:
    """Writes a vector of unknown length to a .npy file, piece by piece.

    Attributes:
      crc32: that of the values' bytes so far.
    """

    def __init__(self, path: str, dtype: Any = "<i8"):
        self._dtype = np.dtype(dtype)
        self.crc32 = 0
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115 (closed in close)
        self._length = 0
        self._write_header()

    def _write_header(self) -> None:
        """NumPy leaves room in the header for the first axis to grow, so it can be rewritten in place."""
        self._file.seek(0)
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._length,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values: np.ndarray) -> None:
        """Adds `values` [n]."""
        data = np.ascontiguousarray(values, self._dtype).data
        self._file.write(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        self._length += len(values)

    def close(self) -> int:
        """Ends the file and gives its length."""
        self._write_header()
        storage.sync(self._file)
        self._file.close()
        return self._length


class SplitWriter:
    """Writes one split's files into `folder`, which it makes."""

    def __init__(self, folder: str, vocab_size: int, has_words: bool = False):
        os.makedirs(folder)
        self._folder = folder
        self._dtype = dtype_for(vocab_size)
        self._shard: Any = None
        self._num_records = 0
        self._documents = NpyAppender(os.path.join(folder, "documents.npy"))
        self._first_bytes = NpyAppender(os.path.join(folder, "first_bytes.npy"), "<i4")
        self._sentences = NpyAppender(os.path.join(folder, "sentences.npy"))
        self._words = NpyAppender(os.path.join(folder, "words.npy")) if has_words else None
        self._unigram = np.zeros(vocab_size, np.int64)
        self._pending: list[np.ndarray] = []
        self._num_pending = 0
        self._num_tokens = 0
        self._num_bytes = 0

    def add(
        self,
        tokens: np.ndarray,
        documents: np.ndarray,
        sentences: np.ndarray,
        num_bytes: int,
        first_bytes: Sequence[int],
        words: Sequence[int] = (),
    ) -> None:
        """Adds whole documents.

        Args:
          tokens: [n], the documents one after another.
          documents, sentences, words: where in `tokens` each begins; words where the split has them.
          num_bytes: of their text in UTF-8.
          first_bytes: of each document, how many of them are its first token's.
        """
        self._documents.append(np.asarray(documents, np.int64) + self._num_tokens)
        self._first_bytes.append(np.asarray(first_bytes))
        self._sentences.append(np.asarray(sentences, np.int64) + self._num_tokens)
        if self._words is not None:
            self._words.append(np.asarray(words, np.int64) + self._num_tokens)
        self._num_tokens += len(tokens)
        self._num_bytes += num_bytes
        self._pending.append(np.asarray(tokens, self._dtype))
        self._num_pending += len(tokens)
        if self._num_pending >= RECORD_TOKENS:
            self._flush(whole_records_only=True)

    def _flush(self, whole_records_only: bool) -> None:
        tokens = np.concatenate([np.zeros(0, self._dtype), *self._pending])
        end = len(tokens) // RECORD_TOKENS * RECORD_TOKENS if whole_records_only else len(tokens)
        for start in range(0, end, RECORD_TOKENS):
            record = tokens[start : min(start + RECORD_TOKENS, end)]
            self._write_record(record.tobytes())
            self._unigram += np.bincount(record, minlength=len(self._unigram))
        self._pending, self._num_pending = [tokens[end:].copy()], len(tokens) - end

    def _write_record(self, data: bytes) -> None:
        shard, place = divmod(self._num_records, SHARD_RECORDS)
        if place == 0:
            self._close_shard()
            self._shard_path = os.path.join(self._folder, shard_name(shard))
            self._shard = array_record_module.ArrayRecordWriter(self._shard_path, _WRITER_OPTIONS)
        self._shard.write(data)
        self._num_records += 1

    def _close_shard(self) -> None:
        if self._shard is not None:
            self._shard.close()
            with open(self._shard_path, "rb") as file:
                os.fsync(file.fileno())

    def close(self) -> dict[str, int]:
        """Ends the files, syncs them to disk and gives what the manifest says of the split."""
        self._flush(whole_records_only=False)
        self._close_shard()
        self._documents.append(np.array([self._num_tokens]))
        documents, sentences = self._documents.close() - 1, self._sentences.close()
        self._first_bytes.close()
        save(os.path.join(self._folder, "unigram.npy"), self._unigram)
        return {
            "documents": documents,
            "sentences": sentences,
            "tokens": self._num_tokens,
            "bytes": self._num_bytes,
            **({} if self._words is None else {"words": self._words.close()}),
        }


def save(path: str, array: np.ndarray) -> None:
    """Writes a .npy file and syncs it."""
    with open(path, "wb") as file:
        np.save(file, array)
        storage.sync(file)


def publish(temporary: str, final: str, manifest: dict[str, Any]) -> None:
    """Writes the manifest, last of all, and renames the folder to `final`, replacing what is there."""
    with open(os.path.join(temporary, "manifest.json"), "w") as file:
        sizes = {"format": FORMAT, "record_tokens": RECORD_TOKENS, "shard_records": SHARD_RECORDS}
        json.dump(sizes | manifest, file, indent=2)
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


class Mirror:
    """Local copies of the files of a remote cache, fetched when they are first asked for, for all of this machine.

    The token files that were not read for longest go when those of all caches take more than `_MIRROR_BYTES`.
    """

    def __init__(self, remote: str, identity: str):
        self.folder = storage.cache_folder("mirror", identity)
        self._remote, self._identity = remote, identity
        self._fetches = itertools.count()

    def __call__(self, *names: str) -> str:
        """The local path of a file of the cache.

        Raises:
          UserError: it cannot be fetched, or another cache has taken the place of this one.
        """
        path = os.path.join(self.folder, *names)
        try:
            os.utime(path)
        except FileNotFoundError:
            self._fetch(names, path)
        return path

    def _fetch(self, names: tuple[str, ...], path: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = f"{path}.{uuid.uuid4().hex}"
        try:
            storage.download(os.path.join(self._remote, *names), temporary)
            # Whoever replaces a cache removes its manifest first: what is fetched while this one stands is of this one.
            if read_manifest(self._remote)["identity"] != self._identity:
                raise UserError(f"another cache has taken the place of {self._remote}: start again")
            os.replace(temporary, path)
        finally:
            storage.remove(temporary)
        if next(self._fetches) % _MIRROR_FETCHES == 0:
            prune(storage.cache_folder("mirror"), _MIRROR_BYTES)


def prune(folder: str, limit: int) -> None:
    """Removes the token files below `folder` that were not read for longest while all have more than `limit` bytes."""
    shards = []
    for path in glob.iglob(os.path.join(glob.escape(folder), "*", "*", "tokens-*")):
        with contextlib.suppress(FileNotFoundError):  # Other processes prune too.
            stat = os.stat(path)
            shards.append((stat.st_mtime_ns, stat.st_size, path))
    total = sum(size for _, size, _ in shards)
    for _, size, path in sorted(shards)[:-1]:
        if total <= limit:
            break
        storage.remove(path)
        total -= size


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
        """Whether there is a column `name`."""

    @abc.abstractmethod
    def column(self, name: str) -> np.ndarray:
        """All of a column that is there."""

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
    """A split of a source, opened; safe to read from several threads.

    Attributes:
      documents: int64 [num_documents + 1], memory-mapped.
      has_words: whether it says where words begin.
    """

    def __init__(
        self, locate: Callable[[str], str], counts: dict[str, int], dtype: np.dtype, vocab_size: int, cached_tokens: int
    ):
        """`locate` gives the local path of a file of the split."""
        self._locate = locate
        self._dtype = dtype
        self._vocab_size = vocab_size
        self.num_tokens, self.num_documents, self.num_bytes, self._num_sentences = (
            counts[k] for k in ("tokens", "documents", "bytes", "sentences")
        )
        self._num_words = counts.get("words")
        self.has_words = self._num_words is not None
        path = locate("documents.npy")
        self.documents = load(path, self.num_documents + 1)
        if self.documents[0] != 0 or self.documents[-1] != self.num_tokens:
            raise _damaged(path, "does not span the tokens")
        self._num_records = -(-self.num_tokens // RECORD_TOKENS)
        self._lock = threading.Lock()
        self._reader = functools.lru_cache(_OPEN_SHARDS)(self._open_shard)
        self._record = functools.lru_cache(max(2, -(-cached_tokens // RECORD_TOKENS)))(self._read)

    def check(self) -> None:
        """Opens every file once.

        Raises:
          UserError: one is missing or damaged.
        """
        load(self._locate("sentences.npy"), self._num_sentences)
        load(self._locate("first_bytes.npy"), self.num_documents, np.int32)
        if self.has_words:
            load(self._locate("words.npy"), self._num_words)
        for shard in range(-(-self._num_records // SHARD_RECORDS)):
            self._open_shard(shard)

    @functools.cached_property
    def _sentences(self) -> np.ndarray:
        """int64 [num_sentences], memory-mapped."""
        return load(self._locate("sentences.npy"), self._num_sentences)

    @functools.cached_property
    def first_bytes(self) -> np.ndarray:
        """int32 [num_documents], memory-mapped: UTF-8 bytes of each document's first token."""
        return load(self._locate("first_bytes.npy"), self.num_documents, np.int32)

    @functools.cached_property
    def _words(self) -> np.ndarray:
        """int64 [num_words], memory-mapped; of a split that has them."""
        return load(self._locate("words.npy"), self._num_words)

    def has(self, name: str) -> bool:
        """See `Documents.has`."""
        return name == "sentence_starts" or (name == "word_starts" and self.has_words)

    def column(self, name: str) -> np.ndarray:
        """See `Documents.column`."""
        return self._sentences if name == "sentence_starts" else self._words

    @functools.cached_property
    def unigram(self) -> np.ndarray:
        """int64 [vocab_size]: how often each token occurs."""
        return np.array(load(self._locate("unigram.npy"), self._vocab_size))

    def _open_shard(self, shard: int) -> Any:
        expected = min(SHARD_RECORDS, self._num_records - shard * SHARD_RECORDS)
        path = self._locate(shard_name(shard))
        try:
            reader = array_record_module.ArrayRecordReader(path, _READER_OPTIONS)
            found = reader.num_records()
        except (RuntimeError, ValueError) as error:
            raise _damaged(path, one_line(error)) from error
        if found != expected:
            raise _damaged(path, f"has {found} records, not {expected}")
        return reader

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop) of all documents one after another, in the stored type, read-only."""
        if stop <= start:
            return np.zeros(0, self._dtype)
        first, last = start // RECORD_TOKENS, (stop - 1) // RECORD_TOKENS
        with self._lock:
            records = [self._record(r) for r in range(first, last + 1)]
        joined = records[0] if first == last else np.concatenate(records)
        return joined[start - first * RECORD_TOKENS : stop - first * RECORD_TOKENS]

    def _read(self, index: int) -> np.ndarray:
        shard, place = divmod(index, SHARD_RECORDS)
        reader = self._reader(shard)
        try:
            (data,) = reader.read([place])
        except (RuntimeError, ValueError, IndexError) as error:
            raise _damaged(self._locate(shard_name(shard)), one_line(error)) from error
        expected = min(RECORD_TOKENS, self.num_tokens - index * RECORD_TOKENS)
        if len(data) != expected * self._dtype.itemsize:
            raise _damaged(self._locate(shard_name(shard)), f"record {place} has the wrong size")
        return np.frombuffer(data, self._dtype)


@dataclass(frozen=True)
class Source:
    """A source's cache, opened.

    Attributes:
      folder: a local one, where more can be kept.
      vocabulary: `id`, `size`, `pad`, `bos`, `eos`, `unk`, `cls`, `sep`, `mask` (None where absent), `sentinels`,
        `kind` and `files` as prepared, `lowercase` where that is true.
      splits: `train`, and `validation` where there is one.
      word_initial: bool [vocab_size]: whether a token begins a word.
      segmenter: what found the words of its splits, where they have them.
      has_examples: whether each document is an example, and its two sentences are inputs and targets.
    """

    folder: str
    identity: str
    vocabulary: dict[str, Any]
    splits: dict[str, Split]
    word_initial: np.ndarray
    segmenter: str | None = None
    has_examples: bool = False


def read_manifest(folder: str) -> dict[str, Any]:
    """The manifest in a source's folder.

    Raises:
      UserError: it is missing, damaged, out of reach, or of a format that this version does not read.
    """
    path = os.path.join(folder, "manifest.json")
    try:
        manifest = json.loads(storage.read(path))
    except FileNotFoundError:
        raise UserError(f"there is no cache at {folder}: run `python -m plm_jax.prepare --config=…`") from None
    except (OSError, ValueError) as error:
        raise _damaged(path, one_line(error)) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise UserError(f"{path} has format {found}, this version reads {FORMAT}: prepare the cache again")
    return manifest


def open_source(cache_dir: str, name: str, cached_tokens: int = 3 * 2**21) -> Source:
    """Opens a source's cache; each split keeps about `cached_tokens` tokens in memory.

    Raises:
      UserError: the cache is missing, damaged or of another format.
    """
    folder = os.path.join(cache_dir, name)
    manifest = read_manifest(folder)
    if "parts" in manifest:
        raise UserError(f"{folder} is of another mixture of tasks: run `python -m plm_jax.prepare --config=…` again")
    try:
        vocabulary, dtype = manifest["vocabulary"], np.dtype(manifest["dtype"])
        size = vocabulary["size"]
        remote = storage.is_remote(folder)
        locate = Mirror(folder, manifest["identity"]) if remote else functools.partial(os.path.join, folder)
        splits = {
            split: Split(functools.partial(locate, split), counts, dtype, size, cached_tokens)
            for split, counts in manifest["splits"].items()
        }
        word_initial = np.array(load(locate("word_initial.npy"), size, np.bool_))
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(os.path.join(folder, "manifest.json"), f"lacks {one_line(error)}") from error
    if not remote:  # Of a remote one, files stay where they are until they are read.
        for split in splits.values():
            split.check()
    local, segmenter, has_examples = (
        locate.folder if remote else folder,
        manifest.get("segmenter"),
        manifest.get("has_examples", False),
    )
    return Source(local, manifest["identity"], vocabulary, splits, word_initial, segmenter, has_examples)


def load(path: str, length: int, dtype: Any = np.int64) -> np.ndarray:
    """A memory-mapped vector of a .npy file as a plain array.

    Raises:
      UserError: the file is missing or damaged.
    """
    try:
        array = np.load(path, mmap_mode="r") if length else np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, one_line(error)) from error
    if array.shape != (length,) or array.dtype != dtype:
        raise _damaged(path, f"holds {array.dtype}{list(array.shape)}, not {np.dtype(dtype)}[{length}]")
    return np.asarray(array)


def _damaged(path: str, what: str) -> UserError:
    return UserError(f"{path} is damaged ({what}): delete its folder and run `python -m plm_jax.prepare --config=…`")
