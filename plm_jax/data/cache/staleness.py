"""Comparison of a cache with its source: checks whether the source has changed since `prepare` recorded it.

    CACHE_DIR/SOURCE/manifest.json   `source`, an object with the fields `name`, `task` (its definition),
                                     `validation_fraction`, `bad_rows`, `segmenter` (its name and the hashes of its
                                     code) and, for a user's own source, `fingerprint` (SHA-256 of `Corpus.fingerprint`)
    CACHE_DIR/SOURCE/files.json      for a source of files, in each split: name, size, modification time, change time
                                     and SHA-256 of each file

The times of files are not in the manifest, because they depend on the machine. This module does not import TensorFlow.
A file of a source of files is read only if its size is unchanged, but its name or one of its times has changed.
"""

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeGuard

from plm_jax.common import progress, storage, trees, users
from plm_jax.common.errors import UserError, one_line
from plm_jax.data.cache import file_format
from plm_jax.data.config import DataConfig
from plm_jax.data.sources import files
from plm_jax.data.sources.source import Source, TaskSource

Listing = dict[str, list[storage.File]]

# Coarsest unit of change times in file systems; two changes within one unit leave the same time.
_TIME_UNIT_NS = 20_000_000


class Comparison(NamedTuple):
    """Result of a comparison of a cache with its source.

    Attributes:
      changed: difference between the cache and its source; None if no difference was found.
      unseen: reason why the cache and its source could not be compared in full; None if they were.
    """

    changed: str | None = None
    unseen: str | None = None


class Origin(NamedTuple):
    """Contents of a source when it was read.

    Attributes:
      contents: result of `Corpus.fingerprint`.
      listed: files of each split, listed before the files were read; empty for sources without files.
    """

    contents: list[str]
    listed: Listing


def describe(data: DataConfig, name: str, has_validation: bool, contents: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the description of the source `name` for the manifest of its cache.

    Args:
      has_validation: whether the source has its own validation split.
      contents: fingerprint of the source; ignored unless the source opens a user's own corpus.
    """
    source = data.sources[name]
    described = {
        "name": name,
        "task": files.definition(source),
        "validation_fraction": None if has_validation else data.validation_fraction,
        "bad_rows": data.bad_rows if isinstance(source, files.FileSource) else None,
    }
    if name in data.segmenters:
        described["segmenter"] = segmenter(data, name)
    return described | ({"fingerprint": _digest(contents)} if _is_users(source) and contents else {})


def segmenter(data: DataConfig, name: str) -> list[str]:
    """Returns the name of a source's segmenter, followed by the hashes of its code if it is installed here."""
    function = data.segmenters[name]
    return [function, *users.digests(function.partition(":")[0])]


def read_origin(source: Any, fingerprint: Callable[[], list[str]]) -> Origin:
    """Returns the current contents of a source.

    Files are listed before they are read. A later comparison thus notices changes during reading.

    Args:
      fingerprint: `Corpus.fingerprint` of the source.

    Raises:
      UserError: the fingerprint is not a list of strings.
    """
    listed = _listing(source) if _is_of_files(source) else {}
    _settle(listed)
    contents = fingerprint()
    if not isinstance(contents, list | tuple) or not all(isinstance(text, str) for text in contents):
        raise UserError(
            f"`fingerprint` of a source of kind '{source.kind}' returns {type(contents).__name__}: return a list of "
            "strings that change whenever its documents do"
        )
    return Origin(list(contents), listed)


def record_files(folder: str, source: Any, origin: Origin) -> None:
    """Writes the files of a source to `files.json` in its cache's folder, unless nothing has changed.

    Does nothing if the source is not a source of files.
    """
    if not origin.listed:
        return
    hashes = iter([value for value in origin.contents if value not in origin.listed])
    rows = {
        split: [
            [_name(source, split, file.path), file.size, file.modified, file.changed, next(hashes)] for file in listed
        ]
        for split, listed in origin.listed.items()
    }
    path, data = os.path.join(folder, file_format.FILES), file_format.files_json(rows)
    with contextlib.suppress(FileNotFoundError):
        if storage.read(path) == data:
            return
    storage.write(path, data)


def compare(data: DataConfig, name: str) -> Comparison:
    """Compares a source with its cache.

    If the source is a source of files, only files whose name or times have changed are read. If their contents are
    unchanged, the new names and times are recorded in `files.json`. A user's own source is compared by its fingerprint.
    For a source that TensorFlow reads, only the settings are compared.

    Raises:
      UserError: the cache is missing or damaged.
    """
    source, folder = data.sources[name], os.path.join(data.cache_dir, name)
    recorded = file_format.read_manifest(folder).get("source")
    if not isinstance(recorded, dict) or not {"name", "validation_fraction"} <= recorded.keys():
        return Comparison("its manifest does not describe its source")
    before = {field: value for field, value in recorded.items() if field != "fingerprint"}
    now = describe(data, name, recorded["validation_fraction"] is None)
    if len(now.get("segmenter", ())) == 1 and now["segmenter"] == before.get("segmenter", [])[:1]:
        del now["segmenter"], before["segmenter"]  # Only machines that prepare caches need its code.
    # A source with another name may have the same texts.
    changes = [change for change in trees.differences(before, now) if change.field != "name"]
    if changes:
        fields = (f"{field} was {trees.brief(before)} and is {trees.brief(value)}" for field, before, value in changes)
        return Comparison(", ".join(fields))
    if _is_users(source):
        return _compare_fingerprint(name, source, recorded.get("fingerprint"))
    if not _is_of_files(source):
        return Comparison(unseen="TensorFlow reads it, so only `prepare` can compare it")
    try:
        listed = _listing(source)
    except UserError as error:
        return Comparison(unseen=str(error))
    if not any(listed.values()):
        # Without the texts, caches differ by name alone.
        other = f"it was made from '{recorded['name']}'" if recorded["name"] != name else None
        return Comparison(other, f"there is no file at {source.path}")
    return _compare_files(folder, source, listed)


def _is_of_files(source: Source) -> TypeGuard[files.FileSource]:
    """Whether `FileCorpus` reads the documents of a source."""
    return isinstance(source, files.FileSource) and type(source).open is files.FileSource.open


def _is_users(source: Any) -> bool:
    """Whether a source opens a user's own corpus, instead of files or a corpus that needs TensorFlow."""
    return not (_is_of_files(source) or isinstance(source, TaskSource))


def _digest(contents: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(contents)).encode("utf-8")).hexdigest()


