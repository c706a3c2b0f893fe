"""Cache of tokenized documents, which `prepare` writes and the trainer reads.

    columns.py      columns of documents, each with a name, a type and a kind
    file_format.py  names and sizes of the files, and the manifest
    vectors.py      .npy files, written piece by piece and checked block by block
    sorted_ids.py   long vectors, read page by page, and search in sorted vectors
    checked.py      vectors of a folder, compared with their checksums
    shards.py       positions of tokens in the bytes of their files
    writer.py       writes splits, publishes and uploads a cache
    split.py        reads a split
    memory.py       documents in memory with the interface of a split
    source.py       opens and verifies a cache
    similar_words.py  table of similar words next to the caches
    mirror.py       folder of a local cache, and local copies of the files of a remote cache
    staleness.py    comparison of a cache with the source in a config

Documents have no special tokens. If the manifest sets `has_inputs_targets`, a document has two sentences: the first one
is the inputs and the second one is the targets. Each may have no tokens. Records and long vectors are read through
small caches, and only a few token files are open at a time, so memory does not grow with the corpus. A remote cache is
fetched as it is read (`Mirror`), so the disk need not have room for the whole cache. Long vectors are fetched by range,
and so are token files if a process reads only a small part of them. Other files are fetched whole. Tokens and vectors
are compared with their checksums when they are read. The package imports neither JAX nor TensorFlow.
"""

from plm_jax.data.cache.checked import Vectors
from plm_jax.data.cache.columns import Column, Values, gather
from plm_jax.data.cache.file_format import SPLITS, crc32, read_manifest
from plm_jax.data.cache.memory import MemoryTable
from plm_jax.data.cache.mirror import Folder
from plm_jax.data.cache.sorted_ids import PagedVector
from plm_jax.data.cache.source import CachedSource, open_source, verify
from plm_jax.data.cache.split import DocumentTable, Split
from plm_jax.data.cache.vectors import NpyAppender, damaged, save_checksums
from plm_jax.data.cache.writer import SplitWriter, describe, publish, upload

__all__ = [
    "SPLITS",
    "CachedSource",
    "Column",
    "DocumentTable",
    "Folder",
    "MemoryTable",
    "NpyAppender",
    "PagedVector",
    "Split",
    "SplitWriter",
    "Values",
    "Vectors",
    "crc32",
    "damaged",
    "describe",
    "gather",
    "open_source",
    "publish",
    "read_manifest",
    "save_checksums",
    "upload",
    "verify",
]
