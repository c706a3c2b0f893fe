"""Tokenising on Apache Beam: workers take the pieces of a source, each on its own; what comes out is the local cache.

A document's number, which its place depends on, counts from the source's beginning: a first pass counts each piece's.
Then a worker writes what it made of a piece into files, parted as the spill's are, in a folder that this process shares
with it, and this process sorts the parts into its own spill. The names follow from the piece, so that to do one twice
does no harm, and Beam itself moves no text: its runners on one machine would hold all of it in memory.
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

from plm_jax.common import children, storage, users
from plm_jax.common.errors import UserError
from plm_jax.data.config import DataConfig
from plm_jax.data.prepare import groups, reading, runners
from plm_jax.data.prepare import shuffle as spill
from plm_jax.data.prepare import tokenizing as tokenising
from plm_jax.data.sources.corpus import Skipped
from plm_jax.data.vocabulary_config import VocabularyConfig

# Each piece costs a worker some tenths of a second.
_MOST_PIECES = 1024
# What a worker holds before it writes a file.
_FILE_BYTES = 2**26
_OFFSETS = np.dtype("<u8")
_LOOK_SECONDS = 1.0


class _Job(NamedTuple):
    """Job of the workers: a source, its pieces, and the folder for their output."""

    data: DataConfig
    vocabulary: VocabularyConfig
    name: str
    pieces: list[reading.SourcePiece]
    folder: str


def tokenise(
    data: DataConfig,
    vocabulary: VocabularyConfig,
    name: str,
    target: str,
    options: Sequence[str],
    skipped: Skipped,
    show_progress: bool = True,
) -> tuple[int, groups.Groups]:
    """Spills all documents of a source; returns the number of documents with tokens, and the groups of all.

    Args:
      name: name of the source.
      target: existing folder on this machine for the spill.
      options: as `runners.pipeline` takes them. Where workers are elsewhere, `--temp_location` must be a place that
        they share with this process.
      skipped: to which the bad rows that were left out are added.
      show_progress: whether to draw a bar.

    Raises:
      UserError: an option that Beam refuses; no folder in common; what the source's files are to blame for.
    """
    pipeline = runners.pipeline(options)
    pieces = reading.pieces(name, data.sources[name], _MOST_PIECES)
    root = pipeline.options.view_as(pipeline_options.GoogleCloudOptions).temp_location
    if not root:
        root = os.path.dirname(os.path.dirname(target))
        # What a killed run left. Its workers, which may outlive it, stop when they find their folder gone.
        for stale in glob.glob(os.path.join(glob.escape(root), f".{name}.pieces-*")):
            shutil.rmtree(stale, ignore_errors=True)
    folder = os.path.join(root, f".{name}.pieces-{uuid.uuid4().hex}")
    if not storage.is_remote(folder):
        os.makedirs(folder)
    try:
        with _progress(folder, f"{name}: counting, tokenising", 2 * len(pieces), show_progress):
            children.shielded(lambda: _run(pipeline, _Job(data, vocabulary, name, pieces, folder)))
        return _collect(folder, len(pieces), target, skipped)
    finally:
        storage.remove(folder)


def _run(pipeline: apache_beam.Pipeline, job: _Job) -> None:
    """The pipeline, to its end."""
    with pipeline:
        indices = pipeline | apache_beam.Create(range(len(job.pieces))) | apache_beam.Reshuffle()
        counts: Any = indices | "Count" >> apache_beam.Map(_count, job)
        numbers = AsDict(counts)
        _ = indices | "Tokenise" >> apache_beam.Map(_tokenise, job, numbers)


def _count(index: int, job: _Job) -> tuple[int, int]:
    """The number of documents in a piece, with its index."""
    number = 0
    with _reporting(index, job):
        number = sum(1 for _ in reading.documents(job.data, job.name, job.pieces[index], 0))
        _write(job.folder, f"{index}.counted", b"")
    return index, number


def _tokenise(index: int, job: _Job, counts: Mapping[int, int]) -> None:
    """Writes a piece's documents: `INDEX-0`, `INDEX-1`, … and at last `INDEX.done`."""
    number, of_groups, written, skipped = 0, groups.Groups(), 0, Skipped()
    with _reporting(index, job):
        first = sum(counts[before] for before in range(index))
        documents = reading.documents(job.data, job.name, job.pieces[index], first, skipped)
        blocks = tokenising.blocks(documents, _encoder(tokenising.task(job.data, job.vocabulary, job.name)))
        for batch in tokenising.batches(blocks, _FILE_BYTES, len):
            _write(job.folder, f"{index}-{written}", _parted(batch))
            written += 1
            for block in batch:
                number += block.documents
                of_groups.add(block.groups)
        counted = {"rows": of_groups.rows, "smallest": list(of_groups.smallest.items())}
        done = {"documents": number, "groups": counted, "files": written, "skipped": dataclasses.asdict(skipped)}
        _write(job.folder, f"{index}.done", json.dumps(done).encode("utf-8"))


