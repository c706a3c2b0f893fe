"""Table of similar words next to the caches of a run, made from a text file by `prepare`.

CACHE_DIR/similar_words/manifest.json   identity, `file` (SHA-256 of the text file), `vocabulary` (identity of
                                        the vocabulary), `values` (length of the table) and `checksums` of the
                                        blocks of the table
CACHE_DIR/similar_words/words.npy       int32 [values]: entries of `objectives.similar_words`
"""

import hashlib
import os

import numpy as np

from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data.cache import file_format, vectors
from plm_jax.data.cache.mirror import Folder, Mirror
from plm_jax.data.cache.writer import publish
from plm_jax.objectives.similar_words import SimilarWords

NAME = "similar_words"
_FILE = "words.npy"
_AGAIN = "run `python -m plm_jax prepare --config=…` again"


def identity(file: str, vocabulary_id: str) -> str:
    """Returns the SHA-256 that identifies the table of a text file and a vocabulary; reads the file."""
    return hashlib.sha256(f"{storage.sha256(file)} {vocabulary_id}".encode()).hexdigest()


def save(folder: str, file: str, vocabulary_id: str, table: np.ndarray) -> None:
    """Writes the table of a text file into the local folder of the caches, replacing an older table."""
    temporary = os.path.join(folder, f".{NAME}.tmp")
    storage.remove(temporary)
    os.makedirs(temporary)
    manifest = {
        "identity": identity(file, vocabulary_id),
        "file": storage.sha256(file),
        "vocabulary": vocabulary_id,
        "values": len(table),
        "checksums": vectors.save(os.path.join(temporary, _FILE), table).tolist(),
    }
    publish(temporary, os.path.join(folder, NAME), manifest)


def is_current(cache_dir: str, file: str) -> bool:
    """Whether the table next to the caches was made from this text file; True if the file does not exist.

    Raises:
      UserError: there is no table, or its manifest is damaged.
    """
    recorded = file_format.read_manifest(os.path.join(cache_dir, NAME)).get("file")
    return not storage.exists(file) or storage.sha256(file) == recorded


def load(cache_dir: str, file: str, vocabulary_id: str) -> tuple[str, SimilarWords]:
    """Reads the table next to the caches; returns a pair of its identity and the table.

    Raises:
      UserError: the table is missing or damaged, was made with another vocabulary, or is not current (`is_current`).
    """
    folder = os.path.join(cache_dir, NAME)
    manifest = file_format.read_manifest(folder)
    if manifest.get("vocabulary") != vocabulary_id:
        raise UserError(f"{folder} was made with another vocabulary: {_AGAIN}")
    if not is_current(cache_dir, file):
        raise UserError(f"{file} has changed since {folder} was made: {_AGAIN}")
    root = Mirror(folder, manifest["identity"]) if storage.is_remote(folder) else Folder(folder)
    crc32s = np.array(manifest["checksums"], np.int64)
    checksums = vectors.Checksums(crc32s, 0, len(crc32s), vectors.BLOCK_BYTES)
    return manifest["identity"], SimilarWords(vectors.load(root(_FILE), manifest["values"], np.int32, checksums))
