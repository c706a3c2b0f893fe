"""Indexes of rows, which are computed once and then read from disk.

With an index, a row can be read by its number even if its start depends on the previous row. Each pass of an index is
computed in one walk over the split. The index is stored in the cache or its local copy:

    CACHE_DIR/SOURCE/index/KEY/index.json    `key`; `passes`, the first row of each pass and the number of all rows;
                                             `types` of the columns; `blocks`, the number of checksums of each
                                             column; `checksums`, the CRC-32 of all checksums; `crc32`, the CRC-32
                                             of the other fields
    CACHE_DIR/SOURCE/index/KEY/COLUMN.npy    one value per row
    CACHE_DIR/SOURCE/index/KEY/checksums.npy CRC-32 of each block of the columns

KEY is a hash of everything that decides the rows.
"""

import contextlib
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm
from typing_extensions import override

from plm_jax import objectives
from plm_jax.common import storage, trees
from plm_jax.common.errors import UserError, one_line
from plm_jax.data import cache
from plm_jax.data.layouts.formats import Example
from plm_jax.data.layouts.layout import RowRequest
from plm_jax.data.layouts.rows import SpanRows
from plm_jax.data.layouts.stream import Stream

FORMAT = 3
BLOCK_SENTENCES = 2**18
# Number of rows that are searched at once for the edges of windows.
_BLOCK_ROWS = 2**20


class RowBlock(NamedTuple):
    """Rows made from a block of documents.

    Attributes:
      num_documents: number of documents in the block.
      columns: one array per column of the index, with one value per row.
    """

    num_documents: int
    columns: Sequence[np.ndarray]


class Index(NamedTuple):
    """An index of the rows of a split.

    Attributes:
      passes: first row of each pass over the split, followed by the number of rows of all passes.
      columns: dict from the name of each column to its values [passes[-1]].
    """

    passes: list[int]
    columns: dict[str, np.ndarray | cache.PagedVector]


@dataclass(frozen=True)
class _Metadata:
    """Contents of an `index.json`."""

    key: str
    passes: tuple[int, ...]
    types: dict[str, str]
    blocks: dict[str, int]
    checksums: int
    crc32: int


def open_index(
    request: RowRequest,
    settings: Sequence[Any],
    columns: Mapping[str, str],
    walk: Callable[[int], Iterator[RowBlock]],
    num_passes: int = 1,
) -> Index:
    """Opens an index, after computing it if it is missing.

    If several processes compute the index, the result of the process that finishes first is used.

    Args:
      settings: everything that decides the rows, except for the split itself; values that JSON can represent.
      columns: dict from the name of each column to its NumPy type.
      walk: function that takes the index of a pass and yields the rows of this pass in blocks.
      num_passes: number of passes over the split.

    Raises:
      UserError: the index is damaged or cannot be written.
    """
    description = [FORMAT, request.identity, request.name, *settings, dict(columns), num_passes]
    key = hashlib.sha256(json.dumps(description).encode("utf-8")).hexdigest()[:16]
    root = os.path.join(request.folder, "index")
    folder = os.path.join(root, key)
    if not os.path.exists(folder):
        try:
            os.makedirs(root, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".", dir=root) as temporary:
                new = os.path.join(temporary, "index")
                os.mkdir(new)
                _write(new, key, columns, walk, num_passes, request.split.num_documents)
                with contextlib.suppress(OSError):  # Another process was first.
                    os.rename(new, folder)
        except OSError as error:
            raise UserError(
                f"cannot write {root} ({error.strerror}): make it writable or move config.data.cache_dir"
            ) from error
    vectors, passes = _open(folder)
    if len(passes) != num_passes + 1:
        raise cache.damaged(os.path.join(folder, "index.json"), f"has {len(passes) - 1} of {num_passes} passes")
    return Index(passes, {name: vectors.open(name, passes[-1], dtype) for name, dtype in columns.items()})


def _write(
    folder: str,
    key: str,
    columns: Mapping[str, str],
    walk: Callable[[int], Iterator[RowBlock]],
    num_passes: int,
    num_documents: int,
) -> None:
    """Computes every pass and writes the files of the index into a folder."""
    files = {name: cache.NpyAppender(os.path.join(folder, f"{name}.npy"), dtype) for name, dtype in columns.items()}
    passes = [0]
    with tqdm(None, "indexing rows", num_passes * num_documents, unit=" documents", delay=2) as bar:
        for number in range(num_passes):
            passes.append(passes[-1])
            for block in walk(number):
                for file, values in zip(files.values(), block.columns, strict=True):
                    file.append(values)
                passes[-1] += len(block.columns[0])
                bar.update(block.num_documents)
    for file in files.values():
        file.close()
    blocks, checksums = cache.save_checksums(folder, {name: file.checksums for name, file in files.items()})
    metadata = {"key": key, "passes": passes, "types": dict(columns), "blocks": blocks, "checksums": checksums}
    with open(os.path.join(folder, "index.json"), "w") as file:
        json.dump(metadata | {"crc32": cache.crc32(metadata)}, file)
        storage.sync(file)


def _read_metadata(folder: str) -> _Metadata:
    """Reads and checks the `index.json` in a folder, whose name must be the key of the index."""
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            read = json.load(file)
        metadata = trees.parse(_Metadata, read, "index")
    except (OSError, ValueError, RecursionError, UserError) as error:
        raise cache.damaged(path, one_line(error)) from error
    if metadata.crc32 != cache.crc32(read) or metadata.key != os.path.basename(folder):
        raise cache.damaged(path, "it has changed")
    if not metadata.types.keys() <= metadata.blocks.keys():
        raise cache.damaged(path, "lacks some of its columns")
    if [0, *sorted(metadata.passes[1:])] != list(metadata.passes):
        raise cache.damaged(path, "its passes are not sorted")
    return metadata


