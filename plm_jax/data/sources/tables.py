"""Rows of tables: JSON Lines, CSV and TSV, Parquet, and Arrow files such as datasets that Hugging Face's library saved.

The extension of a file decides its format: `.csv`, `.tsv`, `.parquet` or `.arrow`. Files with other extensions are JSON
Lines, except extensions of well-known other formats, such as `.xlsx`, which are rejected. Text may be compressed
(`.csv.gz`). If the path is a folder that `Dataset.save_to_disk` wrote, its `.arrow` files are read.

    for location, row in tables.read_rows("reviews.parquet", columns=["sentence", "label"]):
        print(location, row)  # reviews.parquet:row 1 {'sentence': 'A fine film .', 'label': 1}
"""

import csv
import functools
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from plm_jax.common import bounded, storage, strict_json
from plm_jax.common.errors import UserError, nearest
from plm_jax.data.sources import arrow, text
from plm_jax.data.sources.corpus import BadRow, ignore

# JSON escapes of surrogates.
_SURROGATES = re.compile(r"\\u[dD][89a-fA-F]")
# End of the name of a row in errors.
_ROW = re.compile(r":(row )?\d+$")
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons"}
# The `csv` module limits cells in the whole process. Rows that reach the parser are already limited in size.
_MOST_CELL = 2**31 - 1


class Cell(str):
    """A cell of a CSV file: a text, which `value` parses as JSON."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        """The value that the text represents if it is JSON, otherwise the text."""
        try:
            return _parse_json(self)
        except (ValueError, RecursionError):
            return str(self)


def cell_value(value: Any) -> Any:
    """Returns the parsed value of a cell of a CSV file; returns any other value unchanged."""
    return value.value if isinstance(value, Cell) else value


class Limits(NamedTuple):
    """Limits on the size of a row.

    Attributes:
      max_characters: maximum number of characters of a row; longer rows are bad rows.
      max_depth: maximum depth of nested lists and objects. A deeper row of JSON Lines is a bad row. A deeper column of
        a Parquet or Arrow file is an error.
    """

    max_characters: int = 2**24
    max_depth: int = 100


class TableRow(NamedTuple):
    """A row of a file.

    Attributes:
      number: number of the row, or of its first line in a text file, counted from 1.
      location: name of the row in errors, `FILE:LINE` or `FILE:row NUMBER`.
      content: values by column, or the error of a bad row.
    """

    number: int
    location: str
    content: dict[str, Any] | BadRow

    @property
    def fields(self) -> dict[str, Any]:
        """Values by column; raises `content` if it is a `BadRow`."""
        if isinstance(self.content, BadRow):
            raise self.content
        return self.content


def format_of(path: str) -> str:
    """Returns the format of a file by its extension: `csv`, `tsv`, `parquet`, `arrow` or `jsonl`.

    Raises:
      UserError: files with this extension cannot be read.
    """
    name = path.lower().removesuffix(".gz")
    extension = os.path.splitext(name)[1][1:]
    if extension in _DELIMITERS or (extension in arrow.FORMATS and not path.lower().endswith(".gz")):
        return extension
    if extension in (*arrow.FORMATS, "xlsx", "xls", "zip", "xz", "bz2", "zst", "feather", "orc", "avro", "pkl", "npy"):
        raise UserError(f"cannot read {path}: convert it to .jsonl, .csv, .tsv (or these with .gz), .parquet or .arrow")
    return "jsonl"


def is_csv(path: str) -> bool:
    """Whether a file is CSV or TSV."""
    return format_of(path) in _DELIMITERS


def listing(path: str) -> list[storage.File]:
    """Returns the files at a path or glob, or the files of a folder that `Dataset.save_to_disk` wrote, in order.

    The result is empty if there are none.

    Raises:
      UserError: the folder has several datasets or is damaged, or the store cannot be reached.
    """
    files = storage.listing(path)
    if files or not path:
        return files
    if storage.exists(os.path.join(path, "dataset_dict.json")):
        splits = _read_json(os.path.join(path, "dataset_dict.json")).get("splits")
        names = [os.path.join(path, str(split)) for split in splits] if isinstance(splits, list) else []
        raise UserError(f"{path} has a dataset for each split: choose one of them, {' or '.join(names)}")
    state = os.path.join(path, "state.json")
    if not storage.exists(state):
        return []
    files = {os.path.basename(file.path): file for file in storage.listing(os.path.join(_escaped(path), "*.arrow"))}
    names = _saved_names(state)
    for name in names:
        if name not in files:
            raise UserError(f"{path} lacks {name}, which its state.json lists: save the dataset again")
    return [files[name] for name in names]


def _saved_names(path: str) -> list[str]:
    """Returns the names of the files of a saved dataset, in order, from its `state.json`."""
    state = _read_json(path)
    entries = state.get("_data_files")
    entries = entries if isinstance(entries, list) else []
    names = [str(entry["filename"]) for entry in entries if isinstance(entry, dict) and "filename" in entry]
    # Old versions of the library could save a selection of the rows as a list of indices.
    if not names or len(names) < len(entries) or state.get("_indices_data_files"):
        raise UserError(f"{path} does not list the files of a dataset: save it again with `save_to_disk`")
    return names


def _escaped(path: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", path)


def _read_json(path: str) -> dict[str, Any]:
    try:
        tree = strict_json.read(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} ({error}): save the dataset again") from error
    return tree if isinstance(tree, dict) else {}


def read_rows(
    path: str,
    columns: Sequence[str] | None = None,
    required: Collection[str] = (),
    limits: Limits | None = None,
    other_types: arrow.OtherTypes = "reject",
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the location and the fields of each row of a file, or of a folder that `Dataset.save_to_disk` wrote.

    Locations are `FILE:LINE` in text files and `FILE:row NUMBER` in other files. Fields of CSV files are `Cell`s;
    nested columns are lists and dictionaries.

    Args:
      columns: columns to read; None for all. Rows of JSON Lines always have all of their fields.
      required: columns that a file must have, unless it is JSON Lines.
      limits: limits on the size of a row; None: the defaults of `Limits`.
      other_types: how to read columns of Parquet and Arrow files whose types have no counterpart in JSON, as in
        `arrow.read_rows`.

    Raises:
      UserError: a file is missing or damaged, a column is missing, or a column has a type that cannot be read.
      BadRow: a row is bad.
    """
    for row in file_or_folder_rows(path, columns, required, limits, other_types):
        yield row.location, row.fields


