"""Shuffle of tokenized documents. A hash chooses the file of each document, and the document's place in the cache.

The shards are the files of documents. A file next to them has the hashes of each row (`groups.KEYS`), which show the
rows that are in both splits.

A shard consists of blocks of documents. A block consists of its number of documents, its number of values of each
column in `Shuffle.several`, a row for each document, and the values of each of these columns, one document after
another. The numbers, the rows and the values of each column are padded to multiples of eight bytes.
"""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np
import tqdm

from plm_jax.data.cache import columns, file_format, writer
from plm_jax.data.cache.columns import Column, Values
from plm_jax.data.prepare import groups
from plm_jax.data.vocabularies import word_spans

NUM_SHARDS = 256
KEYS_FILE = "keys"
# Names of the files of a shuffle.
FILES = (*(f"{shard:03d}" for shard in range(NUM_SHARDS)), KEYS_FILE)
_SHARD_SHIFT = np.uint64(64 - 8)  # One shard for each first byte of the hash.
# Number of tokens that are moved from the shuffle to the cache at a time.
_WRITE_TOKENS = 2**20


class Shuffled(NamedTuple):
    """Tokenized documents of a source, in the files of a shuffle.

    Attributes:
      documents: number of documents with tokens.
      groups: groups of all rows, including rows without tokens.
      fetch: function from a name in FILES to the path of this file on this machine, after fetching it if necessary.
    """

    documents: int
    groups: groups.Groups
    fetch: Callable[[str], str]


class Shuffle:
    """Format of the shuffled documents.

    The row of a document has these fields: `key` is the document's hash, and `bytes` the size of its text. `group` and
    `validates` decide the document's split. For each column in `several`, a field has the number of the document's
    values. For each other column, a field has the value itself.

    Attributes:
      columns: columns of the documents, the tokens first.
      several: columns with several values per document.
      row: dtype of a row.
    """

    def __init__(self, vocab_size: int, columns_after_tokens: Sequence[Column]):
        self.columns = (columns.tokens(vocab_size), *columns_after_tokens)
        self.several = [column for column in self.columns if column.kind != "document"]
        single = [column for column in self.columns if column.kind == "document"]
        fields = [("key", "<u8"), ("bytes", "<u8"), ("group", "<u8"), ("validates", "?")]
        fields += [(f"number of {column.name}", "<u4") for column in self.several]
        self.row = np.dtype(fields + [(column.name, column.dtype) for column in single])

    def rows(
        self, keys: Sequence[int], num_bytes: np.ndarray, group_keys: np.ndarray, values: Mapping[str, Values]
    ) -> np.ndarray:
        """Returns the rows of documents, [documents] of dtype `row`.

        Args:
          keys: hash of each document (`reading.key`).
          num_bytes: number of bytes of the text of each document.
          group_keys: [documents] of dtype `groups.KEYS`.
          values: values of each column, by name.
        """
        rows = np.zeros(len(keys), self.row)
        rows["key"], rows["bytes"] = keys, num_bytes
        rows["group"], rows["validates"] = group_keys["group"], group_keys["validates"]
        for column in self.columns:
            flat, sizes = values[column.name]
            if column.kind == "document":
                rows[column.name] = flat
            else:
                rows[f"number of {column.name}"] = sizes
        return rows

    def shards(self, rows: np.ndarray, values: Mapping[str, Values], chosen: np.ndarray) -> list[bytes]:
        """Returns one block per shard. The blocks contain the documents with the indices `chosen`.

        A block without documents is empty.

        Args:
          rows: result of `rows`.
          values: values of each column, by name.
        """
        order = chosen[np.argsort(rows["key"][chosen], kind="stable")]
        starts = np.searchsorted(rows["key"][order] >> _SHARD_SHIFT, np.arange(NUM_SHARDS + 1))
        return [self._block(rows, values, order[a:b]) for a, b in itertools.pairwise(starts.tolist())]

    def _block(self, rows: np.ndarray, values: Mapping[str, Values], chosen: np.ndarray) -> bytes:
        if not len(chosen):
            return b""
        parts, totals = [rows[chosen].tobytes()], [len(chosen)]
        for column in self.several:
            flat, sizes = values[column.name]
            assert sizes is not None, f"{column.name} has no sizes"
            picked = flat[word_spans.ranges((np.cumsum(sizes) - sizes)[chosen], sizes[chosen])]
            parts.append(picked.astype(column.dtype, copy=False).tobytes())
            totals.append(len(picked))
        return b"".join(part + bytes(-len(part) % 8) for part in (np.array(totals, "<u8").tobytes(), *parts))