def _compare_fingerprint(name: str, source: Any, before: str | None) -> Comparison:
    """Compares the fingerprint of a user's own source with the fingerprint in its cache."""
    try:
        with progress.doing(f"{name}: comparing its contents"):
            contents = read_origin(source, source.open(name).fingerprint).contents
    except Exception as error:  # Only the machine that prepares caches may have its data or libraries.
        return Comparison(unseen=f"its fingerprint fails with {type(error).__name__}: {one_line(error)}")
    if not contents:
        return Comparison(unseen="its fingerprint is empty")
    if before is None:
        return Comparison("it was made without a fingerprint of its source")
    return Comparison(None if before == _digest(contents) else "the fingerprint of its source has changed")


def _listing(source: files.FileSource) -> Listing:
    """Lists the files of each split of a source, in order; a split without files has an empty list."""
    return {split: files.for_split(source, split).list_files() for split in files.splits(source)}


def _settle(listed: Listing) -> None:
    """Waits until the clock of the file system has moved on, so that a later write changes a file's times."""
    times = [file.changed for split in listed.values() for file in split if isinstance(file.changed, int)]
    if 0 <= time.time_ns() - max(times, default=0) < _TIME_UNIT_NS:
        time.sleep(_TIME_UNIT_NS / 1e9)


def _compare_files(folder: str, source: files.FileSource, listed: Listing) -> Comparison:
    """Compares the recorded files of a cache with the present files; records their new times if no file differs."""
    recorded = file_format.read_files(folder)
    if recorded is None:
        return Comparison("it has no record of the files it was made of")
    doubtful: list[tuple[str, str]] = []
    contents: list[str] = []
    unseen = None
    for split in recorded | listed:
        before, present = recorded.get(split, []), listed.get(split, [])
        if len(before) != len(present):
            return Comparison(f"it was made of {len(before)} files for {split}, there are {len(present)}")
        for (name, size, *times, digest), file in zip(before, present, strict=True):
            if size != file.size:
                return Comparison(f"{file.path} has another size than {name} had")
            if file.modified == "":
                unseen = f"its store provides neither a hash nor a time for {file.path}"
            if [name, *times] != [_name(source, split, file.path), file.modified, file.changed]:
                doubtful.append((file.path, digest))
            contents.append(digest)
    if not doubtful:
        return Comparison(unseen=unseen)
    _settle(listed)
    with progress.doing(f"reading {len(doubtful)} files whose times have changed, such as {doubtful[0][0]}"):
        for path, digest in doubtful:
            if source.digest(path) != digest:
                return Comparison(f"{path} has changed")
    with contextlib.suppress(OSError, UserError):  # If it cannot be written, they are read again next time.
        record_files(folder, source, Origin(contents, listed))
    return Comparison(unseen=unseen)


def _name(source: files.FileSource, split: str, path: str) -> str:
    """Returns a file's path relative to the folder of its source, which stays the same if the folder is moved."""
    head = re.split(r"[*?[]", files.for_split(source, split).path, maxsplit=1)[0]
    return os.path.relpath(path, os.path.dirname(head))
