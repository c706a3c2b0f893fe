"""Tables of examples to predict, and of predictions: JSON Lines, CSV, TSV and Parquet, by the extension of a file."""

import contextlib
import csv
import io
import itertools
import json
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from tqdm import tqdm

from plm_jax import config
from plm_jax.common import storage
from plm_jax.common.errors import UserError
from plm_jax.data.sources import row_fields, tables, templates
from plm_jax.inference.predictions import PREFIX

Row = Mapping[str, Any]
FORMATS = ("jsonl", "csv", "tsv", "parquet")
# Columns of an example if the run does not name any, by the kind of the task head.
_COLUMNS = {"span": ("question", "context"), "choice": ("question", "choices")}
_TEXT = "text"
# Batches whose rows are sorted by length and written together.
_BATCHES_PER_CHUNK = 64


def read(path: str) -> Iterator[tuple[str, Row]]:
    """Returns the location and the fields of each row of a table, or of each line of a .txt file, as `text`.

    The first row is read at once, so that a wrong file is reported before a model is loaded.

    Raises:
      UserError: the file is missing, damaged or empty.
    """
    if not storage.exists(path):
        raise UserError(f"there is no file at {path}: check --input")
    rows = _read_lines(path) if path.endswith(".txt") else tables.read_rows(path)
    first = list(itertools.islice(rows, 1))
    if not first:
        raise UserError(f"{path} has no rows: check --input")
    return itertools.chain(first, rows)


