"""The one exception that means "the user can mend this": a verb prints its line and exits with status 2."""

import contextlib
import difflib
import errno
import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from types import ModuleType


class UserError(Exception):
    """A mistake in what the user gave; the message is one line that says what to do."""


class Interrupted(Exception):
    """A run that was asked to stop and did, its step saved; the message is one line. A verb exits with status 75."""


def told(error: Exception) -> str:
    """An error in one line; one of the operating system's says what to do."""
    if not isinstance(error, OSError):
        return one_line(error)
    what = f"{error.strerror or one_line(error)}"
    where = f" ({error.filename})" if error.filename else ""
    return f"{what}{where}: {_REMEDIES.get(error.errno or 0, 'see to it that it can be read and written')}"


_REMEDIES = {
    errno.ENOSPC: "make room there, or choose another folder",
    errno.EDQUOT: "make room there, or choose another folder",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "give yourself the right to it, or choose another folder",
    errno.EPERM: "give yourself the right to it, or choose another folder",
    errno.ENOENT: "it is not there, or was removed meanwhile: check the path",
    errno.ENOTDIR: "a part of the path is a file: check the path",
    errno.EISDIR: "that is a folder: give a file",
    errno.EEXIST: "that is there already: choose another path",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.ELOOP: "its links lead in a circle: check the path",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EIO: "the disk fails: choose another",
    errno.ESTALE: "the folder was removed on its server: check the path",
}


def one_line(error: BaseException, limit: int | None = 200) -> str:
    """What an exception says, on one line of at most `limit` characters."""
    return " ".join(str(error).split())[:limit]


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as `did you mean 'steps'?`, or the list of what there is when nothing is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1) or [other for other in known if name and other.startswith(name)]
    return f"did you mean '{close[0]}'?" if close else f"there are: {', '.join(known)}"


@contextlib.contextmanager
def users_code(path: str) -> Iterator[None]:
    """Within it a user's Python file is run: what goes wrong there becomes a `UserError` that names their line."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        told = in_users_code(error, path)
        if told is None:
            raise
        raise told from error


def in_users_code(error: BaseException, path: str) -> UserError | None:
    """What went wrong in a user's file, as `FILE:LINE: NameError: name 'x' is not defined`; None: nothing in there.

    The line is the innermost one of the file or of what it imports from outside of Python and its packages. The error
    may be one that was raised from the user's.
    """
    cause: BaseException | None = error
    while cause is not None:
        what = type(cause).__name__
        if isinstance(cause, SyntaxError) and os.path.isfile(cause.filename or ""):
            return UserError(f"{cause.filename}:{cause.lineno}: {what}: {cause.msg}")
        frames = traceback.extract_tb(cause.__traceback__)
        own = [os.path.realpath(frame.filename) == os.path.realpath(path) for frame in frames]
        if any(own):
            lines = zip(frames[own.index(True) :], own[own.index(True) :], strict=True)
            *_, at = (frame for frame, is_own in lines if is_own or not _is_installed(frame.filename))
            return UserError(f"{at.filename}:{at.lineno}: {what}: {one_line(cause)}{_hint(cause)}")
        cause = cause.__cause__ or cause.__context__
    return None


def _hint(error: BaseException) -> str:
    """Returns the nearest name in a module that lacks the one that was asked for, after a comma; "" otherwise."""
    if not isinstance(error, AttributeError) or not isinstance(error.obj, ModuleType):
        return ""
    hint = nearest(error.name or "", dir(error.obj))
    return f", {hint}" if hint.startswith("did you mean") else ""


def _is_installed(file: str) -> bool:
    """Whether a file of Python code is of Python itself, of a package that is installed, or of this one."""
    folders = [
        os.path.dirname(os.path.dirname(__file__)),
        *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    ]
    return not os.path.isfile(file) or any(
        os.path.realpath(file).startswith(f"{os.path.realpath(f)}/") for f in folders
    )
