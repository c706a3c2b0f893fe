"""Caches of invented documents, written by the cache's writer."""

import hashlib
import itertools
import json
import os
import pathlib

import numpy as np

from plm_jax.data import cache
from plm_jax.data.cache import columns


def write_split(folder, documents, vocab_size, bytes_a_token=1):
    """Writes (tokens, sentence starts) of documents. Returns the manifest entry of the split."""
    writer = cache.SplitWriter(str(folder), vocab_size)
    for tokens, starts in documents:
        lists = {"tokens": tokens, "sentence_starts": starts}
        values = {name: cache.Values(np.asarray(ids), np.array([len(ids)])) for name, ids in lists.items()}
        first_bytes = cache.Values(np.array([bytes_a_token]))
        writer.add(values | {"first_bytes": first_bytes}, bytes_a_token * len(tokens))
    return writer.close()


def write(folder, name, splits, vocab_size, vocabulary, word_initial=None, bytes_a_token=1, **more):
    """Writes the cache of source `name` into a folder.

    Args:
      splits: (tokens, sentence starts) of the documents by split.
      vocabulary: entries of the vocabulary in the manifest that differ from a vocabulary `v` of bytes without files.
      more: other entries of the manifest.
    """
    temporary = os.path.join(folder, f".{name}")
    counts = {
        split: write_split(os.path.join(temporary, split), documents, vocab_size, bytes_a_token)
        for split, documents in splits.items()
    }
    word_initial = np.ones(vocab_size, np.bool_) if word_initial is None else word_initial
    described = cache.describe(vocab_size, (columns.SENTENCE_STARTS, columns.FIRST_BYTES), word_initial, temporary)
    vocabulary = {"id": "v", "size": vocab_size, "kind": "bytes", "files": {}} | vocabulary
    manifest = {"identity": "i", "vocabulary": vocabulary, "splits": counts, **described, **more}
    cache.publish(temporary, os.path.join(folder, name), manifest)


def rewrite(folder, change):
    """Applies `change` to the manifest in a source's folder and writes it with a valid checksum."""
    path = pathlib.Path(folder) / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest | {"crc32": cache.crc32(manifest)}))


def flip(path, at, bit=3):
    """Flips a bit of the byte at a position of a file."""
    data = bytearray(pathlib.Path(path).read_bytes())
    data[at] ^= 1 << bit
    pathlib.Path(path).write_bytes(data)


def contents(folder):
    """Returns the SHA-256 of every file in a folder, by its path in the folder."""
    paths = (path for path in pathlib.Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def stored_texts(split):
    """Returns the documents of a split of a vocabulary of bytes."""
    documents = itertools.pairwise(split.documents)
    return [bytes(split.tokens(start, stop).astype(np.uint8)).decode() for start, stop in documents]
