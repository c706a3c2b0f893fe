"""Sources of text and JSONL files: their settings, which files they are, what is in them, and its hash."""

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
from plm_jax.data.sources.corpus import BadRow, Corpus, Record, Skipped, ignore, kept
from plm_jax.data.sources.prompts import PromptConfig
from plm_jax.data.sources.source import InputsTargetsSource, RowReader, Source, SourceRow

# Kinds by what they were called when the first caches were made, whose identities hash that.
_FIRST_KINDS = {"jsonl_inputs_targets": "jsonl_examples", "seqio_inputs_targets": "seqio_examples"}
# JSON's escapes of half of a character, of which text has two together.
_HALVES = re.compile(r"\\u[dD][89a-fA-F]")
# Of a file's name what says its form: `.jsonl`, `.jsonl.gz`, or nothing.
_ENDING = re.compile(r"(\.\w+)?(\.gz)?$")
# What came later counts for what a source is only where it is given, so that older caches keep their identity.
_LATER = ("only", "max_characters", "max_depth", "group")

Files = TypeVar("Files", bound="FileSource")


class PathSource(Source):
    """A source of files.

    Attributes:
      path: the files; may be a glob.
    """

    path: str  # Not a field of this class, so that it comes first in configs.


@dataclass(frozen=True)
class FileSource(PathSource):
    """A source of text or JSONL files.

    Attributes:
      max_characters: of a line, paragraph or file that is a row; a longer one is a bad row.
    """

    max_characters: Annotated[int, ranges.Range(1, 2**31 - 1)] = field(default=2**27, kw_only=True)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns that records have besides their text."""
        return ()

    @property
    def keeps_offsets(self) -> bool:
        """Whether the characters of each token are kept."""
        return False

    @override
    def open(self, name: str) -> Corpus:
        return FileCorpus(self)

    def parse(self, place: str, text: str) -> Record | None:
        """Returns the record of a row's text, or None if the source leaves it out; `place` names the row in errors.

        Raises:
          BadRow: the row does not fit the source.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class JsonSource(FileSource):
    """A source of JSONL files.

    Attributes:
      max_depth: how deep lists and objects of a line may lie in each other; a line with deeper ones is a bad row.
      group: field that groups rows, a text or an integer, such as a document's id. If the source has no validation
        split, rows of one group stay in one split. Empty: rows with the same first text are a group, such as the
        questions of one context.
    """

    max_characters: Annotated[int, ranges.Range(1, 2**31 - 1)] = field(default=2**24, kw_only=True)
    max_depth: Annotated[int, ranges.Range(1, 512)] = field(default=100, kw_only=True)
    group: str = field(default="", kw_only=True)

    @override
    def parse(self, place: str, text: str) -> Record | None:
        return self.record(place, _json(place, text, self))

    @override
    def record(self, place: str, row: dict[str, Any]) -> Record | None:
        parsed = self._record(place, row)
        return parsed and parsed._replace(group=group(place, row, self))

    def _record(self, place: str, row: dict[str, Any]) -> Record | None:
        """Returns the record of a row without its group."""
        raise NotImplementedError

    @override
    def open_rows(self, name: str) -> RowReader:
        def read(split: str) -> list[SourceRow]:
            of = of_split(self, split)
            rows = (SourceRow(*row) for path in paths(of) for row in json_rows(path, of))
            return [row for row in rows if is_taken(*row, self)]

        return RowReader(read, splits(self))


@dataclass(frozen=True)
class TextFiles(FileSource):
    """Plain text, `.gz` allowed. `path` may be a glob. One document a file, or one a paragraph or line."""

    kind: ClassVar[str] = "text"
    places: ClassVar[tuple[str, ...]] = ("path",)
    path: str
    document: Literal["file", "paragraph", "line"] = "file"

    @override
    def parse(self, place: str, text: str) -> Record:
        return Record(_text(place, text))


