"""The documents of text and JSONL files: which files, what is in them, and its hash."""

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
from typing import Any, BinaryIO, TextIO

from plm_jax import config
from plm_jax.common import bounded, storage, strict_json
from plm_jax.common.errors import UserError, nearest
from plm_jax.data.sources import labelled, templates
from plm_jax.data.sources.corpus import BadRow, Corpus, Record, Skipped, ignore, kept

# Kinds by what they were called when the first caches were made, whose identities hash that.
_FIRST_KINDS = {"jsonl_inputs_targets": "jsonl_examples", "seqio_inputs_targets": "seqio_examples"}
# JSON's escapes of half of a character, of which text has two together.
_HALVES = re.compile(r"\\u[dD][89a-fA-F]")
# Of a file's name what says its form: `.jsonl`, `.jsonl.gz`, or nothing.
_ENDING = re.compile(r"(\.\w+)?(\.gz)?$")
# What came later counts for what a source is only where it is given, so that older caches keep their identity.
_LATER = ("only", "max_characters", "max_depth", "group")


def read(
    source: config.FileSource,
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
    parse, found = _json_record if isinstance(source, config.JsonSource) else _plain, paths(source)
    for file in range(len(found) * index // number, len(found) * (index + 1) // number):
        for line, place, row in _rows(found[file], source, advance):
            record = kept(functools.partial(_parsed, parse, place, row, source), skipped)
            if record is not None and any(map(str.strip, (record.text, *(record.others or ())))):
                yield record._replace(file=file, place=line)


class FileCorpus(Corpus):
    """Documents of text or JSONL files."""

    skips_bad_rows = True

    def __init__(self, name: str, source: config.FileSource):
        del name
        self._source, self.splits = source, splits(source)
        if isinstance(source, config.LabelledSource):
            self.columns, self.keeps_offsets = labelled.columns(source.form), labelled.keeps_offsets(source.form)

    def shards(self, split: str, most: int = 1) -> list[tuple[int, int]]:
        """Neighbouring files: which stretch of them, of how many."""
        number = min(most, len(paths(of_split(self._source, split))))
        return [(index, number) for index in range(number)]

    def read(
        self, split: str, shard: Any, skipped: Skipped | None = None, advance: Callable[[int], Any] = ignore
    ) -> Iterator[Record]:
        """See `Corpus.read`."""
        return read(of_split(self._source, split), *shard, skipped, advance)

    def fingerprint(self) -> list[str]:
        """SHA-256 of each file."""
        found = []
        for split in self.splits:
            found += [*([] if split == "train" else [split]), *map(sha256, paths(of_split(self._source, split)))]
        return found

    def progress(self) -> dict[str, Any]:
        """So many bytes."""
        total = sum(storage.size(path) for split in self.splits for path in paths(of_split(self._source, split)))
        return {"total": total, "unit": "B", "unit_scale": True}


def paths(source: config.FileSource) -> list[str]:
    """The files that a source's path or glob names, sorted."""
    found = storage.glob(source.path)
    if not found:
        raise UserError(f"there is no file at {source.path}: mend the source's path")
    return found


def splits(source: config.FileSource) -> tuple[str, ...]:
    """The splits of which a source has files."""
    return ("train", "validation") if getattr(source, "validation", "") else ("train",)


def of_split(source: config.FileSource, split: str) -> config.FileSource:
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
    except bounded.BlankLinesError as error:
        raise UserError(f"{path} has {error}: remove them") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _rows(
    path: str, source: config.FileSource, advance: Callable[[int], Any] = ignore
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


def _parsed(parse: Callable[..., Record | None], place: str, row: str | None, source: config.FileSource) -> Any:
    """What a source makes of a row."""
    if row is None:
        limit = source.max_characters
        raise BadRow(f"{place} has more than {limit:,} characters: part it, or raise the source's max_characters")
    return parse(place, row, source)


def json_rows(path: str, source: config.JsonSource | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place, `FILE:LINE`, of each line of a JSONL file that is not blank, and its object.

    Args:
      source: what it is a file of; None: of any.

    Raises:
      UserError: as `read`.
    """
    source = source or config.JsonLines(path)
    return ((place, _parsed(_json, place, line, source)) for _, place, line in _rows(path, source))


def _json(place: str, line: str, source: config.JsonSource) -> dict[str, Any]:
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


def _plain(place: str, text: str, source: config.FileSource) -> Record:
    del source
    return Record(_text(place, text))


def _json_record(place: str, line: str, source: config.JsonSource) -> Record | None:
    return record(place, _json(place, line, source), source)


def record(place: str, row: dict[str, Any], source: config.JsonSource) -> Record | None:
    """Returns the record of a row, or None if the source leaves it out.

    Raises:
      BadRow: the row does not fit the source.
    """
    if isinstance(source, config.LabelledJsonLines):
        parsed = labelled.record(source.form, place, row)
    else:
        parsed = (_text_record if isinstance(source, config.JsonLines) else _example)(place, row, source)
    return parsed and parsed._replace(group=group(place, row, source))


def group(place: str, row: dict[str, Any], source: config.Source) -> str | None:
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


def _text_record(place: str, row: dict[str, Any], source: config.JsonLines) -> Record:
    text = row.get(source.field)
    if not isinstance(text, str):
        raise BadRow(f"{place} has no text in '{source.field}': {nearest(source.field, row)}")
    return Record(text)


def _example(place: str, row: dict[str, Any], source: config.JsonLinesInputsTargets) -> Record | None:
    if not is_taken(place, row, source):
        return None
    pair = [templates.render(of, place, row, "inputs and targets") for of in (source.inputs, source.targets)]
    return Record(pair[0], (pair[1],))


def is_taken(place: str, row: dict[str, Any], source: config.JsonSource) -> bool:
    """Whether a source of examples takes a row."""
    only = getattr(source, "only", "")
    if not only:
        return True
    if only not in row:
        raise BadRow(f"{place} has no field '{only}': {nearest(only, row)}")
    if row[only] not in (0, 1) or isinstance(row[only], float):
        raise BadRow(f"{place} has {json.dumps(row[only])[:40]} in '{only}': give true, false, 1 or 0")
    return bool(row[only])


def check(name: str, source: config.Source) -> None:
    """Raises a `UserError` for a source of files that has none in a split, saying where to put them, or one in both."""
    if not isinstance(source, config.FileSource):
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


def definition(source: Any) -> dict[str, Any]:
    """What of a source's config decides its documents besides their content: all but where it lies and its prompt."""
    found = {name: value for name, value in config.to_dict(source).items() if name not in (*source.places, "prompt")}
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
