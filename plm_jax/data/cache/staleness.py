"""Whether a cache is still that of a config's source: what `prepare` noted when it made it, and what is there now.

    CACHE_DIR/SOURCE/manifest.json   `source`: its name, its task definition, the share that is held out, `bad_rows`
    CACHE_DIR/SOURCE/files.json      of a source of files, of each split: name, size, time and SHA-256 of each file

The manifest depends on the texts alone, the files' times on the machine too. Nothing here imports TensorFlow, and a
file is read only where its time has changed and its size has not.
"""

import contextlib
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from plm_jax import config
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data.cache import form
from plm_jax.data.sources import files

Listing = dict[str, list[storage.File]]


class Comparison(NamedTuple):
    """What of a cache is not as the config's source is, and what could not be looked at; None: nothing."""

    changed: str | None = None
    unseen: str | None = None


def describe(run: config.Run, name: str, has_validation: bool) -> dict[str, Any]:
    """What a manifest says of its source; `has_validation`: it has a split for that of its own."""
    source = run.data.sources[name]
    return {
        "name": name,
        "task": files.definition(source),
        "validation_fraction": None if has_validation else run.data.validation_fraction,
        "bad_rows": run.data.bad_rows if isinstance(source, config.FileSource) else None,
    }


class Origin(NamedTuple):
    """What a source holds: `Corpus.fingerprint`, and of files how they were listed before."""

    contents: list[str]
    listed: Listing


def look(source: Any, fingerprint: Callable[[], list[str]]) -> Origin:
    """What a source holds now; its files are listed before they are read, so that a later change is seen."""
    listed = _listing(source) if isinstance(source, config.FileSource) else {}
    return Origin(fingerprint(), listed)


def note(folder: str, source: Any, origin: Origin) -> None:
    """Writes the `files.json` of a source of files, unless it is the same."""
    if not origin.listed:
        return
    hashes = iter([value for value in origin.contents if value not in origin.listed])
    rows = {
        split: [[_name(source, split, file.path), file.size, file.modified, next(hashes)] for file in found]
        for split, found in origin.listed.items()
    }
    path, data = os.path.join(folder, form.FILES), form.files_json(rows)
    with contextlib.suppress(FileNotFoundError):
        if storage.read(path) == data:
            return
    storage.write(path, data)


def _listing(source: config.FileSource) -> Listing:
    """The files of each split of a source, in their order; none where there are none."""
    return {split: storage.listing(files.of_split(source, split).path) for split in files.splits(source)}


def compare(run: config.Run, name: str, say: Callable[[str], None]) -> Comparison:
    """Compares a source with its cache; `say` is told before files are read.

    Raises:
      UserError: the cache is missing or damaged.
    """
    source, folder = run.data.sources[name], os.path.join(run.data.cache_dir, name)
    was = form.read_manifest(folder).get("source")
    if not isinstance(was, dict) or not {"name", "validation_fraction"} <= was.keys():
        return Comparison("it does not say what it was made of")
    now = describe(run, name, was["validation_fraction"] is None)
    # That of another name may hold the same texts.
    changes = [change for change in config.differences(was, now) if change.field != "name"]
    if changes:
        fields = (
            f"{field} was {config.brief(before)} and is {config.brief(value)}" for field, before, value in changes
        )
        return Comparison(", ".join(fields))
    if not isinstance(source, config.FileSource):
        return Comparison()
    try:
        listed = _listing(source)
    except UserError as error:
        return Comparison(unseen=str(error))
    if not any(listed.values()):
        # Without the texts the name alone tells caches apart.
        other = f"it is that of '{was['name']}'" if was["name"] != name else None
        return Comparison(other, f"there is no file at {source.path}")
    return Comparison(_changed_files(folder, source, listed, say))


def _changed_files(folder: str, source: config.FileSource, listed: Listing, say: Callable[[str], None]) -> str | None:
    """What is changed of the files that a cache was made of; those that are proved to be the same are noted."""
    noted = form.read_files(folder)
    if noted is None:
        return "it does not say of which files it was made"
    doubtful: list[tuple[str, str]] = []
    contents: list[str] = []
    for split in noted | listed:
        before, found = noted.get(split, []), listed.get(split, [])
        if len(before) != len(found):
            return f"it was made of {len(before)} files for {split}, there are {len(found)}"
        for (name, size, modified, sha256), file in zip(before, found, strict=True):
            if size != file.size:
                return f"{file.path} has another size than {name} had"
            if (name, modified) != (_name(source, split, file.path), file.modified):
                doubtful.append((file.path, sha256))
            contents.append(sha256)
    if not doubtful:
        return None
    say(f"reading {len(doubtful)} files whose times have changed, such as {doubtful[0][0]}")
    for path, sha256 in doubtful:
        if files.sha256(path) != sha256:
            return f"{path} has changed"
    with contextlib.suppress(OSError, UserError):  # Where it cannot be written they are read again next time.
        note(folder, source, Origin(contents, listed))
    return None


def _name(source: config.FileSource, split: str, path: str) -> str:
    """A file's path from the folder that its source's pattern begins with, which may move."""
    head = re.split(r"[*?[]", files.of_split(source, split).path, maxsplit=1)[0]
    return os.path.relpath(path, os.path.dirname(head))
