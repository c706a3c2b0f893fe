"""Sources of text and JSONL files: settings, reading and fingerprints."""

import collections
import contextlib
import dataclasses
import functools
import glob
import gzip
import io
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TextIO, TypeVar

from typing_extensions import override

from plm_jax.common import bounded, ranges, storage, strict_json, trees
from plm_jax.common.errors import UserError, nearest
from plm_jax.data.cache.columns import Column
from plm_jax.data.sources import templates
from plm_jax.data.sources.corpus import BadRow, Corpus, Record, Skipped, document_record, ignore, read_or_skip
from plm_jax.data.sources.prompts import PromptConfig
from plm_jax.data.sources.source import InputsTargetsSource, RowReader, Source, SourceRow

# Former names of kinds, which enter the identities of caches.
_FIRST_KINDS = {"jsonl_inputs_targets": "jsonl_examples", "seqio_inputs_targets": "seqio_examples"}
# JSON escapes of surrogates.
_SURROGATES = re.compile(r"\\u[dD][89a-fA-F]")
# Extension of a file name: `.jsonl`, `.jsonl.gz`, or nothing.
_EXTENSION = re.compile(r"(\.\w+)?(\.gz)?$")
# Fields added later enter the identity of a cache only if they are not the default, so that older caches stay valid.
_LATER_FIELDS = ("only", "max_characters", "max_depth", "group")

Files = TypeVar("Files", bound="FileSource")


class PathSource(Source):
    """A source of files.

    Attributes:
      path: path of the files; may be a glob.
    """

    path: str  # Not a field of this class, so that it comes first in configs.


@dataclass(frozen=True)
class FileSource(PathSource):
    """A source of text or JSONL files.

    Attributes:
      max_characters: maximum number of characters of a row (a line, paragraph or file); longer rows are bad rows.
    """

    max_characters: Annotated[int, ranges.Range(1, 2**31 - 1)] = field(default=2**27, kw_only=True)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns that records have besides their text."""
        return ()

    @property
    def keeps_offsets(self) -> bool:
        """Whether the cache stores the characters that each token spans."""
        return False

    @override
    def open(self, name: str) -> Corpus:
        return FileCorpus(self)

    def parse(self, location: str, text: str) -> Record | None:
        """Returns the record of a row's text, or None if the source skips the row.

        Args:
          location: name of the row in errors, `FILE` or `FILE:LINE`.

        Raises:
          BadRow: the row does not fit the source.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class JsonSource(FileSource):
    """A source of JSONL files.

    Attributes:
      max_depth: maximum depth of nested lists and objects in a line; deeper lines are bad rows.
      group: field with a string or integer, such as a document's id, by which rows are grouped. If the source has no
        validation split, rows of one group stay in one split. If empty, rows with the same first text form a group,
        such as the questions about one context.
    """

    max_characters: Annotated[int, ranges.Range(1, 2**31 - 1)] = field(default=2**24, kw_only=True)
    max_depth: Annotated[int, ranges.Range(1, 512)] = field(default=100, kw_only=True)
    group: str = field(default="", kw_only=True)

    @override
    def parse(self, location: str, text: str) -> Record | None:
        return self.record(location, _json(location, text, self))

    @override
    def record(self, location: str, row: dict[str, Any]) -> Record | None:
        record = self._record(location, row)
        return record and record._replace(group=group(location, row, self))

    def _record(self, location: str, row: dict[str, Any]) -> Record | None:
        """Returns the record of a row without its group."""
        raise NotImplementedError

    @override
    def open_rows(self, name: str) -> RowReader:
        def read(split: str) -> list[SourceRow]:
            source = for_split(self, split)
            rows = (SourceRow(*row) for path in paths(source) for row in json_rows(path, source))
            return [row for row in rows if is_taken(*row, self)]

        return RowReader(read, splits(self))


