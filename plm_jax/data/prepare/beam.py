"""Tokenization on Apache Beam: each worker tokenizes pieces of a source. The cache is the same as without Beam.

The position of a document in the cache depends on its number in the source, so a first pass counts the documents of
each piece. Then a worker writes the tokens of a piece to files in a folder that it shares with this process. Each of
these files has a part for every file of the shuffle, to which this process appends the parts. File names depend on the
piece alone, so that a piece may be tokenized twice. Beam itself moves no text, because its runners on one machine would
hold all of it in memory.
"""

import contextlib
import dataclasses
import functools
import glob
import json
import os
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import apache_beam
import numpy as np
import tqdm
from apache_beam.options import pipeline_options
from apache_beam.pvalue import AsDict

from plm_jax.common import beam_pipeline, children, storage, users
from plm_jax.common.errors import UserError
from plm_jax.data.config import DataConfig
from plm_jax.data.prepare import groups, reading, shuffle, tokenizing
from plm_jax.data.sources.corpus import Skipped
from plm_jax.data.vocabulary_config import VocabularyConfig

# Each piece costs a worker a few tenths of a second.
_MOST_PIECES = 1024
# Size at which a worker writes a file.
_FILE_BYTES = 2**26
_OFFSETS = np.dtype("<u8")
_POLL_SECONDS = 1.0


class _Job(NamedTuple):
    """Job of the workers: a source, its pieces, and the folder for their output."""

    data: DataConfig
    vocabulary: VocabularyConfig
    name: str
    pieces: list[reading.SourcePiece]
    folder: str


def tokenize(
    data: DataConfig,
    vocabulary: VocabularyConfig,
    name: str,
    target: str,
    options: Sequence[str],
    skipped: Skipped,
    show_progress: bool = True,
) -> tuple[int, groups.Groups]:
    """Tokenizes all documents of a source into shuffle files.

    Args:
      name: name of the source.
      target: existing folder on this machine for the shuffle files.
      options: options of `beam_pipeline.pipeline`. If workers run on other machines, `--temp_location` must be a folder
        that they share with this process.
      skipped: counts of bad rows, to which this adds.
      show_progress: whether to draw a bar.

    Returns:
      Number of documents with tokens; groups of all documents.

    Raises:
      UserError: Beam rejects an option, the workers share no folder with this process, or the source has an error.
    """
    pipeline = beam_pipeline.pipeline(options)
    pieces = reading.pieces(name, data.sources[name], _MOST_PIECES)
    root = pipeline.options.view_as(pipeline_options.GoogleCloudOptions).temp_location
    if not root:
        root = os.path.dirname(os.path.dirname(target))
        # Remains of killed runs. Their workers may outlive them, and stop when their folder is gone.
        for stale in glob.glob(os.path.join(glob.escape(root), f".{name}.pieces-*")):
            shutil.rmtree(stale, ignore_errors=True)
    folder = os.path.join(root, f".{name}.pieces-{uuid.uuid4().hex}")
    if not storage.is_remote(folder):
        os.makedirs(folder)
    try:
        with _progress(folder, f"{name}: counting, tokenizing", 2 * len(pieces), show_progress):
            children.in_background(lambda: _run(pipeline, _Job(data, vocabulary, name, pieces, folder))).result()
        return _collect(folder, len(pieces), target, skipped)
    finally:
        storage.remove(folder)


def _run(pipeline: apache_beam.Pipeline, job: _Job) -> None:
    with pipeline:
        indices = pipeline | apache_beam.Create(range(len(job.pieces))) | apache_beam.Reshuffle()
        counts: Any = indices | "Count" >> apache_beam.Map(_count, job)
        numbers = AsDict(counts)
        _ = indices | "Tokenize" >> apache_beam.Map(_tokenize, job, numbers)


def _count(index: int, job: _Job) -> tuple[int, int]:
    """Returns the index of a piece and the number of its documents."""
    number = 0
    with _reporting(index, job):
        number = sum(1 for _ in reading.documents(job.data, job.name, job.pieces[index], 0))
        _write(job.folder, f"{index}.counted", b"")
    return index, number


