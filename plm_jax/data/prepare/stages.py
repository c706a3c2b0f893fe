"""Tokenization of a source as tasks over files, on an engine. The cache has the same bytes as without an engine.

    SOURCE-count       counts the documents in each group of consecutive pieces of the source. The counts give each
                       document its number, on which the position of the document in the cache depends.
    SOURCE-tokenize    tokenizes each group of pieces into one file, with a part for each file of the shuffle

Then the process that writes the cache fetches the files of the shuffle one after another. It joins the parts of each
file in the order of the pieces. A single process writes the cache, because the tokens of two files of the shuffle may
share a record of the cache.
"""

import dataclasses
import functools
import json
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from typing import Any, NamedTuple

from plm_jax.common import children, jobs, parts, storage, tasks, trees, users
from plm_jax.common.errors import UserError
from plm_jax.data import vocabularies
from plm_jax.data.config import DataConfig
from plm_jax.data.prepare import groups, reading, shuffle, tokenizing
from plm_jax.data.sources.corpus import Skipped
from plm_jax.data.vocabulary_config import VocabularyConfig

# Limits: pieces of a split, if the source can be divided anywhere, and tasks of a stage.
_MOST_PIECES, _MOST_TASKS = 2**10, 2**11
_SETTINGS = "settings.json"
# Parts in a bucket that are fetched at a time.
_FETCHES = 16


class Engine(NamedTuple):
    """Executor of tasks (such as a cluster), and the folder of its jobs.

    Attributes:
      executor: executor whose context manager is already entered.
      work: folder of jobs (`common/jobs.py`), locked by this process and accessible to the workers. A copy of the
        vocabulary is next to it.
    """

    executor: tasks.Executor
    work: str


def tokenize(
    data: DataConfig,
    vocabulary: VocabularyConfig,
    name: str,
    identity: str,
    target: str,
    engine: Engine,
    skipped: Skipped,
    show_progress: bool = True,
) -> shuffle.Shuffled:
    """Tokenizes all documents of a source. A repeated call with the same `identity` resumes a job that was stopped.

    Args:
      name: name of the source.
      identity: hash of everything that the tokens depend on, except the code; if empty, the job does not resume.
      target: existing folder on this machine for fetched files.
      skipped: counter of rows and bad rows, which this function increases.

    Raises:
      UserError: the source has an error, too many rows are bad, or tasks failed.
    """
    job = jobs.begin(engine.work, identity or uuid.uuid4().hex)
    copied = vocabularies.within(vocabulary.spec, os.path.join(os.path.dirname(engine.work), "vocabulary"))
    content = {
        "data": trees.to_dict(data),
        "vocabulary": trees.to_dict(dataclasses.replace(vocabulary, spec=copied)),
        "source": name,
        "modules": sorted(data.modules),
        "code": sorted(users.used(data.sources[name])),
    }
    storage.write(os.path.join(job.folder, _SETTINGS), json.dumps(content).encode("utf-8"))
    num_pieces = len(reading.pieces(name, data.sources[name], _MOST_PIECES))
    count, tokenized = f"{name}-count", f"{name}-tokenize"
    stages = [
        tasks.Stage(count, functools.partial(_count_tasks, num_pieces)),
        tasks.Stage(tokenized, functools.partial(_tokenize_tasks, name, count)),
    ]
    marks = children.in_background(lambda: tasks.run(job, stages, engine.executor, show_progress)).result()
    skipped.add(_skipped(marks[count]))
    num_documents, all_groups = 0, groups.Groups()
    for mark in marks[tokenized]:
        num_documents += mark.result["documents"]
        all_groups.add(groups.Groups(mark.result["rows"], dict(mark.result["smallest"])))
    fetch = functools.partial(_fetch, job.folder, marks[tokenized], target)
    return shuffle.Shuffled(num_documents, all_groups, fetch)


