"""The documents of text and JSONL files: which files, what is in them, and its hash."""

import collections
import contextlib
import dataclasses
import glob
import gzip
import io
import itertools
import json
import os
import re
import string
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TextIO

from plm_jax import config
from plm_jax.common import storage
from plm_jax.common.errors import UserError, nearest

Files = config.TextFiles | config.JsonLines | config.JsonLinesInputsTargets
# Kinds by what they were called when the first caches were made, whose identities hash that.
_FIRST_KINDS = {"jsonl_inputs_targets": "jsonl_examples", "seqio_inputs_targets": "seqio_examples"}
# JSON's escapes of half of a character, of which text has two together.
_HALVES = re.compile(r"\\u[dD][89a-fA-F]")
# The share of a source's rows above which bad ones are not left out, and how many of those that are are told.
MOST_BAD = 0.01
_TOLD = 3
# Of a file's name what says its form: `.jsonl`, `.jsonl.gz`, or nothing.
_ENDING = re.compile(r"(\.\w+)?(\.gz)?$")


class BadRow(UserError):
    """A line, paragraph or text file that holds no document."""


@dataclasses.dataclass
class Skipped:
    """How many rows there were, how many of them bad and left out, and what was wrong with the first."""

    rows: int = 0
    bad: int = 0
    first: list[str] = dataclasses.field(default_factory=list)

    def add(self, other: "Skipped") -> None:
        """Adds those of rows that follow."""
        self.rows, self.bad = self.rows + other.rows, self.bad + other.bad
        self.first = [*self.first, *other.first][:_TOLD]

    def check(self, name: str) -> None:
        """Raises a `UserError` if more than MOST_BAD of a source's rows are bad."""
        if self.bad > MOST_BAD * self.rows:
            raise UserError(
                f"{self.bad:,} of the {self.rows:,} rows of source '{name}' are bad, more than {MOST_BAD:.0%} "
                f"({'; '.join(self.first)}): mend them, or what the source asks for"
            )


