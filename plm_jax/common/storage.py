"""Files on this machine or in a bucket: every path may be local, `gs://bucket/…`, or another that fsspec opens.

An object in a bucket appears whole or not at all but cannot be appended to or renamed; on a disk the same is had by
writing beside and renaming.
"""

import contextlib
import errno
import fcntl
import functools
import glob as local_glob
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import fsspec
from fsspec.callbacks import TqdmCallback
from fsspec.implementations.local import LocalFileSystem

from plm_jax.common.errors import UserError

# Orbax opens paths with etils, which takes TensorFlow for gs:// wherever it is installed; a training process must not.
os.environ["EPATH_USE_TF"] = "false"

# Name of the file that marks an unfinished folder, and suffix of an unfinished file's name.
UNFINISHED = ".unfinished"
_TEMPORARY = r"\.[0-9a-f]{16}\.tmp"

# Fields by which stores show that an object has changed, hashes first because a copy has new times. Times come last
# because an object that is written twice within one unit of time keeps them.
_MARKS = (
    *("md5Hash", "crc32c", "content_md5", "ETag", "etag", "generation", "version_id", "VersionId"),
    *("updated", "LastModified", "last_modified", "mtime", "created"),
)


def is_remote(path: str) -> bool:
    """Whether a path lies in a bucket."""
    return "://" in path


def absolute(path: str) -> str:
    """The path from the root of its file system."""
    return path if is_remote(path) else os.path.abspath(path)


def canonical(path: str) -> str:
    """The one path that all names of a file or folder have in common: no links, one spelling of a store's protocol.

    Raises:
      UserError: the store cannot be reached.
    """
    if is_remote(path):
        with reaching(path):
            system, path = fsspec.core.url_to_fs(path, use_listings_cache=False)
        if not isinstance(system, LocalFileSystem):
            return system.unstrip_protocol(path)
    return os.path.realpath(path)


def cache_folder(*names: str) -> str:
    """A folder of this machine for what can be made or fetched again."""
    return os.path.join(os.path.expanduser("~/.cache/plm_jax"), *names)


@contextlib.contextmanager
def reaching(path: str) -> Iterator[None]:
    """Names a remote path in a `UserError` when its store fails, in whichever way; local errors pass.

    Raises:
      FileNotFoundError: the store says so of what it was asked for.
    """
    try:
        yield
    except (UserError, FileNotFoundError):
        raise
    except Exception as error:  # Each store, and each library below it, has its own errors.
        if not is_remote(path):
            raise
        raise _unreachable(path, error) from error


def _unreachable(path: str, error: Exception) -> UserError:
    what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return UserError(f"cannot reach {path} ({what}): check the path, the bucket and your rights to it")


@contextlib.contextmanager
def _having(path: str) -> Iterator[None]:
    """As `reaching`, for what must be there: not to find a remote file or its bucket is to fail too."""
    try:
        with reaching(path):
            yield
    except FileNotFoundError as error:
        raise _unreachable(path, error) from error


def _system(path: str) -> Any:
    """The fsspec file system of a remote path; other processes write too, so that it must not remember listings."""
    return fsspec.core.url_to_fs(path, use_listings_cache=False)[0]


@functools.cache
def _shared_system(root: str, process: int) -> Any:
    """That of a bucket, with its connections, for all threads of a process; fsspec itself makes one for each."""
    del process
    return _system(root)


def exists(path: str) -> bool:
    """Whether there is a file or folder.

    Raises:
      UserError: the store cannot be reached.
    """
    if not is_remote(path):
        return os.path.exists(path)
    with reaching(path):
        return _system(path).exists(path)


def open_binary(path: str) -> BinaryIO:
    """A file, opened to read.

    Raises:
      UserError: it is no file but a folder, a pipe or a device, or the store cannot be reached.
      OSError: the file cannot be opened.
    """
    if not is_remote(path):
        return open(path, "rb", opener=_open_regular)
    with reaching(path):
        try:
            return _system(path).open(path, "rb")
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None


def _open_regular(path: str, flags: int) -> int:
    """As `os.open`, of a file that has a size: to open a pipe waits for its other end, a device may never end."""
    refuse_special(path)
    return os.open(path, flags | os.O_NONBLOCK, 0o666)  # Should it become a pipe meanwhile.