def _parted(blocks: list[tokenising.TokenBlock]) -> bytes:
    """Returns the data that `_distribute` reads: the end of each file's part, followed by the parts."""
    parts = [b"".join(of_file) for of_file in zip(*(block.files for block in blocks), strict=True)]
    return b"".join([np.cumsum([len(part) for part in parts], dtype=_OFFSETS).tobytes(), *parts])


# Made once by a worker.
_encoder = functools.cache(tokenising.encoder)


@contextlib.contextmanager
def _reporting(index: int, job: _Job) -> Iterator[None]:
    """Leaves a user's mistake to the process that started the pipeline: Beam would bury it in a traceback.

    The worker may be on another machine, where the modules of the user's config are to be trusted as they are here.
    """
    users.trust(job.data.modules)
    try:
        yield
    except UserError as error:
        _write(job.folder, f"{index}.error", str(error).encode("utf-8"))


def _write(folder: str, name: str, data: bytes) -> None:
    """Writes a file, whole or not at all, into a folder that must still be there."""
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
    """Draws how many times a piece was counted or tokenised."""
    over = threading.Event()

    def look() -> None:
        with tqdm.tqdm(None, description, total, unit=" pieces") as bar:
            last = False
            while not last:
                last = over.wait(_LOOK_SECONDS)
                bar.update(sum(name.endswith((".counted", ".done")) for name in storage.names(folder)) - bar.n)

    thread = threading.Thread(target=look, daemon=True)
    if show:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if show:
            thread.join()


def _collect(folder: str, num_pieces: int, target: str, skipped: Skipped) -> tuple[int, groups.Groups]:
    """Distributes the files that workers wrote to the spill of this machine; returns what `tokenise` returns."""
    found = set(storage.names(folder))
    for index in range(num_pieces):
        if f"{index}.error" in found:
            raise UserError(storage.read(os.path.join(folder, f"{index}.error")).decode("utf-8"))
    number, of_groups = 0, groups.Groups()
    with spill.open_files(target) as files:
        for index in range(num_pieces):
            if f"{index}.done" not in found:
                raise UserError(
                    f"the workers left nothing in {folder}: give a --temp_location that they share with this machine"
                )
            done = json.loads(storage.read(os.path.join(folder, f"{index}.done")))
            number += done["documents"]
            of_groups.add(groups.Groups(done["groups"]["rows"], dict(done["groups"]["smallest"])))
            skipped.add(Skipped(**done["skipped"]))
            for part in range(done["files"]):
                path = os.path.join(folder, f"{index}-{part}")
                _distribute(memoryview(storage.read(path)), files)
                storage.remove(path)
    return number, of_groups


def _distribute(data: memoryview, files: Sequence[BinaryIO]) -> None:
    """Appends the parts of a worker's file to their files of the spill."""
    start = len(files) * _OFFSETS.itemsize
    ends = np.frombuffer(data[:start], _OFFSETS) + np.uint64(start)
    for file, end in zip(files, ends.tolist(), strict=True):
        file.write(data[start:end])
        start = end
