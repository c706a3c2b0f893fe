"""Errors that a command reports in one line, and functions that write the messages."""

import contextlib
import difflib
import errno
import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any


class UserError(Exception):
    """Error that the user can fix; its message is one line that says how to fix it."""


class ExampleError(UserError):
    """Error that concerns one of several examples.

    Attributes:
      example: the example.
      problem: message without the name of the example.
    """

    def __init__(self, name: str, example: Any, problem: str):
        super().__init__(f"{name} {problem}")
        self.example, self.problem = example, problem


class Interrupted(Exception):
    """Raised when work was stopped on request; a command prints the message and exits with status 75."""


def describe(error: Exception) -> str:
    """Returns the message of an error on one line. For an error of the operating system, adds the path and advice."""
    if not isinstance(error, OSError):
        return one_line(error)
    reason = error.strerror or one_line(error)
    path = f" ({error.filename})" if error.filename else ""
    return f"{reason}{path}: {_REMEDIES.get(error.errno or 0, 'make sure that it can be read and written')}"


_REMEDIES = {
    errno.ENOSPC: "free some space, or choose another folder",
    errno.EDQUOT: "free some space, or choose another folder",
    errno.EROFS: "choose a writable folder",
    errno.EACCES: "change its permissions, or choose another folder",
    errno.EPERM: "change its permissions, or choose another folder",
    errno.ENOENT: "it does not exist, or was removed meanwhile: check the path",
    errno.ENOTDIR: "a part of the path is a file: check the path",
    errno.EISDIR: "this is a folder: pass a file",
    errno.EEXIST: "it already exists: choose another path",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ELOOP: "its symbolic links form a loop: check the path",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EIO: "the disk fails: choose another",
    errno.ESTALE: "the folder was removed on its server: check the path",
}


def one_line(error: BaseException | str, limit: int | None = 200) -> str:
    """Returns a text or the message of an exception on one line of at most `limit` characters; None means no limit."""
    return " ".join(str(error).split())[:limit]


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a hint such as `did you mean 'steps'?`, or the list of known names if none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1) or [other for other in known if name and other.startswith(name)]
    return f"did you mean '{close[0]}'?" if close else f"choose from: {', '.join(known)}"


@contextlib.contextmanager
def users_code(path: str) -> Iterator[None]:
    """Converts errors that a user's Python file raises within the context to a `UserError` that names the line.

    A `UserError` and errors that the file has not raised are unchanged.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        user_error = in_users_code(error, path)
        if user_error is None:
            raise
        raise user_error from error


def in_users_code(error: BaseException, path: str) -> UserError | None:
    """Returns a `UserError` with the message `FILE:LINE: NameError: …` if a user's file raised `error`, otherwise None.

    `FILE:LINE` is the innermost stack frame in the user's file or in code that the file calls. Code of Python, of
    installed packages and of `plm_jax` is skipped. If no frame is in the user's file, the causes of the error are
    searched. For a syntax error in any file, `FILE:LINE` is its position.

    Args:
      path: the user's file.
    """
    cause: BaseException | None = error
    while cause is not None:
        name = type(cause).__name__
        if isinstance(cause, SyntaxError) and os.path.isfile(cause.filename or ""):
            return UserError(f"{cause.filename}:{cause.lineno}: {name}: {cause.msg}")
        frames = traceback.extract_tb(cause.__traceback__)
        is_users = [os.path.realpath(frame.filename) == os.path.realpath(path) for frame in frames]
        if any(is_users):
            first = is_users.index(True)
            lines = zip(frames[first:], is_users[first:], strict=True)
            *_, line = (frame for frame, is_own in lines if is_own or not _is_installed(frame.filename))
            return UserError(f"{line.filename}:{line.lineno}: {name}: {one_line(cause)}{_hint(cause)}")
        cause = cause.__cause__ or cause.__context__
    return None


def _hint(error: BaseException) -> str:
    """Returns `, did you mean 'NAME'?` if a module lacks an attribute and has one with a similar name; otherwise ""."""
    if not isinstance(error, AttributeError) or not isinstance(error.obj, ModuleType):
        return ""
    hint = nearest(error.name or "", dir(error.obj))
    return f", {hint}" if hint.startswith("did you mean") else ""


def _is_installed(file: str) -> bool:
    """Whether a file belongs to Python, to an installed package or to `plm_jax`.

    Returns True also for a file that does not exist.
    """
    folders = [
        os.path.dirname(os.path.dirname(__file__)),
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    ]
    return not os.path.isfile(file) or any(
        os.path.realpath(file).startswith(f"{os.path.realpath(f)}/") for f in folders
    )