def _tokenize(index: int, job: _Job, counts: Mapping[int, int]) -> None:
    """Writes the files of a piece: `INDEX-0`, `INDEX-1`, … and finally `INDEX.done`."""
    num_documents, all_groups, written, skipped = 0, groups.Groups(), 0, Skipped()
    with _reporting(index, job):
        first = sum(counts[before] for before in range(index))
        documents = reading.documents(job.data, job.name, job.pieces[index], first, skipped)
        blocks = tokenizing.blocks(documents, _encoder(tokenizing.task(job.data, job.vocabulary, job.name)))
        for batch in tokenizing.batches(blocks, _FILE_BYTES, len):
            _write(job.folder, f"{index}-{written}", _parted(batch))
            written += 1
            for block in batch:
                num_documents += block.documents
                all_groups.add(block.groups)
        counted = {"rows": all_groups.rows, "smallest": list(all_groups.smallest.items())}
        done = {"documents": num_documents, "groups": counted, "files": written, "skipped": dataclasses.asdict(skipped)}
        _write(job.folder, f"{index}.done", json.dumps(done).encode("utf-8"))


def _parted(blocks: list[tokenizing.TokenBlock]) -> bytes:
    """Returns the data that `_distribute` reads: the end of each file's part, followed by the parts."""
    parts = [b"".join(pieces) for pieces in zip(*(block.files for block in blocks), strict=True)]
    return b"".join([np.cumsum([len(part) for part in parts], dtype=_OFFSETS).tobytes(), *parts])


# Each worker makes an encoder once.
_encoder = functools.cache(tokenizing.encoder)


@contextlib.contextmanager
def _reporting(index: int, job: _Job) -> Iterator[None]:
    """Passes a `UserError` to the process that started the pipeline; Beam would bury it in a traceback.

    It also trusts the modules of the user's config, because the worker may be on another machine.
    """
    users.trust(job.data.modules)
    try:
        yield
    except UserError as error:
        _write(job.folder, f"{index}.error", str(error).encode("utf-8"))


def _write(folder: str, name: str, data: bytes) -> None:
    """Writes a file atomically; a local folder must still exist."""
    path = os.path.join(folder, name)
    if storage.is_remote(path):
        storage.write(path, data)
        return
    temporary = f"{path}.{uuid.uuid4().hex}"
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


@contextlib.contextmanager
def _progress(folder: str, description: str, total: int, show: bool) -> Iterator[None]:
    """Draws the number of pieces that were counted plus the number that were tokenized."""
    finished = threading.Event()

    def draw() -> None:
        with tqdm.tqdm(None, description, total, unit=" pieces") as bar:
            last = False
            while not last:
                last = finished.wait(_POLL_SECONDS)
                bar.update(sum(name.endswith((".counted", ".done")) for name in storage.names(folder)) - bar.n)

    thread = threading.Thread(target=draw, daemon=True)
    if show:
        thread.start()
    try:
        yield
    finally:
        finished.set()
        if show:
            thread.join()


def _collect(folder: str, num_pieces: int, target: str, skipped: Skipped) -> tuple[int, groups.Groups]:
    """Distributes the files that workers wrote to the shuffle files of this machine; returns as `tokenize` does."""
    names = set(storage.names(folder))
    for index in range(num_pieces):
        if f"{index}.error" in names:
            raise UserError(storage.read(os.path.join(folder, f"{index}.error")).decode("utf-8"))
    num_documents, all_groups = 0, groups.Groups()
    with shuffle.open_files(target) as files:
        for index in range(num_pieces):
            if f"{index}.done" not in names:
                raise UserError(
                    f"the workers wrote nothing to {folder}: set --temp_location to a folder shared with this machine"
                )
            done = json.loads(storage.read(os.path.join(folder, f"{index}.done")))
            num_documents += done["documents"]
            all_groups.add(groups.Groups(done["groups"]["rows"], dict(done["groups"]["smallest"])))
            skipped.add(Skipped(**done["skipped"]))
            for part in range(done["files"]):
                path = os.path.join(folder, f"{index}-{part}")
                _distribute(memoryview(storage.read(path)), files)
                storage.remove(path)
    return num_documents, all_groups


def _distribute(data: memoryview, files: Sequence[BinaryIO]) -> None:
    """Appends the parts of a worker's file to the files of the shuffle."""
    start = len(files) * _OFFSETS.itemsize
    ends = np.frombuffer(data[:start], _OFFSETS) + np.uint64(start)
    for file, end in zip(files, ends.tolist(), strict=True):
        file.write(data[start:end])
        start = end
