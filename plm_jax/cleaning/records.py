"""Pages and rows as bytes, for files between the stages of cleaning."""

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from plm_jax.cleaning import crawl, settings
from plm_jax.cleaning.pages import Page, url_hash
from plm_jax.common import parts

_SIZES = struct.Struct("<4I")
_ROW = struct.Struct("<H16sI")
KEY_BYTES = 16


def encode(page: Page) -> bytes:
    """Returns a page as bytes."""
    fields = [field.encode("utf-8") for field in page]
    return _SIZES.pack(*map(len, fields)) + b"".join(fields)


def decode(record: bytes) -> Page:
    """Decodes a page that `encode` returned."""
    fields, position = [], _SIZES.size
    for size in _SIZES.unpack_from(record):
        fields.append(record[position : position + size].decode("utf-8"))
        position += size
    return Page(*fields)


def pages(slices: Iterable[parts.Slice]) -> Iterator[Page]:
    """Iterates over the pages in slices of files."""
    return map(decode, encoded_pages(slices))


def encoded_pages(slices: Iterable[parts.Slice]) -> Iterator[bytes]:
    """Iterates over the pages in slices of files, as bytes, which take less memory than text."""
    for part in slices:
        for block in parts.blocks(part):
            position = 0
            while position < len(block):
                end = position + _SIZES.size + sum(_SIZES.unpack_from(block, position))
                yield block[position:end]
                position = end


class Row(NamedTuple):
    """Line of an output file.

    Attributes:
      name: path of the file, relative to the output.
      key: 16 bytes by which the lines of a file are sorted.
      line: the line, including its line break.
    """

    name: str
    key: bytes
    line: bytes


def encode_row(row: Row) -> bytes:
    """Returns a row as bytes."""
    name = row.name.encode("utf-8")
    return _ROW.pack(len(name), row.key, len(row.line)) + name + row.line


def rows(slices: Iterable[parts.Slice]) -> Iterator[Row]:
    """Iterates over the rows in slices of files."""
    for part in slices:
        for block in parts.blocks(part):
            position = 0
            while position < len(block):
                name_size, key, size = _ROW.unpack_from(block, position)
                start = position + _ROW.size + name_size
                name = block[start - name_size : start].decode("utf-8")
                position = start + size
                yield Row(name, key, block[start:position])


def digests(slices: Iterable[parts.Slice]) -> bytes:
    """Returns the records in slices of files, concatenated. Records have a fixed size, such as digests of URLs."""
    return b"".join(block for part in slices for block in parts.blocks(part))


def position(key: bytes, number: int) -> int:
    """Returns the index of the range that contains a key, if all keys are divided into `number` equal ranges."""
    return int.from_bytes(key[:4], "big") * number >> 32


def page_row(page: Page, rule: settings.CleaningConfig) -> tuple[int, Row]:
    """Returns the file number and the row of a page. With `Cld3Config`, each language has a folder.

    Training files have the numbers in [0, num_shards); validation files follow.
    """
    # The remainder selects the split, so only the quotient is free to select the shard.
    number, remainder = divmod(url_hash(page), rule.validation_one_in)
    split, shards = ("train", rule.num_shards) if remainder else ("validation", _num_validation_shards(rule))
    shard = number % shards
    folder = page.language if isinstance(rule.language, settings.Cld3Config) else ""
    fields = {"text": page.text, "url": page.url, "timestamp": page.timestamp, "language": page.language}
    name = os.path.join(folder, f"{split}-{shard:05d}.jsonl.gz")
    line = (json.dumps(fields, ensure_ascii=False) + "\n").encode("utf-8")
    return shard + (0 if remainder else rule.num_shards), Row(name, page.key, line)


def num_files(rule: settings.CleaningConfig) -> int:
    """Returns the number of training files plus the number of validation files, per language."""
    return rule.num_shards + _num_validation_shards(rule)


def _num_validation_shards(rule: settings.CleaningConfig) -> int:
    return -(-rule.num_shards // rule.validation_one_in)


def quarantined_row(record: crawl.Quarantined, num_shards: int) -> tuple[int, Row]:
    """Returns the file number and the row of a record that cannot be read."""
    line = (json.dumps(record._asdict(), ensure_ascii=False) + "\n").encode("utf-8")
    key = hashlib.md5(line).digest()
    shard = int.from_bytes(key, "big") % num_shards
    return shard, Row(f"quarantine/{shard:05d}.jsonl.gz", key, line)