@dataclass(frozen=True)
class JsonLines(JsonSource):
    """One JSON object a line, `.gz` allowed; `field` holds the document's text.

    Attributes:
      path, validation: the files for training and those for validation, each may be a glob; without the latter `Data`
        parts the former.
    """

    kind: ClassVar[str] = "jsonl"
    places: ClassVar[tuple[str, ...]] = ("path", "validation")
    path: str
    field: str = "text"
    validation: str = ""
    prompt: PromptConfig | None = None

    @override
    def _record(self, place: str, row: dict[str, Any]) -> Record:
        text = row.get(self.field)
        if not isinstance(text, str):
            raise BadRow(f"{place} has no text in '{self.field}': {nearest(self.field, row)}")
        return Record(text)


@dataclass(frozen=True)
class JsonLinesInputsTargets(JsonSource, InputsTargetsSource):
    """One JSON object a line, `.gz` allowed, each an example with inputs and targets; `path` may be a glob.

    Attributes:
      inputs, targets: templates in which `{name}` stands for a field, as in `sentiment: {sentence}` or `{choices[0]}`.
      only: a field of rows that is true in those that are taken; empty: all are.
    """

    kind: ClassVar[str] = "jsonl_inputs_targets"
    places: ClassVar[tuple[str, ...]] = ("path",)
    path: str
    inputs: str = "{inputs}"
    targets: str = "{targets}"
    only: str = ""
    prompt: PromptConfig | None = None

    @override
    def _record(self, place: str, row: dict[str, Any]) -> Record | None:
        if not is_taken(place, row, self):
            return None
        pair = [templates.render(of, place, row, "inputs and targets") for of in (self.inputs, self.targets)]
        return Record(pair[0], (pair[1],))


