"""The spill: tokenised documents in files on the way to the cache, by a hash that decides their places in it.

Next to the shards is a file of the hashes that decide the split of each row and find shared rows (`groups.KEYS`).

A file holds blocks, each of some documents: how many they are and how many values each column has; a row of each
document; the values of the columns, one document after another. Each part fills whole words of eight bytes.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

import numpy as np
import tqdm

from plm_jax.data.cache import columns, form, writer
from plm_jax.data.cache.columns import Column, Values
from plm_jax.data.prepare import groups
from plm_jax.data.vocabularies import word_spans

NUM_SHARDS = 256
KEYS_FILE = "keys"
# Names of the files of a spill.
FILES = (*(f"{shard:03d}" for shard in range(NUM_SHARDS)), KEYS_FILE)
_SHARD_SHIFT = np.uint64(64 - 8)  # A shard for each first byte of the hash.
# How many tokens are moved at a time from the spill to the cache.
_WRITE_TOKENS = 2**22


class Shuffle:
    """The form of a spill of documents with these columns, the tokens first.

    A document's row has its `key`, the hash; `bytes`, the size of its text; `group` and `validates`, which decide its
    split; the number of values for each column with several values; and the value of each other column.
    """

    def __init__(self, vocab_size: int, others: Sequence[Column]):
        self.columns = (columns.tokens(vocab_size), *others)
        self.several = [column for column in self.columns if column.kind != "document"]
        single = [column for column in self.columns if column.kind == "document"]
        fields = [("key", "<u8"), ("bytes", "<u8"), ("group", "<u8"), ("validates", "?")]
        fields += [(f"number of {column.name}", "<u4") for column in self.several]
        self.row = np.dtype(fields + [(column.name, column.dtype) for column in single])

    def rows(
        self, keys: Sequence[int], num_bytes: np.ndarray, of_groups: np.ndarray, found: Mapping[str, Values]
    ) -> np.ndarray:
        """Returns the rows of some documents; `of_groups` are their `groups.KEYS`."""
        rows = np.zeros(len(keys), self.row)
        rows["key"], rows["bytes"] = keys, num_bytes
        rows["group"], rows["validates"] = of_groups["group"], of_groups["validates"]
        for column in self.columns:
            flat, sizes = found[column.name]
            if column.kind == "document":
                rows[column.name] = flat
            else:
                rows[f"number of {column.name}"] = sizes
        return rows

    def shards(self, rows: np.ndarray, found: Mapping[str, Values], chosen: np.ndarray) -> list[bytes]:
        """Some documents, of which these are the numbers, as a block for each shard."""
        order = chosen[np.argsort(rows["key"][chosen], kind="stable")]
        places = np.searchsorted(rows["key"][order] >> _SHARD_SHIFT, np.arange(NUM_SHARDS + 1))
        return [self._block(rows, found, order[a:b]) for a, b in itertools.pairwise(places.tolist())]

    def _block(self, rows: np.ndarray, found: Mapping[str, Values], chosen: np.ndarray) -> bytes:
        if not len(chosen):
            return b""
        parts, totals = [rows[chosen].tobytes()], [len(chosen)]
        for column in self.several:
            flat, sizes = found[column.name]
            assert sizes is not None, f"{column.name} has no sizes"
            picked = flat[word_spans.ranges((np.cumsum(sizes) - sizes)[chosen], sizes[chosen])]
            parts.append(picked.astype(column.dtype, copy=False).tobytes())
            totals.append(len(picked))
        return b"".join(part + bytes(-len(part) % 8) for part in (np.array(totals, "<u8").tobytes(), *parts))


@contextlib.contextmanager
def open_files(folder: str) -> Iterator[list[BinaryIO]]:
    """Opens the FILES in a folder for writing."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(open(os.path.join(folder, name), "wb")) for name in FILES]


class ShuffleShard:
    """The documents that a file of a spill holds, memory-mapped.

    Attributes:
      rows: [documents].
    """

    def __init__(self, path: str, spill: Shuffle):
        data = np.memmap(path, np.uint64, "r")
        rows, firsts, offset = [], [], 0
        while offset < len(data):
            number, *sizes = data[offset : offset + 1 + len(spill.several)].astype(np.int64).tolist()
            begin = offset + 1 + len(spill.several)
            end = begin + _words(number * spill.row.itemsize)
            rows.append(data[begin:end].view(np.uint8)[: number * spill.row.itemsize].view(spill.row))
            of_block = []
            for column, size in zip(spill.several, sizes, strict=True):
                itemsize = np.dtype(column.dtype).itemsize
                of_each = rows[-1][f"number of {column.name}"].astype(np.int64)
                of_block.append(end * (8 // itemsize) + np.cumsum(of_each) - of_each)
                end += _words(size * itemsize)
            firsts.append(np.stack(of_block, 1))
            offset = end
        self.rows, joined = np.concatenate(rows), np.concatenate(firsts)
        self._spill = spill
        self._several = {column.name: (data.view(column.dtype), joined[:, i]) for i, column in enumerate(spill.several)}

    def take(self, documents: np.ndarray) -> dict[str, Values]:
        """All columns of some documents."""
        rows, found = self.rows[documents], {}
        for column in self._spill.columns:
            if column.kind == "document":
                found[column.name] = Values(rows[column.name])
                continue
            values, firsts = self._several[column.name]
            sizes = rows[f"number of {column.name}"].astype(np.int64)
            found[column.name] = Values(values[word_spans.ranges(firsts[documents], sizes)], sizes)
        return found


def _words(size: int) -> int:
    """Whole words of eight bytes that hold so many bytes."""
    return -(-size // 8)


def write_shards(
    folder: str, spill: Shuffle, writers: Mapping[str, writer.SplitWriter], rule: groups.HeldOutRule, bar: tqdm.tqdm
) -> None:
    """Passes the spilled documents to the writers of their splits, in the order of their hashes."""
    for name in FILES[:NUM_SHARDS]:
        path = os.path.join(folder, name)
        if os.path.getsize(path):
            shard = ShuffleShard(path, spill)
            held_out = groups.are_held_out(shard.rows, rule)
            order = np.argsort(shard.rows["key"], kind="stable")
            pieces = np.cumsum(shard.rows["number of tokens"][order], dtype=np.int64) // _WRITE_TOKENS
            for documents in np.split(order, np.flatnonzero(np.diff(pieces)) + 1):
                for is_validation, split in enumerate(form.SPLITS):
                    chosen = documents[held_out[documents] == is_validation]
                    if len(chosen):
                        writers[split].add(shard.take(chosen), int(shard.rows["bytes"][chosen].sum()))
                bar.update(len(documents))
            del shard
        os.remove(path)
