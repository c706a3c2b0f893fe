"""Opens and verifies the cache of a source."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data.cache import file_format
from plm_jax.data.cache.file_format import read_manifest
from plm_jax.data.cache.mirror import Folder, Mirror
from plm_jax.data.cache.split import Split
from plm_jax.data.cache.vectors import BLOCK_BYTES, Checksums, load


@dataclass(frozen=True)
class CachedSource:
    """Opened cache of a source.

    Attributes:
      folder: local folder of the cache or of its copies, in which further files can be written.
      path: folder of the cache itself, which may be remote.
      vocabulary: `id`, `size`, `pad`, `bos`, `eos`, `unk`, `cls`, `sep`, `mask` (None if absent), `sentinels`, `kind`
        and `files` from the manifest, and `lowercase` if it is true.
      splits: `train`, and `validation` if there is one.
      word_initial: bool [vocab_size], whether a token begins a word.
      segmenter: name of the function that split the texts into words, if any.
      has_inputs_targets: whether the two sentences of each document are inputs and targets.
      texts: names of the sentences of each document, if it is a record of named texts.
    """

    folder: str
    identity: str
    vocabulary: dict[str, Any]
    splits: dict[str, Split]
    word_initial: np.ndarray
    segmenter: str | None = None
    has_inputs_targets: bool = False
    path: str = ""
    texts: tuple[str, ...] = ()

    def origin(self, split: str, document: int) -> tuple[str, int] | None:
        """Returns the file (or the part of another kind of source) of a document, and the line or record in it, from 1.

        Returns None if the cache has no origins, because `prepare` did not write it.
        """
        opened = self.splits[split]
        if not opened.has("origin"):
            return None
        file, row = divmod(int(opened.of_document("origin", document)), 2**32)
        by_split = file_format.read_files(self.path) or {}
        files = by_split.get(split, by_split.get("train", []))
        return files[file][0] if file < len(files) else f"part {file}", row


def open_source(cache_dir: str, name: str, cached_tokens: int = 3 * 2**21, share: float = 1.0) -> CachedSource:
    """Opens a source's cache.

    Args:
      cached_tokens: approximate number of tokens of each split that are held in memory.
      share: share of the rows of each batch that this process reads; it fetches little more of a remote cache.

    Raises:
      UserError: the cache is missing, damaged or has another format.
    """
    folder = os.path.join(cache_dir, name)
    fields = read_manifest(folder)
    if "parts" in fields:
        raise UserError(
            f"{folder} belongs to another mixture of tasks: run `python -m plm_jax prepare --config=…` again"
        )
    manifest, remote = file_format.parse(folder, fields), storage.is_remote(folder)
    root = Mirror(folder, manifest.identity) if remote else Folder(folder)
    splits = {split: Split(root, split, manifest, cached_tokens, share) for split in manifest.splits}
    size, crc32s = manifest.vocabulary.size, np.array(manifest.word_initial)
    checksums = Checksums(crc32s, 0, len(crc32s), BLOCK_BYTES)
    word_initial = load(root("word_initial.npy"), size, np.bool_, checksums)
    if not remote:  # Files of a remote cache are fetched when they are read.
        for split in splits.values():
            split.check()
    return CachedSource(
        root.folder,
        manifest.identity,
        fields["vocabulary"],
        splits,
        word_initial,
        manifest.segmenter,
        manifest.has_inputs_targets,
        folder,
        manifest.texts,
    )


def verify(cache_dir: str, name: str) -> None:
    """Reads the whole cache of a source and compares it with its checksums.

    Raises:
      UserError: a file is missing or damaged.
    """
    for split in open_source(cache_dir, name).splits.values():
        split.verify()
