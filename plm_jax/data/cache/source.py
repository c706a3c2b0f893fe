"""A source's cache, opened."""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data.cache import form
from plm_jax.data.cache.form import read_manifest
from plm_jax.data.cache.mirror import Folder, Mirror
from plm_jax.data.cache.split import Split
from plm_jax.data.cache.vectors import BLOCK_BYTES, Checksums, load


@dataclass(frozen=True)
class CachedSource:
    """A source's cache, opened.

    Attributes:
      folder: a local one, where more can be kept.
      path: where the cache itself is.
      vocabulary: `id`, `size`, `pad`, `bos`, `eos`, `unk`, `cls`, `sep`, `mask` (None where absent), `sentinels`,
        `kind` and `files` as prepared, `lowercase` where that is true.
      splits: `train`, and `validation` where there is one.
      word_initial: bool [vocab_size]: whether a token begins a word.
      segmenter: what found the words of its splits, where they have them.
      has_inputs_targets: whether the two sentences of each document are inputs and targets.
    """

    folder: str
    identity: str
    vocabulary: dict[str, Any]
    splits: dict[str, Split]
    word_initial: np.ndarray
    segmenter: str | None = None
    has_inputs_targets: bool = False
    path: str = ""

    def origin(self, split: str, document: int) -> tuple[str, int] | None:
        """Where a document comes from: a file, or a part of another source, and in it which line or record, from 1.

        None: the cache was not made by `prepare` and has no origins.
        """
        opened = self.splits[split]
        if not opened.has("origin"):
            return None
        file, place = divmod(int(opened.of_document("origin", document)), 2**32)
        listed = form.read_files(self.path) or {}
        rows = listed.get(split, listed.get("train", []))
        return rows[file][0] if file < len(rows) else f"part {file}", place


def open_source(cache_dir: str, name: str, cached_tokens: int = 3 * 2**21, share: float = 1.0) -> CachedSource:
    """Opens a source's cache; each split keeps about `cached_tokens` tokens in memory.

    Args:
      share: of the rows of each batch this process reads; of a remote cache little more is fetched than it reads.

    Raises:
      UserError: the cache is missing, damaged or of another format.
    """
    folder = os.path.join(cache_dir, name)
    found = read_manifest(folder)
    if "parts" in found:
        raise UserError(f"{folder} is of another mixture of tasks: run `python -m plm_jax prepare --config=…` again")
    manifest, remote = form.parse(folder, found), storage.is_remote(folder)
    place = Mirror(folder, manifest.identity) if remote else Folder(folder)
    splits = {split: Split(place, split, manifest, cached_tokens, share) for split in manifest.splits}
    size, crc32s = manifest.vocabulary.size, np.array(manifest.word_initial)
    checksums = Checksums(crc32s, 0, len(crc32s), BLOCK_BYTES)
    word_initial = load(place("word_initial.npy"), size, np.bool_, checksums)
    if not remote:  # Of a remote one, files stay where they are until they are read.
        for split in splits.values():
            split.check()
    return CachedSource(
        place.folder,
        manifest.identity,
        found["vocabulary"],
        splits,
        word_initial,
        manifest.segmenter,
        manifest.has_inputs_targets,
        folder,
    )


def verify(cache_dir: str, name: str) -> None:
    """Reads a source's cache to its end and compares it with its checksums.

    Raises:
      UserError: a file is missing or damaged.
    """
    for split in open_source(cache_dir, name).splits.values():
        split.verify()
