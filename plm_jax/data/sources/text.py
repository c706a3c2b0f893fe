"""Opening of text files, including compressed ones, and checks of their encoding."""

import contextlib
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from typing_extensions import override

from plm_jax.common import bounded, storage
from plm_jax.common.errors import UserError
from plm_jax.data.sources.corpus import BadRow


class _CountingFile(io.RawIOBase):
    """A file that reports how many bytes were read."""

    def __init__(self, file: Any, advance: Callable[[int], Any]):
        self._file, self._advance = file, advance

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int:
        size = self._file.readinto(buffer)
        self._advance(size)
        return size


@contextlib.contextmanager
def open_text(path: str, advance: Callable[[int], Any], newline: str | None = None) -> Iterator[TextIO]:
    """Opens a text file, which is decompressed if it ends in `.gz`. Errors of reading it become a `UserError`.

    Bytes that are not UTF-8 become surrogates.

    Args:
      advance: called with the number of bytes that were read since the last call, before decompression.
      newline: line ends, as for `open`.
    """
    try:
        with (
            storage.open_binary(path) as raw,
            io.BufferedReader(_CountingFile(raw, advance), 2**18) as file,
            gzip.open(file) if path.endswith(".gz") else file as data,
        ):
            yield io.TextIOWrapper(data, encoding="utf-8", errors="surrogateescape", newline=newline)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged ({error}): replace it with an intact gzip file") from error
    except bounded.BlankLinesError as error:
        raise UserError(f"{path} has {error}: remove them") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def check_utf8(location: str, text: str) -> str:
    """Returns a text that was read from a file opened by `open_text`; raises `BadRow` if it is not UTF-8."""
    if not is_utf8(text):
        raise BadRow(f"{location} is not UTF-8 text: convert it to UTF-8")
    return text


def is_utf8(text: str) -> bool:
    """Whether a text has no surrogates."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def too_long(location: str, limit: int) -> BadRow:
    """Returns the error of a row of more than `limit` characters."""
    return BadRow(f"{location} has more than {limit:,} characters: split it, or raise the source's max_characters")
