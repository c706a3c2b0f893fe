"""Files on this machine or in a bucket: a path may be local, `gs://bucket/…`, or any other path that fsspec opens.

`write` and `writing` are atomic: objects in a bucket appear completely or not at all, and local files are written under
a temporary name and renamed. Buckets can neither append to an object nor rename it; `append` writes it again, and
`rename` copies it.
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

from plm_jax.common import extras
from plm_jax.common.errors import UserError

# Orbax opens paths with etils, which imports TensorFlow for gs:// if it is installed; a training process must not.
os.environ["EPATH_USE_TF"] = "false"

# Prefix of a model of the Hugging Face Hub, `hf:ORG/NAME[@REVISION]`, which `hub.repositories` downloads.
REPOSITORY = "hf:"
# Name of the file that marks an unfinished folder, and pattern of the suffix of an unfinished file's name.
UNFINISHED = ".unfinished"
TEMPORARY = r"\.[0-9a-f]{16}\.tmp"
# Number of attempts to remove a folder that other processes are removing, too.
_REMOVALS = 100

# Fields by which stores show that an object has changed, hashes first because a copy has new times. Times come last
# because an object that is written twice within one unit of time keeps them.
_MARKS = (
    *("md5Hash", "crc32c", "content_md5", "ETag", "etag", "blob_id", "generation", "version_id", "VersionId"),
    *("updated", "LastModified", "last_modified", "mtime", "created"),
)


def is_remote(path: str) -> bool:
    """Whether a path is a URL, such as `gs://bucket/file`."""
    return "://" in path


def is_repository(path: str) -> bool:
    """Whether a path names a repository of the Hugging Face Hub, such as `hf:ORG/NAME`.

    A path that begins with `hf://` does not count; fsspec opens it.
    """
    return path.startswith(REPOSITORY) and not is_remote(path)


def absolute(path: str) -> str:
    """Returns the absolute path; a remote path and the name of a repository are returned unchanged."""
    return path if is_remote(path) or is_repository(path) else os.path.abspath(path)


def canonical(path: str) -> str:
    """Returns the canonical path of a file or folder, with links resolved and one spelling of a store's protocol.

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
    """Returns a path below `~/.cache/plm_jax`, for files that can be computed or downloaded again."""
    return os.path.join(os.path.expanduser("~/.cache/plm_jax"), *names)


@contextlib.contextmanager
def reaching(path: str) -> Iterator[None]:
    """Converts errors of a remote path's store to a `UserError` that names the path; keeps errors of local paths.

    Raises:
      FileNotFoundError: the store reports that the path does not exist.
    """
    try:
        yield
    except (UserError, FileNotFoundError):
        raise
    except Exception as error:  # Every store and its libraries have their own errors.
        if not is_remote(path):
            raise
        raise _unreachable(path, error) from error


def _unreachable(path: str, error: Exception) -> UserError:
    # The cause of an error of fsspec has the name of the missing module.
    if isinstance(error.__cause__, ModuleNotFoundError) and (missing := extras.missing(error.__cause__)):
        return UserError(f"cannot read {path}: {missing}")
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return UserError(f"cannot reach {path} ({reason}): check the path, the bucket and your permissions")


@contextlib.contextmanager
def _having(path: str) -> Iterator[None]:
    """Converts errors like `reaching`, and also a `FileNotFoundError`."""
    try:
        with reaching(path):
            yield
    except FileNotFoundError as error:
        raise _unreachable(path, error) from error


def _system(path: str) -> Any:
    """Returns the fsspec file system of a path, without a cache of listings, because other processes also write."""
    return fsspec.core.url_to_fs(path, use_listings_cache=False)[0]


@functools.cache
def _shared_system(root: str, process: int) -> Any:
    """Returns a file system that all threads of a process share; fsspec would create one per thread."""
    del process
    return _system(root)


def exists(path: str) -> bool:
    """Whether a path exists as a file or folder.

    Raises:
      UserError: the store cannot be reached.
    """
    if not is_remote(path):
        return os.path.exists(path)
    with reaching(path):
        return _system(path).exists(path)


