"""Where rows begin, for layouts of which each row depends on the one before: found once, then read from disk.

A split is walked document after document, and what is found stays beside the cache or its local copy:

    CACHE_DIR/SOURCE/index/KEY/index.json    `key`; `passes`, the first row of each pass, and the end; `blocks` and
                                             `checksums`, as of a split of a cache; `crc32`, its own
    CACHE_DIR/SOURCE/index/KEY/COLUMN.npy    a number of each row
    CACHE_DIR/SOURCE/index/KEY/checksums.npy CRC-32 of each block of these

KEY is a hash of all that decides them.
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
# Rows of which windows are found at once.
_BLOCK_ROWS = 2**20


class Found(NamedTuple):
    """What the walk of some documents finds: how many they were, and of their rows the values of each column."""

    num_documents: int
    columns: Sequence[np.ndarray]


class Index(NamedTuple):
    """Rows of a split.

    Attributes:
      passes: the first row of each pass over the split, and the end.
      columns: [passes[-1]], by name.
    """

    passes: list[int]
    columns: dict[str, np.ndarray | cache.Ranged]


@dataclass(frozen=True)
class _Described:
    """An `index.json`."""

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
    walk: Callable[[int], Iterator[Found]],
    num_passes: int = 1,
) -> Index:
    """Opens an index, and makes it if it is missing; of several makers at once the first to end is taken.

    Args:
      settings: everything that decides the rows, except for the split itself.
      columns: the type of each.
      walk: function from the number of a pass to the rows that are found in it.

    Raises:
      UserError: it is damaged or cannot be written.
    """
    described = [FORMAT, request.identity, request.name, *settings, dict(columns), num_passes]
    key = hashlib.sha256(json.dumps(described).encode("utf-8")).hexdigest()[:16]
    root = os.path.join(request.folder, "index")
    folder = os.path.join(root, key)
    if not os.path.exists(folder):
        try:
            os.makedirs(root, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".", dir=root) as temporary:
                made = os.path.join(temporary, "index")
                os.mkdir(made)
                _write(made, key, columns, walk, num_passes, request.split.num_documents)
                with contextlib.suppress(OSError):  # Another one was first.
                    os.rename(made, folder)
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
    walk: Callable[[int], Iterator[Found]],
    num_passes: int,
    num_documents: int,
) -> None:
    """Walks all passes and writes the index's files into a folder."""
    files = {name: cache.NpyAppender(os.path.join(folder, f"{name}.npy"), dtype) for name, dtype in columns.items()}
    passes = [0]
    with tqdm(None, "indexing rows", num_passes * num_documents, unit=" documents", delay=2) as bar:
        for number in range(num_passes):
            passes.append(passes[-1])
            for found in walk(number):
                for file, values in zip(files.values(), found.columns, strict=True):
                    file.append(values)
                passes[-1] += len(found.columns[0])
                bar.update(found.num_documents)
    for file in files.values():
        file.close()
    found = {name: file.checksums for name, file in files.items()}
    blocks, checksums = cache.save_checksums(folder, found)
    described = {"key": key, "passes": passes, "types": dict(columns), "blocks": blocks, "checksums": checksums}
    with open(os.path.join(folder, "index.json"), "w") as file:
        json.dump(described | {"crc32": cache.crc32(described)}, file)
        storage.sync(file)


def _describe(folder: str) -> _Described:
    """What its `index.json` says of the index in a folder, which has the name of its key."""
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            read = json.load(file)
        described = trees.parse(_Described, read, "index")
    except (OSError, ValueError, RecursionError, UserError) as error:
        raise cache.damaged(path, one_line(error)) from error
    if described.crc32 != cache.crc32(read) or described.key != os.path.basename(folder):
        raise cache.damaged(path, "it has changed")
    if not described.types.keys() <= described.blocks.keys():
        raise cache.damaged(path, "lacks some of its columns")
    if [0, *sorted(described.passes[1:])] != list(described.passes):
        raise cache.damaged(path, "its passes do not follow one another")
    return described


def _open(folder: str) -> tuple[cache.Vectors, list[int]]:
    """The columns of an index, and its passes."""
    described, place = _describe(folder), cache.Folder(os.path.dirname(folder))
    vectors = cache.Vectors(place, os.path.basename(folder), described.blocks, described.checksums)
    return vectors, list(described.passes)