@dataclass(frozen=True)
class TextFiles(FileSource):
    """Plain text files, optionally compressed (`.gz`).

    Attributes:
      document: unit of text that is a document.
    """

    kind: ClassVar[str] = "text"
    location_fields: ClassVar[tuple[str, ...]] = ("path",)
    path: str
    document: Literal["file", "paragraph", "line"] = "file"

    @override
    def parse(self, location: str, text: str) -> Record:
        return Record(_text(location, text))


@dataclass(frozen=True)
class JsonLines(JsonSource):
    """Documents, one JSON object per line, optionally compressed (`.gz`).

    Attributes:
      path: path of the training files; may be a glob.
      field: field with the text of a document.
      validation: path of the validation files; may be a glob; if empty, some of the training documents are held out.
    """

    kind: ClassVar[str] = "jsonl"
    location_fields: ClassVar[tuple[str, ...]] = ("path", "validation")
    path: str
    field: str = "text"
    validation: str = ""
    prompt: PromptConfig | None = None

    @override
    def _record(self, location: str, row: dict[str, Any]) -> Record:
        return document_record(location, row, self.field)


@dataclass(frozen=True)
class JsonLinesInputsTargets(JsonSource, InputsTargetsSource):
    """Examples with inputs and targets, one JSON object per line, optionally compressed (`.gz`).

    Attributes:
      inputs: template of the inputs, in which `{name}` stands for a field, as in `sentiment: {sentence}` or
        `{choices[0]}`.
      targets: template of the targets.
      only: boolean field that selects the rows to read; if empty, all rows are read.
    """

    kind: ClassVar[str] = "jsonl_inputs_targets"
    location_fields: ClassVar[tuple[str, ...]] = ("path",)
    path: str
    inputs: str = "{inputs}"
    targets: str = "{targets}"
    only: str = ""
    prompt: PromptConfig | None = None

    @override
    def _record(self, location: str, row: dict[str, Any]) -> Record | None:
        if not is_taken(location, row, self):
            return None
        inputs, targets = (
            templates.render(template, location, row, "inputs and targets") for template in (self.inputs, self.targets)
        )
        return Record(inputs, (targets,))