def open_binary(path: str) -> BinaryIO:
    """Opens a file for reading.

    Raises:
      UserError: a local path is a folder, a pipe, a socket or a device, or the store cannot be reached.
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
    """Opens a regular file and rejects any other file.

    Opening a pipe would wait for its other end, and a device may be endless.
    """
    refuse_special(path)
    return os.open(path, flags | os.O_NONBLOCK, 0o666)  # It may have become a pipe meanwhile.


def _open_own(path: str, flags: int) -> int:
    """Opens or creates a regular file. Rejects a link, which may lead to another user's file."""
    if os.path.islink(path):
        raise UserError(f"refusing to write through the symbolic link {path}: remove the link")
    with contextlib.suppress(FileNotFoundError):
        refuse_special(path)
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)


def refuse_special(path: str) -> None:
    """Rejects a local path that is a folder, a pipe, a socket or a device.

    Raises:
      UserError: the path is not a regular file.
      FileNotFoundError: the path does not exist.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
        kind = kinds.get(stat.S_IFMT(mode), "device")
        raise UserError(f"{path} is a {kind}, not a file: pass the path of a file, or replace it with one")


def size(path: str) -> int:
    """Returns the size of a file in bytes.

    Raises:
      UserError: the store cannot be reached.
      OSError: the file does not exist or cannot be accessed.
    """
    if not is_remote(path):
        return os.path.getsize(path)
    with reaching(path):
        return _system(path).size(path)


def read(path: str, most: int | None = None) -> bytes:
    """Returns the contents of a file; raises the errors of `open_binary`.

    Args:
      most: largest accepted number of bytes; None means no limit.

    Raises:
      UserError: the file has more than `most` bytes.
    """
    with open_binary(path) as file:
        if most is not None and (num_bytes := file.seek(0, os.SEEK_END)) > most:
            raise UserError(
                f"{path} has {num_bytes:,} bytes, but the limit is {most:,} bytes: check that this is the right file"
            )
        file.seek(0)
        return file.read()


def read_range(path: str, start: int, stop: int) -> bytes:
    """Returns bytes [start, stop) of a file, or fewer if the file ends before `stop`.

    Raises:
      UserError: a remote file does not exist, the store cannot be reached, or a local path is not a regular file.
      OSError: a local file cannot be opened.
    """
    if not is_remote(path):
        with open_binary(path) as file:
            file.seek(start)
            return file.read(stop - start)
    with _having(path):
        return _shared_system("/".join(path.split("/", 3)[:3]), os.getpid()).cat_file(path, start, stop)


def sha256(path: str) -> str:
    """Returns the SHA-256 of a file in hex; raises the errors of `open_binary`."""
    digest = hashlib.sha256()
    with open_binary(path) as file:
        for piece in iter(functools.partial(file.read, 2**20), b""):
            digest.update(piece)
    return digest.hexdigest()


def write(path: str, data: bytes) -> None:
    """Writes or replaces a file atomically, and creates the folders above it.

    Raises:
      UserError: the store cannot be reached, there is no such bucket, or a local path is not a regular file.
      OSError: a local file cannot be written.
    """
    if is_remote(path):
        with _having(path):
            _system(path).pipe_file(path, data)
        return
    with writing(path) as file:
        file.write(data)


def create(path: str, data: bytes) -> None:
    """Creates a file and the folders above it. If several processes call this function for a file, only one succeeds.

    Raises:
      FileExistsError: the file exists.
      UserError: the store cannot be reached.
      OSError: the file cannot be written.
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
    """Opens a file of any size for writing. The file is created or replaced when the context ends without an error.

    A remote file is uploaded at the end. Temporary files left by killed writers of the same local file are removed.
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
    # Opened before the file exists: whoever waits for the file may then rename the folder.
    entries = os.open(folder, os.O_RDONLY)
    try:
        file = _temporary(path)
        try:
            with file:
                yield file
                sync(file)
                os.replace(file.name, path)
        except BaseException:
            remove(file.name)
            raise
        os.fsync(entries)
    finally:
        os.close(entries)


def _temporary(path: str) -> BinaryIO:
    """Opens and locks a new file next to a path. The lock shows other processes that the writer is running."""
    while True:
        # The name is unpredictable, so nobody can have created a link of this name.
        file = open(f"{path}.{secrets.token_hex(8)}.tmp", "xb")  # noqa: SIM115
        with contextlib.suppress(OSError):  # Some network disks have no locks.
            fcntl.flock(file, fcntl.LOCK_EX)
        if _is_at(file.name, file):  # False if another process removed it as abandoned before it was locked.
            return file
        file.close()


def open_for_lock(path: str) -> BinaryIO:
    """Opens a local file to lock it. NFS grants an exclusive lock only on a file that is open for writing."""
    return open(path, "r+b", opener=_open_own)


def try_lock(file: BinaryIO) -> bool:
    """Locks an open file exclusively; returns False if another process has locked it.

    Returns True on a disk without locks, where no process can lock the file.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _remove_abandoned(path: str) -> None:
    """Removes the temporary files that killed writers of a path have left next to it."""
    folder, name = os.path.split(os.path.abspath(path))
    for other in names(folder):
        if re.fullmatch(re.escape(name) + TEMPORARY, other):
            temporary = os.path.join(folder, other)
            with contextlib.suppress(OSError, UserError), open_for_lock(temporary) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.remove(temporary)