def _open_own(path: str, flags: int) -> int:
    """As `_open_regular`, and of none that a link leads to: who made the link may mean it for another's file."""
    if os.path.islink(path):
        raise UserError(f"{path} is a link, through which nothing is written: remove it")
    with contextlib.suppress(FileNotFoundError):
        refuse_special(path)
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)


def refuse_special(path: str) -> None:
    """Refuses a local path at which there is no file but a folder, a pipe, a socket or a device.

    Raises:
      FileNotFoundError: there is nothing.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
        raise UserError(f"{path} is a {kinds.get(stat.S_IFMT(mode), 'device')}: give a file")


def size(path: str) -> int:
    """How many bytes a file has; raises as `open_binary`."""
    if not is_remote(path):
        return os.path.getsize(path)
    with reaching(path):
        return _system(path).size(path)


def read(path: str, most: int | None = None) -> bytes:
    """What a file holds; raises as `open_binary`.

    Raises:
      UserError: it has more than `most` bytes.
    """
    with open_binary(path) as file:
        if most is not None and (found := file.seek(0, os.SEEK_END)) > most:
            raise UserError(f"{path} has {found:,} bytes, at most {most:,} are read: give another file")
        file.seek(0)
        return file.read()


def read_range(path: str, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of a file, fewer where it ends before.

    Raises:
      UserError: a remote file is not there, or the store cannot be reached.
      OSError: a local file cannot be opened.
    """
    if not is_remote(path):
        with open_binary(path) as file:
            file.seek(start)
            return file.read(stop - start)
    with _having(path):
        return _shared_system("/".join(path.split("/", 3)[:3]), os.getpid()).cat_file(path, start, stop)


def sha256(path: str) -> str:
    """The SHA-256 of a file, in hex; raises as `open_binary`."""
    digest = hashlib.sha256()
    with open_binary(path) as file:
        for piece in iter(functools.partial(file.read, 2**20), b""):
            digest.update(piece)
    return digest.hexdigest()


def write(path: str, data: bytes) -> None:
    """Writes a file, which then is on disk whole or not at all, and the folders above it.

    Raises:
      UserError: the store cannot be reached, or there is no such bucket.
      OSError: a local file cannot be written.
    """
    if is_remote(path):
        with _having(path):
            _system(path).pipe_file(path, data)
        return
    with writing(path) as file:
        file.write(data)


def create(path: str, data: bytes) -> None:
    """Writes a file that is not there, and the folders above it; of several processes at once one does.

    Raises:
      FileExistsError: there is one.
      UserError: the store cannot be reached.
      OSError: it cannot be written.
    """
    if is_remote(path):
        try:
            with _having(path):
                _system(path).pipe_file(path, data, mode="create")
        except UserError as error:
            if isinstance(error.__cause__, FileExistsError) or exists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from error
            raise
        return
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "xb") as file:
        file.write(data)
        sync(file)