def file_or_folder_rows(
    path: str,
    columns: Collection[str] | None = None,
    required: Collection[str] = (),
    limits: Limits | None = None,
    other_types: arrow.OtherTypes = "reject",
) -> Iterator[TableRow]:
    """Yields the rows of a file or folder like `read_rows`, but yields bad rows instead of raising their errors."""
    is_folder = not storage.is_remote(path) and os.path.isdir(path)
    paths = [file.path for file in listing(_escaped(path))] if is_folder else [path]
    if not paths:
        raise UserError(f"{path} is a folder without a saved dataset: pass a file")
    for file in paths:
        yield from table_rows(file, columns, required, limits or Limits(), other_types=other_types)


def table_rows(
    path: str,
    columns: Collection[str] | None,
    required: Collection[str],
    limits: Limits,
    advance: Callable[[int], Any] = ignore,
    other_types: arrow.OtherTypes = "reject",
) -> Iterator[TableRow]:
    """Returns an iterator over the rows of a file, bad rows included. Arguments are as in `read_rows`.

    Args:
      advance: called with the number of bytes that were read since the last call.

    Raises:
      UserError: the format cannot be read. The iterator also raises a `UserError` if the file is missing or damaged, a
        column is missing, or a column has a type that cannot be read.
    """
    file_format = format_of(path)
    if file_format == "jsonl":
        return _json_lines(path, limits, advance)
    check_columns = functools.partial(_used_columns, path, columns, required)
    if file_format in _DELIMITERS:
        return _csv_rows(path, _DELIMITERS[file_format], check_columns, limits, advance)
    sizes = limits.max_characters, limits.max_depth
    rows = arrow.read_rows(path, file_format, check_columns, *sizes, advance, other_types)
    return (TableRow(number, f"{path}:row {number}", content) for number, content in rows)


def _used_columns(
    path: str, columns: Collection[str] | None, required: Collection[str], names: Sequence[str]
) -> list[str]:
    """Checks the names of the columns of a file and returns the columns to read.

    Raises:
      UserError: a column has no name, two columns have the same name, or a required column is missing.
    """
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{path} has several columns '{repeated[:100]}': give each its own name")
    if "" in names:
        number = names.index("") + 1
        raise UserError(
            f"{path} has no name for column {number}: name it, or remove it (pandas writes one unless index=False)"
        )
    for name in required:
        if name not in names:
            raise UserError(missing_column(path, names, name))
    return [name for name in names if columns is None or name in columns]


def _json_lines(path: str, limits: Limits, advance: Callable[[int], Any]) -> Iterator[TableRow]:
    with text.open_text(path, advance) as file:
        for number, line in enumerate(bounded.lines(file, limits.max_characters), 1):
            if line is None or line.strip():
                location = f"{path}:{number}"
                row = _json_object(location, line, limits)
                if number == 1 and isinstance(row, BadRow) and path.removesuffix(".gz").endswith(".txt"):
                    row = BadRow(f"{row}, or read plain text by a source of kind 'text'")
                yield TableRow(number, location, row)


def _json_object(location: str, line: str | None, limits: Limits) -> dict[str, Any] | BadRow:
    """Returns the JSON object of a line, or the error of the line. `line` is None for a line that is too long."""
    if line is None:
        return text.too_long(location, limits.max_characters)
    line = line.rstrip("\n")
    if bounded.is_nested(line, limits.max_depth):
        depth = limits.max_depth
        return BadRow(f"{location} is nested more than {depth} levels deep: fix it, or raise the source's max_depth")
    try:
        row = _parse_json(text.check_utf8(location, line))
    except BadRow as error:
        return error
    except UnicodeEncodeError:
        return BadRow(f"{location} has half of a surrogate pair: fix or remove this line")
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", str(error))  # Without the position, which looks like a line of the file.
        return BadRow(f"{location} is not valid JSON ({reason}): fix or remove this line")
    if not isinstance(row, dict):
        return BadRow(f"{location} is not a JSON object: write one object per line")
    return row


