"""The cache of tokenised documents: what `prepare` writes and the trainer reads.

    columns.py    what is kept of documents: named columns, each of one type and one kind
    form.py       names and sizes of the files, and the manifest
    vectors.py    .npy files, written piece by piece, checked block by block
    rising.py     long vectors, read by pages; where parts begin in them, found by milestones
    checked.py    the vectors of a folder, each compared with its checksums
    shards.py     where the bytes of tokens lie in their files
    writer.py     writes splits, publishes and uploads a cache
    split.py      reads a split
    source.py     opens and verifies a cache
    mirror.py     a cache's folder; local copies of the files of remote ones
    staleness.py  whether a cache is still that of a config's source

Documents hold no special tokens. Where the manifest says `has_inputs_targets`, the sentences of a document are two,
inputs and targets; either may have no tokens. Records and long vectors are read through small caches, and a few token
files are open at once, so memory does not grow with the corpus. Of a remote cache each file is fetched when it is first
read (`Mirror`), so that the disk need not hold the corpus either; long vectors, and tokens of which a process reads
few, are fetched by range. Whatever is read is compared with its checksum. NumPy and array_record only.
"""

from plm_jax.data.cache.checked import Vectors
from plm_jax.data.cache.columns import Column, Values, gather
from plm_jax.data.cache.form import SPLITS, crc32, read_manifest
from plm_jax.data.cache.mirror import Folder
from plm_jax.data.cache.sorted_ids import Ranged
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
    "NpyAppender",
    "Ranged",
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
