"""Manifests that detect changes in a folder. A manifest contains the SHA-256 of every regular file and is written last.

    manifest.json    {"sha256": hash of the rest, further fields, "files": {path: [bytes, SHA-256]}}

If several processes write a folder, each process hashes its own files, and the first process merges the hashes.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from typing import Any

from plm_jax.common import storage, strict_json
from plm_jax.common.errors import UserError

MANIFEST = "manifest.json"
_PART = "manifest-part-{}.json"
# Files that exist in a folder only until it is sealed, among them a part that another process is writing.
_NOT_SEALED = re.compile(rf"manifest(-part-\d+)?\.json({storage.TEMPORARY})?|{re.escape(storage.UNFINISHED)}")
# Seconds that the first process waits for the parts of others, as long as Orbax waits for their files.
_PARTS_SECONDS = 600.0
# Files that are hashed at once: buckets have a high latency, and hashing releases the GIL.
_THREADS = 4
# Number of files that a message names.
_NAMED = 3


class DamagedError(UserError):
    """Raised when a folder was never sealed, or has changed since it was sealed.

    The message may include advice; `reason` does not.
    """

    def __init__(self, reason: str, message: str = ""):
        super().__init__(message or reason)
        self.reason = reason


@dataclass(frozen=True)
class Share:
    """Share of a folder's files that a process of a job hashes.

    Attributes:
      process: index of the process.
      processes: number of processes.
      owner: function from the path of a file in the folder to the index of the process that wrote the file.
    """

    process: int = 0
    processes: int = 1
    owner: Callable[[str], int] = lambda path: 0

    def of(self, paths: Iterable[str]) -> list[str]:
        """Returns the paths in this process's share."""
        return [path for path in paths if self.owner(path) % self.processes == self.process]


def seal(folder: str, about: Mapping[str, Any], share: Share = Share()) -> None:
    """Hashes the files of a folder and writes its manifest.

    Every process of the job calls this function after writing its files. The first process waits for the hashes of the
    others and writes the manifest.

    Args:
      about: further fields of the manifest.
      share: files that this process hashes.

    Raises:
      UserError: another process has not written its hashes in time or does not see its files, or the store cannot be
        reached.
      OSError: a file cannot be read or written.
    """
    paths = [path for path in storage.files_below(folder) if not _NOT_SEALED.fullmatch(path)]
    files = _hashed(folder, share.of(paths))
    if share.process:
        storage.write(os.path.join(folder, _PART.format(share.process)), json.dumps(files).encode("utf-8"))
        return
    parts = [os.path.join(folder, _PART.format(process)) for process in range(1, share.processes)]
    for part in parts:
        files |= json.loads(_awaited(part))
    # A network disk may show a renamed folder late to other machines.
    if unhashed := [path for path in paths if path not in files]:
        raise UserError(f"the process that wrote {unhashed[0]} does not see it in {folder}: check the shared disk")
    for part in parts:
        storage.remove(part)
    storage.write(os.path.join(folder, MANIFEST), _encoded(dict(about) | {"files": dict(sorted(files.items()))}))


def is_sealed(folder: str) -> bool:
    """Whether a folder has a manifest, even if its hashes are wrong. Other files named `manifest.json` do not count.

    Raises:
      UserError: the store cannot be reached.
    """
    try:
        content = json.loads(storage.read(os.path.join(folder, MANIFEST)))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"sha256", "files"} <= content.keys()


def read(folder: str) -> dict[str, Any]:
    """Returns the contents of a folder's manifest, without the field `sha256`.

    Raises:
      DamagedError: the manifest is missing or damaged.
      UserError: the store cannot be reached.
      OSError: the manifest cannot be read.
    """
    path = os.path.join(folder, MANIFEST)
    if os.path.exists(path) and not os.path.isfile(path):
        raise DamagedError(f"its {MANIFEST} is not a file")
    try:
        data = storage.read(path) if storage.size(path) <= strict_json.MOST_BYTES else b""
    except FileNotFoundError:
        raise DamagedError(f"it has no {MANIFEST}") from None
    try:
        content = strict_json.loads(data)
        del content["sha256"]
        # Compared byte for byte, so that every change of the file is detected.
        if _encoded(content) == data and all(_is_entry(entry) for entry in content["files"].values()):
            return content
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise DamagedError(f"its {MANIFEST} is damaged")


def verify(
    folder: str,
    below: Sequence[str] = ("",),
    share: Share = Share(),
    outside: Sequence[str] = (),
    accepts_links: bool = False,
) -> dict[str, Any]:
    """Compares the files of a folder with its manifest, and returns the manifest.

    Args:
      below: prefixes of the paths to compare.
      share: files that this process hashes. Missing and added files are reported by every process.
      outside: prefixes of paths to skip.
      accepts_links: whether links to files are treated as files. The cache of the Hugging Face Hub contains links.

    Raises:
      DamagedError: a file is missing, was added or has changed, or the manifest is missing or damaged. The message
        names up to three files.
      UserError: the store cannot be reached.
      OSError: a file cannot be read.
    """
    manifest, below, outside = read(folder), tuple(below), tuple(outside)

    def covers(path: str) -> bool:
        return path.startswith(below) and not path.startswith(outside)

    sealed = {path: entry for path, entry in manifest["files"].items() if covers(path)}
    there = set(filter(covers, storage.files_below(folder))) - {MANIFEST}
    special = set(filter(covers, storage.files_below(folder, regular=False)))
    if accepts_links:
        there |= {path for path in special if os.path.isfile(os.path.join(folder, path))} - {MANIFEST}
        special -= {*there, MANIFEST}
    wrong = [f"{path} is missing" for path in sealed if path not in there]
    wrong += [f"{path} was added" for path in sorted({*there, *special} - sealed.keys())]
    sizes = {path: sealed[path][0] for path in share.of(sealed) if path in there}
    for path, (size, digest) in _hashed(folder, list(sizes), sizes).items():
        if [size, digest] != sealed[path]:
            wrong.append(path + (f" has {size:,} bytes and not {sizes[path]:,}" if digest is None else " is damaged"))
    if wrong:
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise DamagedError(", ".join(wrong[:_NAMED]) + more)
    return manifest


def _is_entry(entry: Any) -> bool:
    """Whether an entry has the form [bytes, SHA-256]."""
    return isinstance(entry, list) and [type(part) for part in entry] == [int, str]


def _encoded(content: Mapping[str, Any]) -> bytes:
    digest = hashlib.sha256(json.dumps(content).encode("utf-8")).hexdigest()
    return json.dumps({"sha256": digest, **content}, indent=1).encode("utf-8")


def _hashed(folder: str, paths: Sequence[str], sizes: Mapping[str, int] | None = None) -> dict[str, list]:
    """Returns the size in bytes and the SHA-256 of each file, by path.

    If the size of a file differs from `sizes`, the file is not read, and its hash is None.
    """

    def entry(path: str) -> list:
        whole = os.path.join(folder, path)
        size = storage.size(whole)
        return [size, storage.sha256(whole) if sizes is None or size == sizes[path] else None]

    with futures.ThreadPoolExecutor(_THREADS, "hashing") as pool:
        return dict(zip(paths, pool.map(entry, paths), strict=True))


def _awaited(part: str) -> bytes:
    """Waits for a file that another process writes, and returns its contents."""
    deadline = time.monotonic() + _PARTS_SECONDS
    while True:
        try:
            return storage.read(part)
        except FileNotFoundError:
            if time.monotonic() > deadline:
                raise UserError(
                    f"another process has not written {part} within {_PARTS_SECONDS:.0f} s: see the output of the job"
                ) from None
            time.sleep(0.05)