@contextlib.contextmanager
def writing(path: str) -> Iterator[BinaryIO]:
    """A file of any size, to be written piece by piece: it is there at the end, whole, after an error not at all.

    A remote file is uploaded at the end. Temporary files that killed writers of the same file have left are removed.
    Raises the errors of `write`.
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory() as folder:
            local = os.path.join(folder, "file")
            with open(local, "wb") as file:
                yield file
            with _having(path):
                _system(path).put_file(local, path)
        return
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        refuse_special(path)
    _remove_abandoned(path)
    file = _temporary(path)
    try:
        with file:
            yield file
            sync(file)
            os.replace(file.name, path)
    except BaseException:
        remove(file.name)
        raise
    sync_folder(folder)


def _temporary(path: str) -> BinaryIO:
    """Opens a new file next to a path, with a lock that shows other processes that its writer is running."""
    while True:
        # An unpredictable name, so that no link can be waiting there.
        file = open(f"{path}.{secrets.token_hex(8)}.tmp", "xb")  # noqa: SIM115
        with contextlib.suppress(OSError):  # Some network disks have no locks.
            fcntl.flock(file, fcntl.LOCK_EX)
        if _is_at(file.name, file):  # False if another process removed it as abandoned before it was locked.
            return file
        file.close()


def _remove_abandoned(path: str) -> None:
    """Removes the temporary files that killed writers of a path have left next to it."""
    folder, name = os.path.split(os.path.abspath(path))
    for other in names(folder):
        if re.fullmatch(re.escape(name) + _TEMPORARY, other):
            temporary = os.path.join(folder, other)
            with contextlib.suppress(OSError, UserError), open_binary(temporary) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.remove(temporary)


def check_new_folder(folder: str) -> None:
    """Rejects a folder for `writing_folder` that has files in it, except those that a killed process has left.

    Raises:
      UserError: the folder is not empty, or it is a file.
    """
    present = names(folder)
    if (present and UNFINISHED not in present) or os.path.isfile(folder):
        raise UserError(f"{folder} is not empty: give a new folder, or empty it")


@contextlib.contextmanager
def writing_folder(folder: str) -> Iterator[None]:
    """Marks a new folder as unfinished while its files are written; after an error, removes them.

    Raises:
      UserError: the errors of `check_new_folder`, or another process of this machine is writing the folder.
    """
    was_there = exists(folder)
    check_new_folder(folder)
    with contextlib.ExitStack() as stack:
        marker = os.path.join(folder, UNFINISHED)
        if is_remote(folder):
            write(marker, b"")
        else:
            stack.enter_context(_locked_marker(folder, marker))
        try:
            _empty(folder)
            yield
            remove(marker)
        except BaseException:
            _empty(folder)
            remove(marker if was_there else folder)
            raise


def _locked_marker(folder: str, marker: str) -> BinaryIO:
    """Opens and locks the marker that a killed process has left, or a new one in an empty folder."""
    try:
        if not os.path.exists(marker):
            create(marker, b"")
            if names(folder) != [UNFINISHED]:  # Another process has filled it since the check.
                remove(marker)
                raise FileExistsError
        file = open_binary(marker)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(marker, file):
            raise FileNotFoundError
        return file
    except (FileExistsError, FileNotFoundError, BlockingIOError):
        raise UserError(f"another process writes {folder}: wait until it has ended, or give a new folder") from None


def _empty(folder: str) -> None:
    """Removes everything in a folder except its unfinished marker."""
    for name in names(folder):
        if name != UNFINISHED:
            remove(os.path.join(folder, name))


def append(path: str, data: bytes) -> None:
    """Adds to the end of a file, of which there is one writer; a remote one is written anew.

    Raises:
      UserError: as `write`, or the file is a link.
      OSError: as `write`.
    """
    if is_remote(path):
        write(path, (read(path) if exists(path) else b"") + data)
        return
    with open(path, "ab", opener=_open_own) as file:
        file.write(data)


def copy(source: str, target: str) -> None:
    """Copies a file that fits in memory; raises as `read` and `write`."""
    write(target, read(source))


def sync(file: Any) -> None:
    """Everything written to a local `file` reaches the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: str) -> None:
    """The names in a local folder reach the disk."""
    folder = os.open(path, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def replace_folder(temporary: str, final: str) -> None:
    """Renames a local folder, all of which then is on disk, to `final`, replacing what is there."""
    for folder, _, _ in os.walk(temporary):
        sync_folder(folder)
    replaced = temporary + ".replaced"
    remove(replaced)
    if os.path.exists(final):
        os.rename(final, replaced)
    os.rename(temporary, final)
    sync_folder(os.path.dirname(final))
    remove(replaced)


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Holds a lock on this machine, which the system gives back when the process ends, however it ends.

    The file and the folders above it are made; at the end the file is removed.

    Raises:
      UserError: the file cannot be made.
    """
    while True:
        with _made(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Who held it before may have removed this file, so that others lock a new one.
            if not _is_at(path, file):
                continue
            try:
                yield
            finally:
                remove(path)
            return


def _made(path: str) -> BinaryIO:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "wb", opener=_open_own)
    except OSError as error:
        folder = os.path.dirname(path)
        raise UserError(f"cannot write {folder} ({error.strerror}): make it writable or choose another") from error


def _is_at(path: str, file: BinaryIO) -> bool:
    """Whether a local open file is the one at a path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def names(folder: str) -> list[str]:
    """The names of the files and folders in a folder, sorted; none if it is not there, as empty ones are in buckets.

    Raises:
      UserError: the store cannot be reached.
    """
    if not is_remote(folder):
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    with contextlib.suppress(FileNotFoundError), reaching(folder):
        return sorted(os.path.basename(path.rstrip("/")) for path in _system(folder).ls(folder, detail=False))
    return []


def numbers(folder: str, suffix: str = "") -> list[int]:
    """The numbers N, ascending, of which a folder has a file or folder `N`, with a suffix; raises as `names`."""
    found = (re.fullmatch(rf"(0|[1-9][0-9]*){re.escape(suffix)}", name) for name in names(folder))
    return sorted(int(match[1]) for match in found if match)


def glob(pattern: str) -> list[str]:
    """The files that a pattern or a plain path names, sorted.

    Raises:
      UserError: the store cannot be reached.
    """
    return [file.path for file in listing(pattern)]


class File(NamedTuple):
    """A file, with the attributes that show whether its content has changed.

    Attributes:
      size: size in bytes.
      modified: modification time in ns, which any program may set. In a bucket, a hash, generation or time from the
        store, or "" if it provides none.
      changed: change time (ctime) in ns, which no program can set. In a bucket, the same as `modified`.
    """

    path: str
    size: int
    modified: int | str
    changed: int | str


def listing(pattern: str) -> list[File]:
    """The files that a pattern or a plain path names, sorted by their paths; nothing of them is read.

    Raises:
      UserError: the store cannot be reached.
    """
    found = []
    if not is_remote(pattern):
        for path in local_glob.iglob(pattern, recursive=True):
            with contextlib.suppress(OSError):  # A link to nowhere.
                status = os.stat(path)
                if stat.S_ISREG(status.st_mode):
                    found.append(File(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        return sorted(found)
    with reaching(pattern):
        system = _system(pattern)
        for path, info in system.glob(pattern, detail=True).items():
            if info["type"] == "file":
                mark = next((str(info[name]) for name in _MARKS if info.get(name)), "")
                found.append(File(system.unstrip_protocol(path), info["size"], mark, mark))
    return sorted(found)


def files_below(folder: str, regular: bool = True) -> list[str]:
    """The files in a folder and the folders below it, by their paths in it, sorted; hidden ones too.

    Args:
      regular: no links, pipes and devices; or these alone.

    Raises:
      UserError: the store cannot be reached.
    """
    if is_remote(folder):
        with reaching(folder):
            system = _system(folder)
            root = system._strip_protocol(folder).rstrip("/") + "/"
            return sorted(path.removeprefix(root) for path in system.find(folder) if regular)
    found = []
    for above, folders, files in os.walk(folder):
        for path in (os.path.join(above, name) for name in (*folders, *files)):
            with contextlib.suppress(FileNotFoundError):
                mode = os.lstat(path).st_mode
                if not stat.S_ISDIR(mode) and stat.S_ISREG(mode) == regular:
                    found.append(os.path.relpath(path, folder))
    return sorted(found)


def rename(source: str, target: str) -> None:
    """Gives a folder another name in the folder that it is in; in a bucket every object is copied.

    Raises:
      UserError: the store cannot be reached.
      OSError: a local folder cannot be renamed.
    """
    if is_remote(source):
        with _having(source):
            _system(source).mv(source, target, recursive=True)
        return
    os.rename(source, target)
    sync_folder(os.path.dirname(target))


def remove(path: str) -> None:
    """Removes a file or a folder with all that is in it, if it is there; of a link the link alone.

    Raises:
      UserError: the store cannot be reached.
    """
    if is_remote(path):
        with contextlib.suppress(FileNotFoundError), reaching(path):
            _system(path).rm(path, recursive=True)
    elif os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def download(source: str, target: str) -> None:
    """Fetches a remote file of any size to the local `target`, in a folder that is there.

    Raises:
      UserError: it is not there, the store cannot be reached, or the local file cannot be written.
    """
    with _having(source):
        _system(source).get_file(source, target)


def upload(folder: str, names: Sequence[str], remote: str, description: str | None = None) -> None:
    """Copies files of any size from a local folder to a remote one; a description has a bar show the progress.

    Raises:
      UserError: the store cannot be reached, or there is no such bucket.
    """
    bar = {"desc": description, "unit": " files", "disable": description is None}
    sources, targets = ([os.path.join(root, name) for name in names] for root in (folder, remote))
    with _having(remote):
        _system(remote).put(sources, targets, callback=TqdmCallback(tqdm_kwargs=bar))