def read(
    source: FileSource,
    index: int = 0,
    number: int = 1,
    skipped: Skipped | None = None,
    advance: Callable[[int], Any] = ignore,
) -> Iterator[Record]:
    """The documents of text or JSONL files, in the order of their paths; blank ones are left out.

    Args:
      index, number: of the files in order only this stretch, of so many that are about equally long.
      skipped: counts the rows, of which bad ones are left out; None: a bad one is an error.
      advance: is told how many bytes more were read, of compressed files as they are.

    Raises:
      UserError: no file at the path; a damaged file; text that is not UTF-8; a line that is no JSON object with text.
    """
    found = paths(source)
    for file in range(len(found) * index // number, len(found) * (index + 1) // number):
        for line, place, row in _rows(found[file], source, advance):
            record = kept(functools.partial(_record, source, place, row), skipped)
            if record is not None and any(map(str.strip, (record.text, *(record.others or ())))):
                yield record._replace(file=file, place=line)


class FileCorpus(Corpus):
    """Documents of text or JSONL files."""

    skips_bad_rows = True

    def __init__(self, source: FileSource):
        self._source, self.splits = source, splits(source)
        self.columns, self.keeps_offsets = source.columns, source.keeps_offsets

    @override
    def shards(self, split: str, most: int = 1) -> list[tuple[int, int]]:
        """Neighbouring files: which stretch of them, of how many."""
        number = min(most, len(paths(of_split(self._source, split))))
        return [(index, number) for index in range(number)]

    @override
    def read(
        self, split: str, shard: Any, skipped: Skipped | None = None, advance: Callable[[int], Any] = ignore
    ) -> Iterator[Record]:
        index, number = shard
        return read(of_split(self._source, split), index, number, skipped, advance)

    @override
    def fingerprint(self) -> list[str]:
        """SHA-256 of each file."""
        found = []
        for split in self.splits:
            found += [*([] if split == "train" else [split]), *map(sha256, paths(of_split(self._source, split)))]
        return found

    @override
    def progress(self) -> dict[str, Any]:
        """So many bytes."""
        total = sum(storage.size(path) for split in self.splits for path in paths(of_split(self._source, split)))
        return {"total": total, "unit": "B", "unit_scale": True}


def paths(source: FileSource) -> list[str]:
    """The files that a source's path or glob names, sorted."""
    found = storage.glob(source.path)
    if not found:
        raise UserError(f"there is no file at {source.path}: mend the source's path")
    return found


def splits(source: FileSource) -> tuple[str, ...]:
    """The splits of which a source has files."""
    return ("train", "validation") if getattr(source, "validation", "") else ("train",)


def of_split(source: Files, split: str) -> Files:
    """A source of the files of one split."""
    if split != "validation":
        return source
    return dataclasses.replace(source, **{"path": getattr(source, "validation", ""), "validation": ""})


class _Watched(io.RawIOBase):
    """A file that tells how many bytes were read."""

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
    except bounded.BlankLinesError as error:
        raise UserError(f"{path} has {error}: remove them") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _rows(
    path: str, source: FileSource, advance: Callable[[int], Any] = ignore
) -> Iterator[tuple[int, str, str | None]]:
    """Of each document that is not blank its first line, from 1, its place, `FILE` or `FILE:LINE`, and its text.

    None: it is longer than the source's `max_characters`.
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
    """The first line of each paragraph, from 1, and its text; None: it is longer than `limit`."""
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


def _text(place: str, text: str) -> str:
    """The text, which must be one."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow(f"{place} is not UTF-8 text: convert it") from None
    return text


def _record(source: FileSource, place: str, row: str | None) -> Record | None:
    return source.parse(place, _limited(source, place, row))


def _limited(source: FileSource, place: str, row: str | None) -> str:
    """Returns the text of a row, which is None if it is longer than the source's `max_characters`."""
    if row is None:
        limit = source.max_characters
        raise BadRow(f"{place} has more than {limit:,} characters: part it, or raise the source's max_characters")
    return row


def json_rows(path: str, source: JsonSource | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place, `FILE:LINE`, of each line of a JSONL file that is not blank, and its object.

    Args:
      source: what it is a file of; None: of any.

    Raises:
      UserError: as `read`.
    """
    source = source or JsonLines(path)
    return ((place, _json(place, _limited(source, place, line), source)) for _, place, line in _rows(path, source))


def _json(place: str, line: str, source: JsonSource) -> dict[str, Any]:
    """The object that a line is."""
    if bounded.is_nested(line, source.max_depth):
        limit = source.max_depth
        raise BadRow(f"{place} has more than {limit} lists in each other: mend it, or raise the source's max_depth")
    try:
        row = strict_json.parse(_text(place, line))
        if _HALVES.search(line):
            json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow(f"{place} has half of a surrogate pair: mend or remove the line") from None
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", str(error))  # Without its position, which would be read as the file's.
        raise BadRow(f"{place} is not valid JSON ({reason}): fix or remove this line") from None
    if not isinstance(row, dict):
        raise BadRow(f"{place} is no JSON object: give one a line")
    return row


def group(place: str, row: dict[str, Any], source: Source) -> str | None:
    """Returns the group of a row, or None if the source declares no group.

    Raises:
      BadRow: the group is neither text nor an integer.
    """
    field = getattr(source, "group", "")
    if not field:
        return None
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadRow(f"{place} has no text or integer in '{field}', the source's group: {nearest(field, row)}")
    return str(value)


def is_taken(place: str, row: dict[str, Any], source: JsonSource) -> bool:
    """Whether a source of examples takes a row."""
    only = getattr(source, "only", "")
    if not only:
        return True
    if only not in row:
        raise BadRow(f"{place} has no field '{only}': {nearest(only, row)}")
    if row[only] not in (0, 1) or isinstance(row[only], float):
        raise BadRow(f"{place} has {json.dumps(row[only])[:40]} in '{only}': give true, false, 1 or 0")
    return bool(row[only])


def check(name: str, source: Source) -> None:
    """Raises a `UserError` for a source of files that has none in a split, saying where to put them, or one in both."""
    if not isinstance(source, FileSource):
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
        matches = (_ENDING.search(os.path.basename(file)) for file in files)
        endings = collections.Counter(match[0] for match in matches if match)
        if endings:
            return os.path.join(path, pattern + endings.most_common(1)[0][0])
    return None


def definition(source: Any) -> dict[str, Any]:
    """What of a source's config decides its documents besides their content: all but where it lies and its prompt."""
    found = {name: value for name, value in trees.to_dict(source).items() if name not in (*source.places, "prompt")}
    for name in _LATER:
        if name in found and found[name] == getattr(type(source), name):
            del found[name]
    return found | {"kind": _FIRST_KINDS.get(source.kind, source.kind)}


def sha256(path: str) -> str:
    """That of a file that must be there."""
    try:
        return storage.sha256(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
