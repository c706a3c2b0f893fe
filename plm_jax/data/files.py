"""The documents of text and JSONL files: which files, what is in them, and its hash."""

import collections
import contextlib
import dataclasses
import glob
import gzip
import io
import json
import os
import re
import string
import zlib
from collections.abc import Iterator
from typing import Any, TextIO

from plm_jax import config, storage
from plm_jax.errors import UserError, nearest

Files = config.TextFiles | config.JsonLines | config.JsonLinesExamples
# JSON's escapes of half of a character, of which text has two together.
_HALVES = re.compile(r"\\u[dD][89a-fA-F]")
# Of a file's name what says its form: `.jsonl`, `.jsonl.gz`, or nothing.
_ENDING = re.compile(r"(\.\w+)?(\.gz)?$")


def read(source: Files, index: int = 0, number: int = 1) -> Iterator[Any]:
    """The documents of text or JSONL files, in the order of their paths; blank ones are left out.

    Args:
      source: which files; of a source of examples (inputs, targets) of each come out.
      index, number: of the files in order only this stretch, of so many that are about equally long.

    Raises:
      UserError: no file at the path; a damaged file; text that is not UTF-8; a line that is no JSON object with text.
    """
    readers = {config.JsonLines.kind: _json_lines, config.JsonLinesExamples.kind: _json_examples}
    read_file, found = readers.get(source.kind, _text_file), paths(source)
    for path in found[len(found) * index // number : len(found) * (index + 1) // number]:
        yield from (texts for texts in read_file(path, source) if "".join(texts).strip())


def paths(source: Files) -> list[str]:
    """The files that a source's path or glob names, sorted."""
    found = storage.glob(source.path)
    if not found:
        raise UserError(f"there is no file at {source.path}: mend the source's path")
    return found


def splits(source: Files) -> tuple[str, ...]:
    """The splits of which a source has files."""
    return ("train", "validation") if getattr(source, "validation", "") else ("train",)


def of_split(source: Files, split: str) -> Files:
    """A source of the files of one split."""
    return dataclasses.replace(source, path=source.validation, validation="") if split == "validation" else source


@contextlib.contextmanager
def _open(path: str) -> Iterator[TextIO]:
    """The text of a file, to be read within; what cannot be read is the user's mistake."""
    try:
        with storage.open_binary(path) as file, gzip.open(file) if path.endswith(".gz") else file as data:
            yield io.TextIOWrapper(data, encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: convert it") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged ({error}): give a whole gzip file") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _text_file(path: str, source: config.TextFiles) -> Iterator[str]:
    with _open(path) as file:
        if source.document == "file":
            yield file.read()
        elif source.document == "line":
            yield from (line.rstrip("\n") for line in file)
        else:
            paragraph: list[str] = []
            for line in file:
                if line.strip():
                    paragraph.append(line)
                else:
                    yield "".join(paragraph).rstrip("\n")
                    paragraph = []
            yield "".join(paragraph).rstrip("\n")


def json_rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place, `FILE:LINE`, of each line of a JSONL file that is not blank, and its object.

    Raises:
      UserError: as `read`.
    """
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if _HALVES.search(line):
                    json.dumps(row, ensure_ascii=False).encode("utf-8")
            except UnicodeEncodeError:
                raise UserError(f"{path}:{number} has half of a surrogate pair: mend or remove the line") from None
            except (ValueError, RecursionError):
                raise UserError(f"{path}:{number} is no JSON: mend or remove the line") from None
            if not isinstance(row, dict):
                raise UserError(f"{path}:{number} is no JSON object: give one a line")
            yield f"{path}:{number}", row


def _json_lines(path: str, source: config.JsonLines) -> Iterator[str]:
    for place, row in json_rows(path):
        text = row.get(source.field)
        if not isinstance(text, str):
            raise UserError(f"{place} has no text in '{source.field}': {nearest(source.field, row)}")
        yield text


class _Template(string.Formatter):
    """As `str.format`, of texts and numbers alone, since Python's `None` or `['a']` are no text of a task."""

    def get_field(self, field_name, args, kwargs):
        value, first = super().get_field(field_name, args, kwargs)
        if not isinstance(value, str | int | float):
            raise ValueError(f"'{field_name}' is {json.dumps(value)[:40]}, neither text nor a number")
        return value, first


def _json_examples(path: str, source: config.JsonLinesExamples) -> Iterator[tuple[str, str]]:
    template = _Template()
    for place, row in json_rows(path):
        try:
            yield template.vformat(source.inputs, (), row), template.vformat(source.targets, (), row)
        except KeyError as error:
            (name,) = error.args
            raise UserError(f"{place} has no field '{name}': {nearest(str(name), row)}") from None
        except (ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
            raise UserError(f"{place} does not fit the source's inputs and targets: {error}") from None


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
    return {k: v for k, v in config.to_dict(source).items() if k not in config.places(source)}


def sha256(path: str) -> str:
    """That of a file that must be there."""
    try:
        return storage.sha256(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