def read(
    source: Files,
    index: int = 0,
    number: int = 1,
    skipped: Skipped | None = None,
    advance: Callable[[int], Any] = lambda size: None,
) -> Iterator[Any]:
    """The documents of text or JSONL files, in the order of their paths; blank ones are left out.

    Args:
      source: which files; of a source of examples (inputs, targets) of each come out.
      index, number: of the files in order only this stretch, of so many that are about equally long.
      skipped: counts the rows, of which bad ones are left out; None: a bad one is an error.
      advance: is told how many bytes more were read, of compressed files as they are.

    Raises:
      UserError: no file at the path; a damaged file; text that is not UTF-8; a line that is no JSON object with text.
    """
    parsers = {config.JsonLines.kind: _json_text, config.JsonLinesInputsTargets.kind: _json_example}
    parse, found = parsers.get(source.kind, _text), paths(source)
    for path in found[len(found) * index // number : len(found) * (index + 1) // number]:
        for place, row in _rows(path, getattr(source, "document", "line"), advance):
            try:
                texts = parse(place, row, source)
            except BadRow as error:
                if skipped is None:
                    raise
                skipped.add(Skipped(1, 1, [str(error)]))
                continue
            if skipped is not None:
                skipped.rows += 1
            if texts.strip() if isinstance(texts, str) else "".join(texts).strip():  # To join a text is slow.
                yield texts


def paths(source: Files) -> list[str]:
    """The files that a source's path or glob names, sorted."""
    found = storage.glob(source.path)
    if not found:
        raise UserError(f"there is no file at {source.path}: mend the source's path")
    return found


def size(source: Files) -> int:
    """How many bytes all files have."""
    return sum(storage.size(path) for split in splits(source) for path in paths(of_split(source, split)))


def splits(source: Files) -> tuple[str, ...]:
    """The splits of which a source has files."""
    return ("train", "validation") if getattr(source, "validation", "") else ("train",)


def of_split(source: Files, split: str) -> Files:
    """A source of the files of one split."""
    return dataclasses.replace(source, path=source.validation, validation="") if split == "validation" else source


class _Watched(io.RawIOBase):
    """A file that tells how many bytes were read."""

    def __init__(self, file: BinaryIO, advance: Callable[[int], Any]):
        self._file, self._advance = file, advance

    def readable(self) -> bool:
        """It is there to be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:
        """Reads the next bytes into a buffer."""
        size = self._file.readinto(buffer)
        self._advance(size)
        return size


@contextlib.contextmanager
def _open(path: str, advance: Callable[[int], Any]) -> Iterator[TextIO]:
    """The text of a file, to be read within; what cannot be read is the user's mistake.

    Bytes that are no UTF-8 are halves of characters in it, which text has none of.
    """
    try:
        with (
            storage.open_binary(path) as unwatched,
            io.BufferedReader(_Watched(unwatched, advance), 2**18) as file,
            gzip.open(file) if path.endswith(".gz") else file as data,
        ):
            yield io.TextIOWrapper(data, encoding="utf-8", errors="surrogateescape")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged ({error}): give a whole gzip file") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _rows(path: str, document: str, advance: Callable[[int], Any] = lambda size: None) -> Iterator[tuple[str, str]]:
    """The place of each document of a file, `FILE` or `FILE:LINE`, and its text; blank ones are left out."""
    with _open(path, advance) as file:
        if document == "file":
            yield path, file.read()
        elif document == "line":
            yield from ((f"{path}:{number}", line.rstrip("\n")) for number, line in enumerate(file, 1) if line.strip())
        else:
            begin, paragraph = 1, []
            for number, line in enumerate(itertools.chain(file, [""]), 1):
                if line.strip():
                    paragraph.append(line)
                    continue
                if paragraph:
                    yield f"{path}:{begin}", "".join(paragraph).rstrip("\n")
                begin, paragraph = number + 1, []


def _text(place: str, text: str, source: config.TextFiles | None = None) -> str:
    """The text, which must be one."""
    del source
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow(f"{place} is not UTF-8 text: convert it") from None
    return text


def json_rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place, `FILE:LINE`, of each line of a JSONL file that is not blank, and its object.

    Raises:
      UserError: as `read`.
    """
    return ((place, _json(place, line)) for place, line in _rows(path, "line"))


def _json(place: str, line: str) -> dict[str, Any]:
    """The object that a line is."""
    try:
        row = json.loads(_text(place, line))
        if _HALVES.search(line):
            json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow(f"{place} has half of a surrogate pair: mend or remove the line") from None
    except (ValueError, RecursionError):
        raise BadRow(f"{place} is no JSON: mend or remove the line") from None
    if not isinstance(row, dict):
        raise BadRow(f"{place} is no JSON object: give one a line")
    return row


def _json_text(place: str, line: str, source: config.JsonLines) -> str:
    row = _json(place, line)
    text = row.get(source.field)
    if not isinstance(text, str):
        raise BadRow(f"{place} has no text in '{source.field}': {nearest(source.field, row)}")
    return text


class _Template(string.Formatter):
    """As `str.format`, of texts and numbers alone, since Python's `None` or `['a']` are no text of a task."""

    def get_field(self, field_name, args, kwargs):
        value, first = super().get_field(field_name, args, kwargs)
        if not isinstance(value, str | int | float):
            raise ValueError(f"'{field_name}' is {json.dumps(value)[:40]}, neither text nor a number")
        return value, first


def _json_example(place: str, line: str, source: config.JsonLinesInputsTargets) -> tuple[str, str]:
    row, template = _json(place, line), _Template()
    try:
        return template.vformat(source.inputs, (), row), template.vformat(source.targets, (), row)
    except KeyError as error:
        (name,) = error.args
        raise BadRow(f"{place} has no field '{name}': {nearest(str(name), row)}") from None
    except (ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise BadRow(f"{place} does not fit the source's inputs and targets: {error}") from None


def check(name: str, source: Any) -> None:
    """Raises a `UserError` for a source of files that has none in a split, saying where to put them, or one in both."""
    if not isinstance(source, Files):
        return
    found: set[str] = set()
    for split in splits(source):
        path = of_split(source, split).path
        files = storage.glob(path)
        if not files:
            field = f"config.data.sources.{name}.{'path' if split == 'train' else split}"
            if pattern := _pattern_of_folder(path):
                raise UserError(f"{path} is a folder: give {pattern}, as {field}")
            raise UserError(f"there is no file at {path}: put the documents of '{name}' there, or set {field}")
        if not found.isdisjoint(files):
            raise UserError(f"source '{name}' trains on files of its validation: let path leave out {path}")
        found.update(files)


def _pattern_of_folder(path: str) -> str | None:
    """The glob for most of the files in a folder, or else below it; None: it is no folder, or has no files."""
    for pattern in ("*", "**/*"):
        files = storage.glob(os.path.join(glob.escape(path), pattern))
        endings = collections.Counter(_ENDING.search(os.path.basename(file))[0] for file in files)
        if endings:
            return os.path.join(path, pattern + endings.most_common(1)[0][0])
    return None


def fingerprint(source: Files) -> list[str]:
    """What the files hold, as text to hash: SHA-256 of each."""
    found = []
    for split in splits(source):
        found += [*([] if split == "train" else [split]), *map(sha256, paths(of_split(source, split)))]
    return found


def definition(source: Any) -> dict[str, Any]:
    """What of a source's config decides its documents besides their content: all but where it lies."""
    found = {k: v for k, v in config.to_dict(source).items() if k not in source.places}
    return found | {"kind": _FIRST_KINDS.get(source.kind, source.kind)}


def sha256(path: str) -> str:
    """That of a file that must be there."""
    try:
        return storage.sha256(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