def check_new_folder(folder: str) -> None:
    """Rejects a folder that has files in it, unless `writing_folder` has marked it as unfinished.

    Raises:
      UserError: the folder is not empty, it is a file, or the store cannot be reached.
    """
    present = names(folder)
    if (present and UNFINISHED not in present) or os.path.isfile(folder):
        raise UserError(f"{folder} is not empty: choose a new folder, or empty this one")


@contextlib.contextmanager
def writing_folder(folder: str) -> Iterator[None]:
    """Marks a new folder as unfinished while its files are written.

    First removes files that a killed process has left in the folder. After an error, removes all files, and also the
    folder if it did not exist before.

    Raises:
      UserError: `check_new_folder` rejects the folder, or another process of this machine is writing to it.
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
    """Opens and locks the marker that a killed process has left, or a new marker in an empty folder."""
    try:
        if not os.path.exists(marker):
            create(marker, b"")
            if names(folder) != [UNFINISHED]:  # Another process has filled it since the check.
                remove(marker)
                raise FileExistsError
        file = open_for_lock(marker)
        if not try_lock(file) or not _is_at(marker, file):
            raise FileNotFoundError
        return file
    except (FileExistsError, FileNotFoundError):
        raise UserError(f"another process is writing {folder}: wait until it ends, or choose another folder") from None


def _empty(folder: str) -> None:
    """Removes everything in a folder except the file that marks it as unfinished."""
    for name in names(folder):
        if name != UNFINISHED:
            remove(os.path.join(folder, name))


def append(path: str, data: bytes) -> None:
    """Appends to a file that has no other writer; a remote file is rewritten as a whole. Raises the errors of `write`.

    Creates the file if it does not exist. The folder of a local file must exist.

    Raises:
      UserError: the file is a link.
    """
    if is_remote(path):
        write(path, (read(path) if exists(path) else b"") + data)
        return
    with open(path, "ab", opener=_open_own) as file:
        file.write(data)


def copy(source: str, target: str) -> None:
    """Copies a file. Raises the errors of `read` and `write`.

    If both paths are in the same kind of remote store, the store copies the file. Otherwise, the file is read into
    memory as a whole.
    """
    if is_remote(source) and source.partition("://")[0] == target.partition("://")[0]:
        with _having(source):
            _system(source).cp_file(source, target)
        return
    write(target, read(source))


def sync(file: Any) -> None:
    """Flushes the buffers of a local file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: str) -> None:
    """Flushes the directory entries of a local folder to the disk."""
    folder = os.open(path, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def replace_folder(temporary: str, final: str) -> None:
    """Renames a local folder to `final`, replacing a folder of that name, and flushes the change to the disk."""
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
    """Locks a file of this machine while the context is active. Waits while another process has locked it.

    The system releases the lock when the process ends, however it ends. The lock file and the folders above it are
    created; the lock file is removed when the context ends. A file on a disk without locks is not locked.

    Raises:
      UserError: the file cannot be created.
    """
    while True:
        with _made(path) as file:
            with contextlib.suppress(OSError):  # Some network disks have no locks.
                fcntl.flock(file, fcntl.LOCK_EX)
            # The previous holder may have removed this file, so that others lock a new one.
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
        raise UserError(
            f"cannot write {folder} ({error.strerror}): make it writable, or choose another folder"
        ) from error


def _is_at(path: str, file: BinaryIO) -> bool:
    """Whether an open local file is still the file at a path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def names(folder: str) -> list[str]:
    """Returns the sorted names in a folder; an empty list if the folder does not exist.

    Raises:
      UserError: the store cannot be reached.
    """
    if not is_remote(folder):
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    with contextlib.suppress(FileNotFoundError), reaching(folder):
        return sorted(os.path.basename(path.rstrip("/")) for path in _system(folder).ls(folder, detail=False))
    return []


def numbers(folder: str, suffix: str = "") -> list[int]:
    """Returns the sorted numbers N for which a folder has an entry named N + `suffix`; raises the errors of `names`."""
    matches = (re.fullmatch(rf"(0|[1-9][0-9]*){re.escape(suffix)}", name) for name in names(folder))
    return sorted(int(match[1]) for match in matches if match)


def glob(pattern: str) -> list[str]:
    """Returns the sorted paths of the files that match a pattern or a path.

    Raises:
      UserError: the store cannot be reached.
    """
    return [file.path for file in listing(pattern)]


class File(NamedTuple):
    """A file, with the attributes that show whether its content has changed.

    Attributes:
      size: size in bytes.
      modified: modification time in ns, which any program may set. In a bucket, a hash, generation or time from the
        store, or "" if the store provides none of these.
      changed: change time (ctime) in ns, which no program can set. In a bucket, the same as `modified`.
    """

    path: str
    size: int
    modified: int | str
    changed: int | str


def listing(pattern: str) -> list[File]:
    """Returns the files that match a pattern or a path, sorted by path, without reading them.

    Raises:
      UserError: the store cannot be reached.
    """
    matches = []
    if not is_remote(pattern):
        for path in local_glob.iglob(pattern, recursive=True):
            with contextlib.suppress(OSError):  # A broken link.
                status = os.stat(path)
                if stat.S_ISREG(status.st_mode):
                    matches.append(File(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        return sorted(matches)
    with reaching(pattern):
        system = _system(pattern)
        for path, info in system.glob(pattern, detail=True).items():
            if info["type"] == "file":
                mark = next((str(info[name]) for name in _MARKS if info.get(name)), "")
                matches.append(File(system.unstrip_protocol(path), info["size"], mark, mark))
    return sorted(matches)


def files_below(folder: str, regular: bool = True) -> list[str]:
    """Returns the sorted relative paths of the regular files below a folder, including hidden files.

    Args:
      regular: if false, returns links, pipes and devices instead; there are none in a bucket.

    Raises:
      UserError: the store cannot be reached.
    """
    if is_remote(folder):
        with reaching(folder):
            system = _system(folder)
            root = system._strip_protocol(folder).rstrip("/") + "/"
            return sorted(path.removeprefix(root) for path in system.find(folder) if regular)
    paths = []
    for above, folders, files in os.walk(folder):
        for path in (os.path.join(above, name) for name in (*folders, *files)):
            with contextlib.suppress(FileNotFoundError):
                mode = os.lstat(path).st_mode
                if not stat.S_ISDIR(mode) and stat.S_ISREG(mode) == regular:
                    paths.append(os.path.relpath(path, folder))
    return sorted(paths)


def rename(source: str, target: str) -> None:
    """Renames a folder within its parent folder; in a bucket, every object is copied.

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
    """Removes a file, or a folder with its contents, if it exists. Removes a link, but not its target.

    Raises:
      UserError: the store cannot be reached.
      OSError: a local file cannot be removed.
    """
    if is_remote(path):
        with contextlib.suppress(FileNotFoundError), reaching(path):
            _system(path).rm(path, recursive=True)
    elif os.path.isdir(path) and not os.path.islink(path):
        for _ in range(_REMOVALS):
            with contextlib.suppress(FileNotFoundError):  # Another process is removing it, too.
                shutil.rmtree(path)
            if not os.path.isdir(path):
                return
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def download(source: str, target: str) -> None:
    """Downloads a remote file of any size to the local path `target`, whose folder must exist.

    Raises:
      UserError: the remote file does not exist, the store cannot be reached, or the local file cannot be written.
    """
    with _having(source):
        _system(source).get_file(source, target)


def upload(folder: str, names: Sequence[str], remote: str, description: str | None = None) -> None:
    """Copies files of any size from a local folder to a remote folder; with a description, shows a progress bar.

    Raises:
      UserError: the store cannot be reached, or there is no such bucket.
    """
    bar = {"desc": description, "unit": " files", "disable": description is None}
    sources, targets = ([os.path.join(root, name) for name in names] for root in (folder, remote))
    with _having(remote):
        _system(remote).put(sources, targets, callback=TqdmCallback(tqdm_kwargs=bar))
