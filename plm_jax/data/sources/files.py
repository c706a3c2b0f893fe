"""Sources of text files and tables: settings, reading and fingerprints."""

import collections
import dataclasses
import difflib
import functools
import glob
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from typing_extensions import override

from plm_jax.common import bounded, ranges, storage, trees
from plm_jax.common.errors import UserError, nearest
from plm_jax.data.cache.columns import Column
from plm_jax.data.sources import row_fields, tables, templates, text
from plm_jax.data.sources.corpus import BadRow, Corpus, Record, Skipped, document_record, ignore, read_or_skip
from plm_jax.data.sources.prompts import PromptConfig
from plm_jax.data.sources.source import InputsTargetsSource, RowReader, Source, SourceRow

# Extension of a file name: `.jsonl`, `.jsonl.gz`, or nothing.
_EXTENSION = re.compile(r"(\.\w+)?(\.gz)?$")

Files = TypeVar("Files", bound="FileSource")
ReadRecord = Callable[[], Record | None]


class PathSource(Source):
    """A source of files.

    Attributes:
      path: path of the files; may be a glob.
    """

    path: str  # Not a field of this class, so that it comes first in configs.


@dataclass(frozen=True)
class FileSource(PathSource):
    """A source of text files or tables.

    Attributes:
      max_characters: maximum number of characters of a row (a line, paragraph, file or row of a table); longer rows are
        bad rows.
    """

    max_characters: Annotated[int, ranges.Range(1, 2**31 - 1)] = field(default=2**27, kw_only=True)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns that records have in addition to their texts."""
        return ()

    @property
    def keeps_offsets(self) -> bool:
        """Whether the cache stores the characters that each token spans."""
        return False

    @override
    def open(self, name: str) -> Corpus:
        return FileCorpus(self)

    def records(self, path: str, advance: Callable[[int], Any]) -> Iterator[tuple[int, ReadRecord]]:
        """Yields the rows of a file, except blank lines.

        Args:
          advance: called with the number of bytes that were read since the last call, before decompression.

        Yields:
          A pair: the number of the row (in a text file, the number of its first line), counted from 1, and a function.
          The function returns the record of the row, or None if the source skips the row. It raises `BadRow` if the row
          does not fit the source.

        Raises:
          UserError: the file cannot be read, is damaged or does not fit the source.
        """
        raise NotImplementedError

    def list_files(self) -> list[storage.File]:
        """Returns the files at the path, in order; raises the errors of `storage.listing`."""
        return storage.listing(self.path)

    def check_formats(self, files: Iterable[str]) -> None:
        """Raises a `UserError` if a file has a format that the source cannot read; by default, accepts every file."""

    def digest(self, path: str) -> str:
        """Returns a string that identifies the contents of a file: by default, its SHA-256.

        Raises:
          UserError: the file cannot be read.
        """
        return sha256(path)


@dataclass(frozen=True)
class TableSource(FileSource):
    """A source of tables: JSON Lines, CSV, TSV, Parquet or Arrow files.

    Attributes:
      max_depth: maximum depth of nested lists and objects. A deeper row of JSON Lines is a bad row. A deeper column of
        a Parquet or Arrow file is an error.
      group: field with a string or integer, such as a document's id; rows with the same value form a group, and if the
        source has no validation split, whole groups are held out. If empty, rows with the same first text form a group,
        such as the questions about one context.
    """

    max_characters: Annotated[int, ranges.Range(1, 2**31 - 1)] = field(default=2**24, kw_only=True)
    max_depth: Annotated[int, ranges.Range(1, 512)] = field(default=100, kw_only=True)
    group: str = field(default="", kw_only=True)

    @property
    def fields(self) -> set[str] | None:
        """Names of the fields that a record needs. If None, the names are unknown and all fields are read."""
        return None

    @override
    def list_files(self) -> list[storage.File]:
        return tables.listing(self.path)

    @override
    def check_formats(self, files: Iterable[str]) -> None:
        for path in files:
            tables.format_of(path)

    @override
    def digest(self, path: str) -> str:
        # The content of other formats shows the format.
        return f"{tables.format_of(path)}:{sha256(path)}" if tables.is_csv(path) else sha256(path)

    @override
    def records(self, path: str, advance: Callable[[int], Any]) -> Iterator[tuple[int, ReadRecord]]:
        for row in tables.table_rows(path, self.fields, sorted(self.fields or ()), self._limits, advance):
            yield row.number, functools.partial(self._read_record, row)

    def _read_record(self, row: tables.TableRow) -> Record | None:
        return self.record(row.location, row.fields)

    @property
    def _limits(self) -> tables.Limits:
        return tables.Limits(self.max_characters, self.max_depth)

    @override
    def record(self, location: str, row: dict[str, Any]) -> Record | None:
        record = self._record(location, row)
        return record and record._replace(group=group(location, row, self))

    def _record(self, location: str, row: dict[str, Any]) -> Record | None:
        """Returns the record of a row without its group."""
        raise NotImplementedError

    @override
    def open_rows(self, name: str) -> RowReader:
        columns = None
        if self.fields is not None:
            columns = sorted(self.fields | (self.prompt.fields if self.prompt else set()))

        def read(split: str) -> list[SourceRow]:
            files = paths(for_split(self, split))
            rows = (row for path in files for row in tables.table_rows(path, columns, (), self._limits))
            return [SourceRow(row.location, row.fields) for row in rows if is_taken(row.location, row.fields, self)]

        return RowReader(read, splits(self))


@dataclass(frozen=True)
class TextFiles(FileSource):
    """Plain text files, optionally compressed (`.gz`).

    Attributes:
      document: what becomes one document: "file", "paragraph" (text between blank lines) or "line".
    """

    kind: ClassVar[str] = "text"
    location_fields: ClassVar[tuple[str, ...]] = ("path",)
    path: str
    document: Literal["file", "paragraph", "line"] = "file"

    @override
    def records(self, path: str, advance: Callable[[int], Any]) -> Iterator[tuple[int, ReadRecord]]:
        for number, location, document in _documents(path, self, advance):
            yield number, functools.partial(_document_record, location, document, self.max_characters)


@dataclass(frozen=True)
class TextTable(TableSource):
    """Documents in the rows of JSON Lines, CSV, TSV, Parquet or Arrow files.

    Attributes:
      path: path of the training files; may be a glob, or a folder that `Dataset.save_to_disk` wrote. The extension
        decides the format: `.csv`, `.tsv` (also with `.gz`), `.parquet` or `.arrow`. Files with other extensions are
        JSON Lines, except extensions of well-known other formats, such as `.xlsx` and `.zip`, which are rejected.
      field: field with the text of a document.
      validation: path of the validation files; may be a glob; if empty, some of the training documents are held out.
    """

    kind: ClassVar[str] = "table"
    location_fields: ClassVar[tuple[str, ...]] = ("path", "validation")
    path: str
    field: str = "text"
    validation: str = ""
    prompt: PromptConfig | None = None

    @property
    @override
    def fields(self) -> set[str]:
        return {self.field, self.group} - {""}

    @override
    def _record(self, location: str, row: dict[str, Any]) -> Record:
        return document_record(location, row, self.field)


@dataclass(frozen=True)
class TableInputsTargets(TableSource, InputsTargetsSource):
    """Examples with inputs and targets in the rows of JSON Lines, CSV, TSV, Parquet or Arrow files.

    Attributes:
      path: path of the files, as in `TextTable`.
      inputs: template of the inputs, in which `{name}` stands for a field, as in `sentiment: {sentence}` or
        `{choices[0]}`.
      targets: template of the targets.
      only: boolean field that selects the rows to read; if empty, all rows are read.
    """

    kind: ClassVar[str] = "table_inputs_targets"
    location_fields: ClassVar[tuple[str, ...]] = ("path",)
    path: str
    inputs: str = "{inputs}"
    targets: str = "{targets}"
    only: str = ""
    prompt: PromptConfig | None = None

    @property
    @override
    def fields(self) -> set[str]:
        return (templates.fields(self.inputs) | templates.fields(self.targets) | {self.only, self.group}) - {""}

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
    """Yields the non-blank documents or examples of a source of files, in the order of the files.

    Args:
      index: index of the shard to read.
      number: number of shards, which have about the same number of files.
      skipped: counter of rows and of bad rows, which are skipped. None: a bad row is an error.
      advance: called with the number of bytes that were read since the last call, before decompression.

    Raises:
      UserError: no file at the path, a damaged file, or a bad row.
    """
    files = paths(source)
    for file in range(len(files) * index // number, len(files) * (index + 1) // number):
        for number_in_file, read_record in source.records(files[file], advance):
            record = read_or_skip(read_record, skipped)
            if record is not None and (record.tokens is not None or any(map(str.strip, record.texts))):
                yield record._replace(file=file, row_number=number_in_file)


class FileCorpus(Corpus):
    """Documents or examples of a source of files."""

    skips_bad_rows = True

    def __init__(self, source: FileSource):
        self._source, self.splits = source, splits(source)
        self.columns, self.keeps_offsets = source.columns, source.keeps_offsets

    @override
    def shards(self, split: str, most: int = 1) -> list[tuple[int, int]]:
        """Returns the arguments `(index, number)` of `read` for each shard. A shard is a range of consecutive files."""
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
        """Returns the digests of the training files, then `validation` and the digests of the validation files, if any.

        Raises:
          UserError: there are no files, or a file cannot be read.
        """
        hashes = []
        for split in self.splits:
            digests = map(self._source.digest, paths(for_split(self._source, split)))
            hashes += [*([] if split == "train" else [split]), *digests]
        return hashes

    @override
    def progress(self) -> dict[str, Any]:
        total = sum(file.size for split in self.splits for file in for_split(self._source, split).list_files())
        return {"total": total, "unit": "B", "unit_scale": True}


def paths(source: FileSource) -> list[str]:
    """Returns the paths of the files of a source, in order.

    Raises:
      UserError: there is no file.
    """
    files = [file.path for file in source.list_files()]
    if not files:
        raise UserError(f"there is no file at {source.path}: fix the source's path")
    return files


def splits(source: FileSource) -> tuple[str, ...]:
    """Returns the splits of a source: `train`, and `validation` if the source has the path of validation files."""
    return ("train", "validation") if getattr(source, "validation", "") else ("train",)


def for_split(source: Files, split: str) -> Files:
    """Returns the source with only the files of one split, `train` or `validation`."""
    if split != "validation":
        return source
    return dataclasses.replace(source, **{"path": getattr(source, "validation", ""), "validation": ""})


def _documents(path: str, source: TextFiles, advance: Callable[[int], Any]) -> Iterator[tuple[int, str, str | None]]:
    """Yields the documents of a text file. Skips blank lines, but yields a blank file if each file is a document.

    Yields:
      Three values: the number of the document's first line, counted from 1; its location, `FILE` or `FILE:LINE`; and
      its text, or None if the text is longer than `max_characters` of the source.
    """
    limit = source.max_characters
    with text.open_text(path, advance) as file:
        if source.document == "file":
            content = file.read(limit + 1)
            yield 1, path, content if len(content) <= limit else None
        elif source.document == "line":
            for number, line in enumerate(bounded.lines(file, limit), 1):
                if line is None or line.strip():
                    yield number, f"{path}:{number}", line and line.rstrip("\n")
        else:
            for begin, paragraph in _paragraphs(bounded.lines(file, limit), limit):
                yield begin, f"{path}:{begin}", paragraph


def _document_record(location: str, document: str | None, limit: int) -> Record:
    """Returns the record of a document. `document` is None if the text has more than `limit` characters."""
    if document is None:
        raise text.too_long(location, limit)
    return Record(text.check_utf8(location, document))


def _paragraphs(lines: Iterable[str | None], limit: int) -> Iterator[tuple[int, str | None]]:
    """Yields a pair per paragraph: the number of its first line, counted from 1, and its text (None if too long)."""
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


def group(location: str, row: dict[str, Any], source: Source) -> str | None:
    """Returns the group of a row, or None if the setting `group` of the source is empty.

    Raises:
      BadRow: the field of the group is missing, or is neither text nor an integer.
    """
    field = getattr(source, "group", "")
    if not field:
        return None
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadRow(f"{location} has no text or integer in '{field}', the source's group: {nearest(field, row)}")
    return str(value)


def is_taken(location: str, row: dict[str, Any], source: TableSource) -> bool:
    """Whether a source reads a row: the value of the field that the setting `only` names, or True if it names none.

    Raises:
      BadRow: the field is missing, or is neither a boolean nor 0 or 1.
    """
    only = getattr(source, "only", "")
    if not only:
        return True
    if only not in row:
        raise BadRow(f"{location} has no field '{only}': {nearest(only, row)}")
    value = tables.cell_value(row[only])
    if value not in (0, 1) or isinstance(value, float):
        raise BadRow(f"{location} has {row_fields.brief(value)} in '{only}': use true, false, 1 or 0")
    return bool(value)


def check(name: str, source: Source) -> None:
    """Checks the files of a source. A source that is not a `FileSource` always passes.

    Raises:
      UserError: a split has no files, both splits have the same file, or a file has a format that the source cannot
        read.
    """
    if not isinstance(source, FileSource):
        return
    known: set[str] = set()
    for split in splits(source):
        part = for_split(source, split)
        path, files = part.path, [file.path for file in part.list_files()]
        if not files:
            raise _no_files(name, path, f"config.data.sources.{name}.{'path' if split == 'train' else split}")
        part.check_formats(files)
        if not known.isdisjoint(files):
            raise UserError(f"source '{name}' has validation files among its training files: exclude {path} from path")
        known.update(files)


def _no_files(name: str, path: str, setting: str) -> UserError:
    """Returns the error for a path without files, with advice based on the files nearby."""
    if not path:
        return UserError(f"{setting} is empty: set it to the path of the documents of '{name}'")
    if pattern := _pattern_of_folder(path):
        return UserError(f"{path} is a folder: set {setting} to {pattern}")
    folder, base = os.path.split(path.rstrip("/"))
    if not glob.has_magic(path):
        siblings = storage.names(folder or ".")
        if close := difflib.get_close_matches(base, siblings, n=1):
            return UserError(
                f"there is no file at {path}: did you mean '{os.path.join(folder, close[0])}'? Set {setting}"
            )
    return UserError(f"there is no file at {path}: put the documents of '{name}' there, or set {setting}")


def _pattern_of_folder(path: str) -> str | None:
    """Returns a glob with the most common extension in a folder or, if it has no files, in its subfolders.

    Returns None if there are no files at all.
    """
    for pattern in ("*", "**/*"):
        files = storage.glob(os.path.join(glob.escape(path), pattern))
        names = [name for name in map(os.path.basename, files) if not name.startswith("_")]  # Not Spark's `_SUCCESS`.
        extensions = collections.Counter(match[0] for match in map(_EXTENSION.search, names) if match)
        if extensions:
            return os.path.join(path, pattern + extensions.most_common(1)[0][0])
    return None


def definition(source: Any) -> dict[str, Any]:
    """Returns the kind of a source and the settings that decide its documents: all except its location and prompt."""
    ignored = (*source.location_fields, "prompt")
    settings = {name: value for name, value in trees.to_dict(source).items() if name not in ignored}
    return settings | {"kind": source.kind}


def sha256(path: str) -> str:
    """Returns the SHA-256 of a file; raises `UserError` if it cannot be read."""
    try:
        return storage.sha256(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