def _parse_json(line: str) -> Any:
    """Parses JSON.

    Raises:
      UnicodeEncodeError: a text has half of a surrogate pair.
      ValueError: the line is not valid JSON.
      RecursionError: the JSON is nested too deeply.
    """
    value = strict_json.parse(line)
    if _SURROGATES.search(line):
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


class _TooLongError(Exception):
    """Raised when a row has too many characters."""


class _CsvLines:
    """Lines of a CSV file for the `csv` module.

    Attributes:
      number: number of the line that was read last, counted from 1.
      size: number of characters that were read since the caller set `size` to 0.
      problem: end of the error message about an invalid character in the lines; empty if every character is valid.
    """

    def __init__(self, lines: Iterable[str | None], limit: int):
        self._lines, self._limit = iter(lines), limit
        self.number, self.size, self.problem = 0, 0, ""

    def __iter__(self) -> "_CsvLines":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        self.size += self._limit + 1 if line is None else len(line)
        if line is None or self.size > self._limit:
            raise _TooLongError
        if "\0" in line:
            self.problem = "has a NUL character: remove it, or convert the file to UTF-8"
        elif not text.is_utf8(line):
            self.problem = "is not UTF-8 text: convert it to UTF-8"
        return line.removeprefix("\ufeff") if self.number == 1 else line


def _csv_records(path: str, file: Any, delimiter: str, limit: int) -> Iterator[tuple[int, list[str] | BadRow]]:
    """Yields a pair per row that is not blank: the number of its first line, and its cells or its error.

    Raises:
      UserError: a row of several lines has an error, and the end of the row is therefore unknown.
    """
    csv.field_size_limit(max(csv.field_size_limit(), _MOST_CELL))
    lines = _CsvLines(bounded.lines(file, limit), limit)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        first, lines.size, lines.problem = lines.number + 1, 0, ""
        location = f"{path}:{first}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except _TooLongError:
            error = text.too_long(location, limit)
        except csv.Error as reason:
            reason = str(reason).partition(" - ")[0]
            error = BadRow(f"{location} is not valid CSV ({reason}): double each '\"' in a quoted cell, or fix the row")
        else:
            if lines.problem:
                yield first, BadRow(f"{location} {lines.problem}")
            elif cells:
                yield first, cells
            continue
        if lines.number > first:
            raise UserError(
                f"{location} opens a quoted cell that does not end correctly by line {lines.number}: fix its '\"'"
            )
        yield first, error


def _csv_rows(
    path: str,
    delimiter: str,
    check_columns: Callable[[list[str]], list[str]],
    limits: Limits,
    advance: Callable[[int], Any],
) -> Iterator[TableRow]:
    with text.open_text(path, advance, newline="\n") as file:
        records = _csv_records(path, file, delimiter, limits.max_characters)
        _, header = next(records, (0, None))
        if header is None:
            raise UserError(f"{path} is empty: its first line must be the names of its columns")
        if isinstance(header, BadRow):
            raise header
        used = check_columns(header)
        indices = [header.index(name) for name in used]
        first = 0
        for first, cells in records:
            location = f"{path}:{first}"
            if isinstance(cells, BadRow):
                yield TableRow(first, location, cells)
            elif len(cells) != len(header):
                problem = f"has {len(cells)} cells, but the header has {len(header)}: fix or remove this row"
                yield TableRow(first, location, BadRow(f"{location} {problem}"))
            else:
                yield TableRow(first, location, {name: Cell(cells[i]) for name, i in zip(used, indices, strict=True)})
        if not first:
            raise UserError(f"{path} has a header, but no rows: add rows, or remove the file")


def missing_column(location: str, names: Iterable[str], name: str, note: str = "") -> str:
    """Returns the message for a column that a file, or a row of JSON Lines, lacks.

    Args:
      location: path of a file, or name of one of its rows.
      names: columns that the file or row has.
      name: missing column.
      note: flag or field that names the column; it appears in parentheses, unless the message says that the file seems
        to have another delimiter.
    """
    names, path = list(names), _ROW.sub("", location)
    file_format = format_of(path)
    hint = _delimiter_hint(names, _DELIMITERS[file_format]) if file_format in _DELIMITERS else ""
    lacking = location if file_format == "jsonl" else path
    if hint:
        return f"{lacking} has no column '{name}': {hint}"
    return f"{lacking} has no column '{name}'{note and f' ({note})'}: {nearest(name, names)}"


def _delimiter_hint(header: list[str], delimiter: str) -> str:
    """Returns a hint if the header is one cell that contains another delimiter, otherwise ""."""
    for other, name in _SEPARATORS.items():
        if len(header) == 1 and other != delimiter and other in header[0]:
            extension = next((key for key, value in _DELIMITERS.items() if value == other), "")
            rename = f"name it .{extension}, or " if extension else ""
            return f"its header seems to be separated by {name}, so {rename}separate it by {_SEPARATORS[delimiter]}"
    return ""