def verify(folder: str) -> None:
    """Reads all of an index.

    Raises:
      UserError: a file of it is damaged.
    """
    vectors, passes = _open(folder)
    for name, dtype in _describe(folder).types.items():
        vectors.whole(name, passes[-1], dtype)


def blocks(split: cache.DocumentTable) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Whole documents with about BLOCK_SENTENCES sentences a time.

    Returns:
      [s + 1], the first token of each sentence, and the end; [d + 1], the first sentence of each document, and the end.
    """
    starts, firsts = np.asarray(split.documents), np.asarray(split.sentences)
    edges = np.searchsorted(starts, firsts[::BLOCK_SENTENCES])
    for first, last in itertools.pairwise(np.unique([*edges, split.num_documents])):
        documents = starts[first : last + 1]
        begin, end = np.searchsorted(firsts, documents[[0, -1]])
        sentences = np.append(firsts[begin:end], documents[-1])
        yield sentences, np.searchsorted(sentences, documents)


def follow(following: np.ndarray) -> np.ndarray:
    """Where a path from 0 to beyond the end comes by, if from each place it goes on to that in `following`."""
    steps, visited, at = following.tolist(), [], 0
    while at < len(steps):
        visited.append(at)
        at = steps[at]
    return np.array(visited)


def edges_of(num_tokens: int, window_tokens: int) -> np.ndarray:
    """The first token of each window of so many, and the end of the last."""
    return np.arange(-(-num_tokens // window_tokens) + 1, dtype=np.int64) * window_tokens


def _first_from(starts: np.ndarray | cache.Ranged, first: int, end: int, edges: np.ndarray) -> np.ndarray:
    """Which of `starts`, which rise from `first` up to `end`, is the first at or beyond each of rising `edges`."""
    found, done = np.full(len(edges), end), 0
    for begin in range(first, end, _BLOCK_ROWS):
        part = starts[begin : min(begin + _BLOCK_ROWS, end)]
        last = int(edges.searchsorted(part[-1], side="right"))
        found[done:last] = begin + part.searchsorted(edges[done:last])
        done = last
    return found


class IndexedRows(SpanRows):
    """Rows that an index lists; its column `starts` holds the first token of each.

    By default a row ends where the next one begins. Rows have those columns of the split that the objective `reads`.
    """

    def __init__(self, index: Index, request: RowRequest, stream: Stream | None = None):
        """`stream` is the text that the index counts tokens of; None: the split itself."""
        self._split, self._passes, self._starts = request.split, index.passes, index.columns["starts"]
        self._length = request.length
        self._reads = [name for name in request.objective.reads if self._split.has(name)]
        self.text = self._split if stream is None else stream
        self.num_rows, self.pass_tokens = self._passes[1], self.text.num_tokens

    @override
    def windows(self, window_tokens: int) -> list[np.ndarray]:
        edges = edges_of(self.pass_tokens, window_tokens)
        return [_first_from(self._starts, first, end, edges) for first, end in itertools.pairwise(self._passes)]

    @override
    def rows_within(self, start: int, stop: int) -> list[range]:
        found = []
        for first, end in itertools.pairwise(self._passes):
            starts = self._starts[first:end]
            begin = max(0, int(starts.searchsorted(start, side="right")) - 1)
            found.append(range(first + begin, first + int(starts.searchsorted(stop))))
        return found

    @override
    def span(self, item: int) -> tuple[int, int]:
        stop = int(self._starts[item + 1]) if item + 1 < self.num_rows else self.pass_tokens
        return int(self._starts[item]), stop

    def _with_starts(
        self, row: Example, stretches: Sequence[tuple[int, int]], sizes: Sequence[int], row_format: objectives.RowFormat
    ) -> Example:
        """A row with what is read besides tokens; its texts, of these sizes, are stretches [start, stop) of a split."""
        if self._reads:
            places = list(zip(row_format.begins(sizes), stretches, strict=True))
            for name in self._reads:
                row[name] = np.concatenate([at + self._split.starts(name, *stretch) for at, stretch in places])
        return row
