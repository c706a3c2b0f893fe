"""Where rows begin, for layouts of which each row depends on the one before: found once, then read from disk.

A split is walked document after document, and what is found stays beside the cache or its local copy, memory-mapped:

    CACHE_DIR/SOURCE/index/KEY/index.json    `passes`, the first row of each pass, and the end; `columns`, of each its
                                             type and the CRC-32 of its bytes
    CACHE_DIR/SOURCE/index/KEY/COLUMN.npy    a number of each row

KEY is a hash of all that decides them.
"""

import contextlib
import hashlib
import itertools
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from plm_jax import objectives
from plm_jax.common.errors import UserError, one_line
from plm_jax.data.layouts.layout import Example, Rows

if TYPE_CHECKING:
    from plm_jax.data import cache

FORMAT = 2
BLOCK_SENTENCES = 2**18


class Found(NamedTuple):
    """What the walk of some documents finds: how many they were, and of their rows the values of each column."""

    num_documents: int
    columns: Sequence[np.ndarray]


class Index(NamedTuple):
    """Rows of a split.

    Attributes:
      passes: the first row of each pass over the split, and the end.
      columns: [passes[-1]], memory-mapped, by name.
    """

    passes: list[int]
    columns: dict[str, np.ndarray]


def open_index(
    source: "cache.Source",
    split: str,
    what: Sequence[Any],
    columns: Mapping[str, str],
    walk: Callable[[int], Iterator[Found]],
    num_passes: int = 1,
) -> Index:
    """An index, which is made if it is missing; of several makers at once the first to end is taken.

    Args:
      what: all that decides what is in it, source and split apart.
      columns: the type of each.
      walk: the number of a pass → what is found in it.

    Raises:
      UserError: it is damaged or cannot be written.
    """
    key = json.dumps([FORMAT, source.identity, split, *what, dict(columns), num_passes])
    root = os.path.join(source.folder, "index")
    folder = os.path.join(root, hashlib.sha256(key.encode("utf-8")).hexdigest()[:16])
    if not os.path.exists(folder):
        try:
            os.makedirs(root, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".", dir=root) as temporary:
                made = os.path.join(temporary, "index")
                os.mkdir(made)
                _write(made, columns, walk, num_passes, source.splits[split].num_documents)
                with contextlib.suppress(OSError):  # Another one was first.
                    os.rename(made, folder)
        except OSError as error:
            raise UserError(
                f"cannot write {root} ({error.strerror}): make it writable or move config.data.cache_dir"
            ) from error
    return _read(folder, columns)


def _write(
    folder: str,
    columns: Mapping[str, str],
    walk: Callable[[int], Iterator[Found]],
    num_passes: int,
    num_documents: int,
) -> None:
    """Walks all passes and writes the index's files into a folder."""
    from tqdm import tqdm

    from plm_jax.data import cache

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
    told = {name: {"dtype": dtype, "crc32": files[name].crc32} for name, dtype in columns.items()}
    with open(os.path.join(folder, "index.json"), "w") as file:
        json.dump({"passes": passes, "columns": told}, file)


def _read(folder: str, columns: Mapping[str, str]) -> Index:
    from plm_jax.data import cache

    passes = _describe(folder)["passes"]
    found = {
        name: cache.load(os.path.join(folder, f"{name}.npy"), passes[-1], np.dtype(dtype))
        for name, dtype in columns.items()
    }
    return Index(passes, found)


def _describe(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, "index.json")
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}): delete its folder, and it is made again") from error


def verify(folder: str) -> None:
    """Reads all of an index.

    Raises:
      UserError: a file of it is damaged.
    """
    from plm_jax.data import cache

    described = _describe(folder)
    for name, told in described["columns"].items():
        path = os.path.join(folder, f"{name}.npy")
        values = cache.load(path, described["passes"][-1], np.dtype(told["dtype"]))
        if zlib.crc32(np.ascontiguousarray(values).data) != told["crc32"]:
            raise UserError(f"{path} is damaged (its bytes have changed): delete its folder, and it is made again")


def blocks(split: "cache.Split") -> Iterator[tuple[np.ndarray, np.ndarray]]:
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


def windows_of(starts: np.ndarray, num_tokens: int, window_tokens: int) -> np.ndarray:
    """The first of the rows that begin at `starts` in each window of so many tokens, and the end."""
    edges = np.arange(-(-num_tokens // window_tokens) + 1, dtype=np.int64) * window_tokens
    return starts.searchsorted(edges)


class IndexedRows(Rows):
    """The base of rows that an index tells, whose column `starts` holds the first token of each.

    They have of what the objective `reads` all that the split has.
    """

    def __init__(self, index: Index, split: "cache.Split", num_tokens: int, reads: Sequence[str] = ()):
        """`num_tokens` are those that a pass walks."""
        self._split, self._passes, self._starts = split, index.passes, index.columns["starts"]
        self._reads = [name for name in reads if split.has(name)]
        self.num_rows, self.pass_tokens = self._passes[1], num_tokens

    def windows(self, window_tokens: int) -> list[np.ndarray]:
        """See `Rows.windows`."""
        return [
            first + windows_of(self._starts[first:end], self.pass_tokens, window_tokens)
            for first, end in itertools.pairwise(self._passes)
        ]

    def _stretch(self, item: int) -> tuple[int, int]:
        """The tokens [start, stop) of a row that goes on to where the next one begins."""
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