def _open(folder: str) -> tuple[cache.Vectors, list[int]]:
    """Returns a pair: the columns of an index, and the first row of each pass followed by the number of all rows."""
    metadata, parent = _read_metadata(folder), cache.Folder(os.path.dirname(folder))
    vectors = cache.Vectors(parent, os.path.basename(folder), metadata.blocks, metadata.checksums)
    return vectors, list(metadata.passes)


def verify(folder: str) -> None:
    """Reads every block of the index in a folder and checks it.

    Raises:
      UserError: a file of the index is damaged.
    """
    vectors, passes = _open(folder)
    for name, dtype in _read_metadata(folder).types.items():
        vectors.whole(name, passes[-1], dtype)


def blocks(split: cache.DocumentTable) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the sentences of whole documents, about BLOCK_SENTENCES at a time.

    Yields:
      A pair of arrays: the first token of each sentence, followed by the end of the last sentence [s + 1]; and the
      index of the first sentence of each document, followed by the number of sentences [d + 1].
    """
    starts, firsts = np.asarray(split.documents), np.asarray(split.sentences)
    edges = np.searchsorted(starts, firsts[::BLOCK_SENTENCES])
    for first, last in itertools.pairwise(np.unique([*edges, split.num_documents])):
        documents = starts[first : last + 1]
        begin, end = np.searchsorted(firsts, documents[[0, -1]])
        sentences = np.append(firsts[begin:end], documents[-1])
        yield sentences, np.searchsorted(sentences, documents)


def follow(following: np.ndarray) -> np.ndarray:
    """Returns the indices 0, `following[0]`, `following[following[0]]`, …, up to the last one that is in range."""
    steps, visited, current = following.tolist(), [], 0
    while current < len(steps):
        visited.append(current)
        current = steps[current]
    return np.array(visited)


def next_fit(sizes: np.ndarray, limit: int) -> np.ndarray:
    """Returns, for each item, the end (exclusive) of the longest row that begins with this item.

    The sizes of the items in a row have a sum of at most `limit`. If one item is larger than `limit`, its row is empty.
    """
    ends = np.concatenate([[0], sizes.cumsum()])
    return ends.searchsorted(ends[:-1] + limit, side="right") - 1


def window_edges(num_tokens: int, window_tokens: int) -> np.ndarray:
    """Returns the first token of each window of `window_tokens` tokens, followed by the end of the last window.

    This end may exceed `num_tokens`.
    """
    return np.arange(-(-num_tokens // window_tokens) + 1, dtype=np.int64) * window_tokens


def first_from(starts: np.ndarray | cache.PagedVector, first: int, end: int, edges: np.ndarray) -> np.ndarray:
    """Returns, for each edge, the first row in [first, end) that starts at or after the edge; `end` if there is none.

    Both `edges` and `starts[first:end]` must be sorted.
    """
    rows, done = np.full(len(edges), end), 0
    for begin in range(first, end, _BLOCK_ROWS):
        block = starts[begin : min(begin + _BLOCK_ROWS, end)]
        last = int(edges.searchsorted(block[-1], side="right"))
        rows[done:last] = begin + block.searchsorted(edges[done:last])
        done = last
    return rows


class IndexedRows(SpanRows):
    """The base of rows of an index whose column `starts` has the first token of each row.

    By default, a row ends where the next row begins. If the objective reads the starts of words or sentences, rows
    include them, provided that the split has them.
    """

    def __init__(self, index: Index, request: RowRequest, stream: Stream | None = None):
        """Opens the rows; `starts` holds positions in `stream` or, if `stream` is None, in the split."""
        self._split, self._passes, self._starts = request.split, index.passes, index.columns["starts"]
        self._length = request.length
        self._reads = [name for name in request.objective.reads if self._split.has(name)]
        self.text = self._split if stream is None else stream
        self.num_rows, self.pass_tokens = self._passes[1], self.text.num_tokens

    @property
    @override
    def passes(self) -> list[int]:
        return self._passes

    @override
    def windows(self, window_tokens: int) -> list[np.ndarray]:
        edges = window_edges(self.pass_tokens, window_tokens)
        return [first_from(self._starts, first, end, edges) for first, end in itertools.pairwise(self._passes)]

    @override
    def rows_within(self, start: int, stop: int) -> list[range]:
        rows = []
        for first, end in itertools.pairwise(self._passes):
            starts = self._starts[first:end]
            begin = max(0, int(starts.searchsorted(start, side="right")) - 1)
            rows.append(range(first + begin, first + int(starts.searchsorted(stop))))
        return rows

    @override
    def span(self, item: int) -> tuple[int, int]:
        stop = int(self._starts[item + 1]) if item + 1 < self.num_rows else self.pass_tokens
        return int(self._starts[item]), stop

    def _with_starts(
        self, row: Example, spans: Sequence[tuple[int, int]], sizes: Sequence[int], row_format: objectives.RowFormat
    ) -> Example:
        """Adds the columns in `_reads` to a row of texts, and returns the row.

        Args:
          spans: span [start, stop) of each text in the split.
          sizes: number of tokens of each text; the size of the last text is not used.
        """
        if self._reads:
            located = list(zip(row_format.text_starts(sizes), spans, strict=True))
            for name in self._reads:
                row[name] = np.concatenate([begin + self._split.starts(name, *span) for begin, span in located])
        return row