def process(
    rows: Iterator[tuple[str, Row]],
    make: Callable[[str, Row], Any],
    batch_size: int,
    description: str,
    write: Callable[[Sequence[Row], list[Any]], None],
) -> str:
    """Passes rows and their examples to a function in chunks of many batches, with a progress bar.

    Prints a warning with the number of rows without text and the location of the first one.

    Args:
      make: function that turns the location and the fields of a row into an example.
      write: function of rows and their examples.

    Returns:
      The number of rows and the time, for a summary.
    """
    began, number, empty = time.monotonic(), 0, []
    with tqdm(desc=description, unit=" rows", disable=None) as progress_bar:
        while chunk := list(itertools.islice(rows, _BATCHES_PER_CHUNK * batch_size)):
            examples = [make(*row) for row in chunk]
            empty += [location for (location, _), example in zip(chunk, examples, strict=True) if _is_empty(example)]
            write([row for _, row in chunk], examples)
            number += len(chunk)
            progress_bar.update(len(chunk))
    if empty:
        counted = f"{len(empty):,} of {number:,} rows have no text, the first one is {empty[0]}"
        print(f"warning: {counted}: their output is that of an empty text", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    return f"{number:,} rows in {seconds:.1f} s, {number / max(seconds, 1e-9):,.0f} per second"


def _is_empty(example: Any) -> bool:
    """Whether no text of an example has a character that is not white space."""
    return not example.strip() if isinstance(example, str) else all(map(_is_empty, example))


def _read_lines(path: str) -> Iterator[tuple[str, Row]]:
    with storage.open_binary(path) as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{path}:{number} is not UTF-8 text: convert it to UTF-8") from error
            if "\0" in text:
                raise UserError(f"{path}:{number} has a NUL character: remove it, or convert the file to UTF-8")
            yield f"{path}:{number}", {_TEXT: text.rstrip("\r\n")}


def example_maker(run: config.Run | None, kind: str | None, names: Sequence[str]) -> Callable[[str, Row], Any]:
    """Returns the function that turns the location and the fields of a row into an example.

    Args:
      run: run that trained the model; its sources name the columns, or the template of the inputs.
      kind: kind of the model's task head; None for a model without one.
      names: columns of the texts; empty for those of the run, or for `text`.

    Raises:
      UserError: the number of columns does not fit the task.
    """
    sources = [] if run is None else list(run.data.sources.values())
    if not names and kind is None:
        inputs = [source.inputs for source in sources if isinstance(source, config.TableInputsTargets)]
        if inputs:
            return lambda location, row: templates.render(inputs[0], location, row, "inputs")
    forms = [source.form for source in sources if isinstance(source, config.LabeledSource)]
    names = names or next(map(_form_columns, forms), ())
    names = names or _COLUMNS.get(kind or "", (_TEXT,))
    expected = {"span": {2}, "choice": {2}, "classes": {1, 2}, "labels": {1, 2}, "score": {1, 2}}.get(kind or "", {1})
    if len(names) not in expected:
        numbers = " or ".join(map(str, sorted(expected)))
        raise UserError(f"--text names {len(names)} columns, {', '.join(names)}: the model reads {numbers}")

    list_column = names[-1] if kind in ("tags", "choice") and len(names) == max(expected) else None

    def make(location: str, row: Row) -> Any:
        values = [_value(location, row, name, kind if name == list_column else None) for name in names]
        return values[0] if len(values) == 1 else tuple(values)

    return make


def _form_columns(form: config.Form) -> tuple[str, ...]:
    """Returns the columns of the texts of a source."""
    if isinstance(form, config.ClassForm | config.LabelsForm | config.ScoreForm):
        return (form.text, form.pair) if form.pair else (form.text,)
    if isinstance(form, config.TagForm):
        return (form.words,)
    if isinstance(form, config.AnswerForm):
        return (form.question, form.context)
    assert isinstance(form, config.ChoiceForm)
    return (form.context, form.endings)


def _value(location: str, row: Row, name: str, kind: str | None) -> Any:
    """Returns a text; for `kind` "tags" a text or a list of words, for "choice" a list of texts."""
    if name not in row:
        raise UserError(tables.missing_column(location, row, name, "--text selects another one"))
    value = row[name]
    if value is None:
        raise UserError(f"{location} has no value in '{name}': fill in or remove this row")
    if kind is not None and isinstance(tables.cell_value(value), list):
        value = tables.cell_value(value)
    expected = {"tags": "a text or a list of words", "choice": "a list of texts"}.get(kind or "", "a text")
    is_texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    if not (is_texts if kind == "choice" else isinstance(value, str) or (kind == "tags" and is_texts)):
        raise UserError(f"{location} has {row_fields.brief(value)} in '{name}': expected {expected}")
    return value


def check_output(path: str) -> str:
    """Returns the format of an output file.

    Raises:
      UserError: the format is unknown.
    """
    extension = path.rpartition(".")[2]
    if extension not in FORMATS:
        raise UserError(f"--output={path}: use a file that ends in .{', .'.join(FORMATS)}")
    return extension


@contextlib.contextmanager
def writing(path: str) -> Generator[Callable[[Sequence[Row]], None]]:
    """Yields a function that appends rows to a file, which is created only when the context ends without an error.

    Raises:
      UserError: the format is unknown, or a row does not fit the file.
    """
    extension = check_output(path)
    with storage.writing(path) as file:
        if extension == "jsonl":
            yield lambda rows: file.writelines(map(_json_line, rows))
        elif extension == "parquet":
            with _parquet_writer(file) as write:
                yield write
        else:
            with _csv_writer(file, "," if extension == "csv" else "\t") as write:
                yield write


def _json_line(row: Row) -> bytes:
    return (json.dumps(row, ensure_ascii=False, default=str) + "\n").encode("utf-8")


@contextlib.contextmanager
def _csv_writer(file: BinaryIO, delimiter: str) -> Generator[Callable[[Sequence[Row]], None]]:
    """Yields a function that writes rows as CSV; values that are not texts are written as JSON."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.writer(text, delimiter=delimiter)
    header: list[str] = []

    def cell(value: Any) -> str:
        if value is None:
            return ""
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)

    def write(rows: Sequence[Row]) -> None:
        for row in rows:
            if not header:
                header.extend(row)
                writer.writerow(header)
            if set(row) != set(header):
                raise UserError(f"rows differ in their columns ({', '.join(row)}): write .jsonl instead")
            writer.writerow([cell(row[name]) for name in header])

    yield write
    text.flush()
    text.detach()


@contextlib.contextmanager
def _parquet_writer(file: BinaryIO) -> Generator[Callable[[Sequence[Row]], None]]:
    """Yields a function that writes rows as Parquet, with the types of the first rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with contextlib.ExitStack() as stack:
        writer: Any = None

        def write(rows: Sequence[Row]) -> None:
            nonlocal writer
            try:
                table = pa.Table.from_pylist([dict(row) for row in rows], None if writer is None else writer.schema)
                if writer is None:
                    table = table.cast(pa.schema([_known(field) for field in table.schema]))
                    writer = stack.enter_context(pq.ParquetWriter(file, table.schema))
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise UserError(f"rows differ in the types of their columns ({error}): write .jsonl instead") from error
            writer.write_table(table)

        def _known(field: Any) -> Any:
            is_list = pa.types.is_list(field.type)
            if not pa.types.is_null(field.type.value_type if is_list else field.type):
                return field
            if field.name == f"{PREFIX}entities":
                kinds = {"label": pa.string(), "text": pa.string(), "start": pa.int64(), "end": pa.int64()}
                element = pa.struct([*kinds.items(), ("score", pa.float64())])
            else:
                is_offset = field.name in (f"{PREFIX}start", f"{PREFIX}end")
                element = pa.int64() if is_offset else pa.string()
            return field.with_type(pa.list_(element) if is_list else element)

        yield write


def joined(rows: Iterable[Row], predicted: Iterable[Row], location: str) -> list[Row]:
    """Returns the rows with the columns of their predictions.

    Raises:
      UserError: a row already has such a column.
    """
    merged = []
    for row, columns in zip(rows, predicted, strict=True):
        if duplicates := row.keys() & columns.keys():
            raise UserError(f"{location} already has a column '{min(duplicates)}': rename it")
        merged.append({**row, **columns})
    return merged