def _count_tasks(num_pieces: int, marks: tasks.Marks) -> list[tasks.Task]:
    del marks
    number = max(1, min(num_pieces, _MOST_TASKS))
    bounds = [num_pieces * index // number for index in range(number + 1)]
    return [
        tasks.Task(f"{index:06d}", _count, (bounds[index], bounds[index + 1]), subject=None) for index in range(number)
    ]


def _count(workspace: tasks.Workspace, start: int, stop: int) -> dict[str, Any]:
    """Counts the documents, rows and bad rows of consecutive pieces."""
    settings, skipped = _settings(workspace.folder, workspace.identity), Skipped()
    documents = reading.documents_of(settings.data, settings.source, settings.pieces[start:stop], 0, skipped)
    number = sum(1 for _ in documents)
    return {"pieces": [start, stop], "documents": number, "skipped": dataclasses.asdict(skipped)}


def _skipped(marks: Iterable[tasks.Mark]) -> Skipped:
    """Returns the sum of the rows and bad rows that the tasks counted."""
    total = Skipped()
    for mark in marks:
        total.add(Skipped(**mark.result["skipped"]))
    return total


def _tokenize_tasks(name: str, count: str, marks: tasks.Marks) -> list[tasks.Task]:
    _skipped(marks[count]).check(name)
    result, first = [], 0
    for mark in marks[count]:
        number = mark.result["documents"]
        result.append(tasks.Task(mark.task, _tokenize, (*mark.result["pieces"], first, number), subject=None))
        first += number
    return result


def _tokenize(workspace: tasks.Workspace, start: int, stop: int, first: int, number: int) -> dict[str, Any]:
    """Writes the tokens of consecutive pieces, whose documents are numbered from `first`."""
    settings = _settings(workspace.folder, workspace.identity)
    documents = reading.documents_of(settings.data, settings.source, settings.pieces[start:stop], first, Skipped())
    num_documents, all_groups, writer = 0, groups.Groups(), parts.PartsWriter(len(shuffle.FILES))
    for block in tokenizing.blocks(documents, _encoder(workspace.folder, workspace.identity)):
        for part, content in enumerate(block.files):
            if content:
                writer.add(part, content)
        num_documents += block.documents
        all_groups.add(block.groups)
    if all_groups.rows != number:
        raise UserError(f"source '{settings.source}' has changed while it was read: run the same command again")
    with workspace.writing(workspace.task) as file:
        offsets = writer.write(file)
    smallest = list(all_groups.smallest.items())
    return {"documents": num_documents, "rows": all_groups.rows, "smallest": smallest, "offsets": offsets}


class _Settings(NamedTuple):
    """Settings of a job, which workers read from the job's folder, and the pieces of the job's source."""

    data: DataConfig
    vocabulary: VocabularyConfig
    source: str
    pieces: list[reading.SourcePiece]


@functools.lru_cache(2)
def _settings(folder: str, identity: str) -> _Settings:
    del identity
    content = json.loads(storage.read(os.path.join(folder, _SETTINGS)))
    users.trust(content["modules"])
    for module in content["code"]:
        users.load(module)
    data = trees.parse(DataConfig, content["data"], "config.data")
    vocabulary = trees.parse(VocabularyConfig, content["vocabulary"], "config.vocabulary")
    source = content["source"]
    return _Settings(data, vocabulary, source, reading.pieces(source, data.sources[source], _MOST_PIECES))


@functools.lru_cache(2)
def _encoder(folder: str, identity: str) -> Callable[[tokenizing.Batch], tokenizing.TokenBlock]:
    settings = _settings(folder, identity)
    return tokenizing.encoder(tokenizing.task(settings.data, settings.vocabulary, settings.source))


def _fetch(folder: str, marks: Sequence[tasks.Mark], target: str, name: str) -> str:
    """Joins the parts of the file `name` of the shuffle and returns the path of the joined file, in `target`.

    Raises:
      UserError: a file of a task is gone or damaged.
    """
    path, part, slices = os.path.join(target, name), shuffle.FILES.index(name), []
    for mark in marks:
        start, stop = mark.result["offsets"][part : part + 2]
        slices.append(parts.Slice(os.path.join(folder, mark.outputs[0].path), start, stop, 0))
    number = _FETCHES if storage.is_remote(folder) else 1
    with open(path, "wb") as file, futures.ThreadPoolExecutor(number) as threads:
        for first in range(0, len(slices), number):
            for content in threads.map(_content, slices[first : first + number]):
                file.write(content)
    return path


def _content(part: parts.Slice) -> bytes:
    try:
        return b"".join(parts.blocks(part))
    except (FileNotFoundError, ValueError) as error:
        raise UserError(
            f"{part.path} is gone or damaged ({error}): remove {os.path.dirname(os.path.dirname(part.path))} and run "
            "the same command again"
        ) from error