@contextlib.contextmanager
def open_files(folder: str) -> Iterator[list[BinaryIO]]:
    """Context manager that opens the FILES in a folder for writing, and yields them in the order of FILES."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(open(os.path.join(folder, name), "wb")) for name in FILES]


class ShuffleShard:
    """Documents of one shard of a shuffle, memory-mapped; the shard must not be empty.

    Attributes:
      rows: [num_documents], structured array of `Shuffle.row`.
    """

    def __init__(self, path: str, shuffle: Shuffle):
        data = np.memmap(path, np.uint64, "r")
        rows, firsts, offset = [], [], 0
        while offset < len(data):
            number, *sizes = data[offset : offset + 1 + len(shuffle.several)].astype(np.int64).tolist()
            begin = offset + 1 + len(shuffle.several)
            end = begin + _words(number * shuffle.row.itemsize)
            rows.append(data[begin:end].view(np.uint8)[: number * shuffle.row.itemsize].view(shuffle.row))
            block_firsts = []
            for column, size in zip(shuffle.several, sizes, strict=True):
                itemsize = np.dtype(column.dtype).itemsize
                counts = rows[-1][f"number of {column.name}"].astype(np.int64)
                block_firsts.append(end * (8 // itemsize) + np.cumsum(counts) - counts)
                end += _words(size * itemsize)
            firsts.append(np.stack(block_firsts, 1))
            offset = end
        self.rows, joined = np.concatenate(rows), np.concatenate(firsts)
        self._shuffle = shuffle
        self._several = {
            column.name: (data.view(column.dtype), joined[:, i]) for i, column in enumerate(shuffle.several)
        }

    def read(self, documents: np.ndarray) -> dict[str, Values]:
        """Returns the values of each column, by name, of the documents with these indices."""
        rows, by_column = self.rows[documents], {}
        for column in self._shuffle.columns:
            if column.kind == "document":
                by_column[column.name] = Values(rows[column.name])
                continue
            values, firsts = self._several[column.name]
            sizes = rows[f"number of {column.name}"].astype(np.int64)
            by_column[column.name] = Values(values[word_spans.ranges(firsts[documents], sizes)], sizes)
        return by_column


def _words(size: int) -> int:
    """Returns the number of eight-byte words that hold `size` bytes."""
    return -(-size // 8)


def write_shards(
    fetch: Callable[[str], str],
    shuffle: Shuffle,
    writers: Mapping[str, writer.SplitWriter],
    rule: groups.HeldOutRule,
    bar: tqdm.tqdm,
) -> None:
    """Passes the shuffled documents to the writers of their splits, in the order of their hashes.

    Args:
      fetch: `Shuffled.fetch`; each shard is removed after it is read.
      writers: writer of each split that has documents, by name.
      bar: progress bar that counts documents.
    """
    for name in FILES[:NUM_SHARDS]:
        path = fetch(name)
        if os.path.getsize(path):
            shard = ShuffleShard(path, shuffle)
            held_out = groups.are_held_out(shard.rows, rule)
            order = np.argsort(shard.rows["key"], kind="stable")
            pieces = np.cumsum(shard.rows["number of tokens"][order], dtype=np.int64) // _WRITE_TOKENS
            for documents in np.split(order, np.flatnonzero(np.diff(pieces)) + 1):
                for is_validation, split in enumerate(file_format.SPLITS):
                    chosen = documents[held_out[documents] == is_validation]
                    if len(chosen):
                        writers[split].add(shard.read(chosen), int(shard.rows["bytes"][chosen].sum()))
                bar.update(len(documents))
            del shard
        os.remove(path)