def read(
    source: FileSource,
    index: int = 0,
    number: int = 1,
    skipped: Skipped | None = None,
    advance: Callable[[int], Any] = ignore,
) -> Iterator[Record]:
    """Yields the documents of text or JSONL files, in the order of their paths, without blank ones.

    Args:
      index, number: reads shard `index` of `number` shards, each with about the same number of files.
      skipped: counts rows; bad rows are skipped. If None, a bad row is an error.
      advance: called with the number of bytes that were read since the last call, before decompression.

    Raises:
      UserError: no file at the path, a damaged file, text that is not UTF-8, or a line that is not a JSON object with
        text.
    """
    files = paths(source)
    for file in range(len(files) * index // number, len(files) * (index + 1) // number):
        for line, location, row in _rows(files[file], source, advance):
            record = read_or_skip(functools.partial(_record, source, location, row), skipped)
            if record is not None and any(map(str.strip, (record.text, *(record.other_texts or ())))):
                yield record._replace(file=file, row_number=line)


class FileCorpus(Corpus):
    """Documents of text or JSONL files."""

    skips_bad_rows = True

    def __init__(self, source: FileSource):
        self._source, self.splits = source, splits(source)
        self.columns, self.keeps_offsets = source.columns, source.keeps_offsets

    @override
    def shards(self, split: str, most: int = 1) -> list[tuple[int, int]]:
        """Returns `(index, number)` of each shard, a range of consecutive files."""
        number = min(most, len(paths(for_split(self._source, split))))
        return [(index, number) for index in range(number)]

    @override
    def read(
        self, split: str, shard: Any, skipped: Skipped | None = None, advance: Callable[[int], Any] = ignore
    ) -> Iterator[Record]:
        index, number = shard
        return read(for_split(self._source, split), index, number, skipped, advance)

    @override
    def fingerprint(self) -> list[str]:
        """Returns the SHA-256 of each file."""
        hashes = []
        for split in self.splits:
            hashes += [*([] if split == "train" else [split]), *map(sha256, paths(for_split(self._source, split)))]
        return hashes

    @override
    def progress(self) -> dict[str, Any]:
        total = sum(storage.size(path) for split in self.splits for path in paths(for_split(self._source, split)))
        return {"total": total, "unit": "B", "unit_scale": True}


def paths(source: FileSource) -> list[str]:
    """Returns the sorted files that a source's path or glob matches.

    Raises:
      UserError: there are none.
    """
    files = storage.glob(source.path)
    if not files:
        raise UserError(f"there is no file at {source.path}: fix the source's path")
    return files


def splits(source: FileSource) -> tuple[str, ...]:
    """Returns the splits for which a source has files."""
    return ("train", "validation") if getattr(source, "validation", "") else ("train",)


def for_split(source: Files, split: str) -> Files:
    """Returns a source of the files of one split."""
    if split != "validation":
        return source
    return dataclasses.replace(source, **{"path": getattr(source, "validation", ""), "validation": ""})


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
def _open(path: str, advance: Callable[[int], Any]) -> Iterator[TextIO]:
    """Opens a text file and turns errors of reading it into `UserError`; bytes that are not UTF-8 become surrogates."""
    try:
        with (
            storage.open_binary(path) as raw,
            io.BufferedReader(_CountingFile(raw, advance), 2**18) as file,
            gzip.open(file) if path.endswith(".gz") else file as data,
        ):
            yield io.TextIOWrapper(data, encoding="utf-8", errors="surrogateescape")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged ({error}): replace it with an intact gzip file") from error
    except bounded.BlankLinesError as error:
        raise UserError(f"{path} has {error}: remove them") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _rows(
    path: str, source: FileSource, advance: Callable[[int], Any] = ignore
) -> Iterator[tuple[int, str, str | None]]:
    """Yields the rows of a file that are not blank.

    Yields:
      Number of the first line, counted from 1; location, `FILE` or `FILE:LINE`; text, None if it is longer than the
      source's `max_characters`.
    """
    document, limit = getattr(source, "document", "line"), source.max_characters
    with _open(path, advance) as file:
        if document == "file":
            text = file.read(limit + 1)
            yield 1, path, text if len(text) <= limit else None
        elif document == "line":
            for number, line in enumerate(bounded.lines(file, limit), 1):
                if line is None or line.strip():
                    yield number, f"{path}:{number}", line and line.rstrip("\n")
        else:
            for begin, paragraph in _paragraphs(bounded.lines(file, limit), limit):
                yield begin, f"{path}:{begin}", paragraph


def _paragraphs(lines: Iterable[str | None], limit: int) -> Iterator[tuple[int, str | None]]:
    """Yields the number of the first line of each paragraph, counted from 1, and its text, None if above `limit`."""
    begin, paragraph, size = 1, [], 0
    for number, line in enumerate(itertools.chain(lines, [""]), 1):
        if line is None or line.strip():
            size += limit + 1 if line is None else len(line)
            if size > limit:
                paragraph = []
            else:
                paragraph.append(line)
            continue
        if size:
            yield begin, "".join(paragraph).rstrip("\n") if size <= limit else None
        begin, paragraph, size = number + 1, [], 0


def _text(location: str, text: str) -> str:
    """Returns the text, after a check that it is valid UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow(f"{location} is not UTF-8 text: convert it") from None
    return text


def _record(source: FileSource, location: str, row: str | None) -> Record | None:
    return source.parse(location, _limited(source, location, row))


def _limited(source: FileSource, location: str, row: str | None) -> str:
    """Returns the text of a row; raises `BadRow` if it is None, which means longer than `max_characters`."""
    if row is None:
        limit = source.max_characters
        raise BadRow(f"{location} has more than {limit:,} characters: split it, or raise the source's max_characters")
    return row


def json_rows(path: str, source: JsonSource | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the location `FILE:LINE` and the object of each line of a JSONL file that is not blank.

    Args:
      source: source with the limits on rows; by default `JsonLines`.

    Raises:
      UserError: the file is missing or damaged, or a line is not a JSON object.
    """
    source = source or JsonLines(path)
    return (
        (location, _json(location, _limited(source, location, line), source))
        for _, location, line in _rows(path, source)
    )


def _json(location: str, line: str, source: JsonSource) -> dict[str, Any]:
    """Parses a line as a JSON object."""
    if bounded.is_nested(line, source.max_depth):
        limit = source.max_depth
        raise BadRow(f"{location} is nested more than {limit} levels deep: fix it, or raise the source's max_depth")
    try:
        row = strict_json.parse(_text(location, line))
        if _SURROGATES.search(line):
            json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow(f"{location} has half of a surrogate pair: fix or remove this line") from None
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", str(error))  # Without the position, which looks like a line of the file.
        raise BadRow(f"{location} is not valid JSON ({reason}): fix or remove this line") from None
    if not isinstance(row, dict):
        raise BadRow(f"{location} is not a JSON object: write one object per line")
    return row


def group(location: str, row: dict[str, Any], source: Source) -> str | None:
    """Returns the group of a row, or None if the source declares no group.

    Raises:
      BadRow: the group is neither text nor an integer.
    """
    field = getattr(source, "group", "")
    if not field:
        return None
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadRow(f"{location} has no text or integer in '{field}', the source's group: {nearest(field, row)}")
    return str(value)


def is_taken(location: str, row: dict[str, Any], source: JsonSource) -> bool:
    """Whether a source reads a row, according to its field `only`.

    Raises:
      BadRow: the field is missing or not a boolean.
    """
    only = getattr(source, "only", "")
    if not only:
        return True
    if only not in row:
        raise BadRow(f"{location} has no field '{only}': {nearest(only, row)}")
    if row[only] not in (0, 1) or isinstance(row[only], float):
        raise BadRow(f"{location} has {json.dumps(row[only])[:40]} in '{only}': use true, false, 1 or 0")
    return bool(row[only])


def check(name: str, source: Source) -> None:
    """Checks that a source of files has files in each split, and none of them in two splits.

    Raises:
      UserError: a split has no files, or both splits have the same file.
    """
    if not isinstance(source, FileSource):
        return
    known: set[str] = set()
    for split in splits(source):
        path = for_split(source, split).path
        files = storage.glob(path)
        if not files:
            field = f"config.data.sources.{name}.{'path' if split == 'train' else split}"
            if pattern := _pattern_of_folder(path):
                raise UserError(f"{path} is a folder: set {field} to {pattern}")
            raise UserError(f"there is no file at {path}: put the documents of '{name}' there, or set {field}")
        if not known.isdisjoint(files):
            raise UserError(f"source '{name}' has validation files among its training files: exclude {path} from path")
        known.update(files)


def _pattern_of_folder(path: str) -> str | None:
    """Returns the glob with the most common extension in a folder, or below it; None if there are no files."""
    for pattern in ("*", "**/*"):
        files = storage.glob(os.path.join(glob.escape(path), pattern))
        matches = (_EXTENSION.search(os.path.basename(file)) for file in files)
        extensions = collections.Counter(match[0] for match in matches if match)
        if extensions:
            return os.path.join(path, pattern + extensions.most_common(1)[0][0])
    return None


def definition(source: Any) -> dict[str, Any]:
    """Returns the settings of a source that decide its documents: all except its location and its prompt."""
    ignored = (*source.location_fields, "prompt")
    settings = {name: value for name, value in trees.to_dict(source).items() if name not in ignored}
    for name in _LATER_FIELDS:
        if name in settings and settings[name] == getattr(type(source), name):
            del settings[name]
    return settings | {"kind": _FIRST_KINDS.get(source.kind, source.kind)}


def sha256(path: str) -> str:
    """Returns the SHA-256 of a file; raises `UserError` if it cannot be read."""
    try:
        return storage.sha256(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
