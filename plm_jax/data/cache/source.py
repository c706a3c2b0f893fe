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
      folder: local folder of the cache, or of the local copies of a remote cache. Further files can be written to it.
      path: folder of the cache itself, which may be remote.
      identity: hash of everything that the cache depends on.
      vocabulary: entry of the vocabulary in the manifest: the fields of `CachedVocabulary`, and the special ids by
        name, such as `pad` (None if the vocabulary lacks an id). `lowercase` is left out if it is False.
      splits: `train`, and `validation` if the cache has this split.
      word_initial: bool [vocab_size], whether a token begins a word.
      segmenter: name of the function that has split the texts into words; None if there was no such function.
      has_inputs_targets: whether the two sentences of each document are inputs and targets.
      texts: names of the sentences of each document if documents are records of named texts; otherwise empty.
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
        """Returns the file of a document, and the number of its line or record in the file, counted from 1.

        If the source has no files, or the list of its files is missing or damaged, the name of a part, such as
        `part 0`, is returned instead of a file. Returns None if the cache has no origins, because it was not written by
        `prepare`.
        """
        opened = self.splits[split]
        if not opened.has("origin"):
            return None
        file, row = divmod(int(opened.of_document("origin", document)), 2**32)
        by_split = file_format.read_files(self.path) or {}
        files = by_split.get(split, by_split.get("train", []))
        return files[file][0] if file < len(files) else f"part {file}", row


def open_source(cache_dir: str, name: str, cached_tokens: int = 3 * 2**21, share: float = 1.0) -> CachedSource:
    """Opens a source's cache. Files of a local cache are checked, but not read in full.

    Args:
      cached_tokens: approximate number of tokens of each split that are held in memory.
      share: share of the rows of each batch that this process reads. From a remote cache, the process fetches little
        more than this share.

    Raises:
      UserError: the cache is missing, damaged or unreachable, has another format, or is a mixture's.
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
