"""Tables of examples and of predictions. The file extension selects JSON Lines, CSV, TSV or Parquet."""

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
from plm_jax.common.errors import ExampleError, UserError
from plm_jax.data.sources import row_fields, tables, templates
from plm_jax.inference.predictions import PREFIX

Row = Mapping[str, Any]
_TEXT_FORMATS = ("jsonl", "csv", "tsv")
FORMATS = (*_TEXT_FORMATS, "parquet")
# Columns of an example if the run does not name any, by the kind of the task head.
_COLUMNS = {"span": ("question", "context"), "choice": ("question", "choices")}
_TEXT = "text"
# Batches whose rows are sorted by length and written together.
_BATCHES_PER_CHUNK = 64


def read(path: str, output: str) -> Iterator[tuple[str, Row]]:
    """Returns an iterator over the rows of a table. Each item is a pair (location, fields).

    Each line of a .txt file is a row with the field `text`. The first row is read immediately, and the other rows are
    read during the iteration.

    Args:
      output: file to which the columns will be copied. If this is a Parquet file, columns may have any Arrow type.

    Raises:
      UserError: the file is missing, damaged or empty, or has a column that cannot be copied to the output. Damage
        after the first row is reported during the iteration.
    """
    if not storage.exists(path):
        raise UserError(f"there is no file at {path}: check --input")
    other_types = "text" if output.rpartition(".")[2] in _TEXT_FORMATS else "keep"
    rows = _read_lines(path) if path.endswith(".txt") else tables.read_rows(path, other_types=other_types)
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
    """Passes rows and their examples to `write` in chunks of many batches, and shows a progress bar.

    Prints a warning if rows have no text.

    Args:
      rows: pairs of the location and the fields of a row.
      make: function that turns the location and the fields of a row into an example.
      batch_size: number of rows in a batch.
      description: text before the progress bar.
      write: function that is called with a chunk of rows and their examples.

    Returns:
      A string with the number of rows and the elapsed time, for a summary.

    Raises:
      UserError: `write` raised an `ExampleError` for an example. The message contains the location of the example.
        Other errors are not converted.
    """
    began, number, empty = time.monotonic(), 0, []
    with tqdm(desc=description, unit=" rows", disable=None) as progress_bar:
        while chunk := list(itertools.islice(rows, _BATCHES_PER_CHUNK * batch_size)):
            examples = [make(*row) for row in chunk]
            empty += [location for (location, _), example in zip(chunk, examples, strict=True) if _is_empty(example)]
            try:
                write([row for _, row in chunk], examples)
            except ExampleError as error:
                # Equal examples have the same problem.
                raise UserError(f"{chunk[examples.index(error.example)][0]} {error.problem}") from error
            number += len(chunk)
            progress_bar.update(len(chunk))
    if empty:
        counted = f"{len(empty):,} of {number:,} rows have no text, the first one is {empty[0]}"
        print(f"warning: {counted}: their output is that of an empty text", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    return f"{number:,} rows in {seconds:.1f} s, {number / max(seconds, 1e-9):,.0f} per second"


def _is_empty(example: Any) -> bool:
    """Whether all texts of an example are empty or only white space."""
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
      run: run that trained the model; the run's sources define the columns of the texts, or a template of the inputs.
      kind: kind of the model's task head; None for a model without a task head.
      names: columns of the texts. If empty, the columns are taken from the run or, if the run defines no columns, from
        the task, such as `question` and `context`, or `text`.

    Raises:
      UserError: the number of columns does not fit the task. The returned function also raises a `UserError` if a row
        lacks a column or has a value of a wrong type.
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
    """Returns the value of a field.

    The value is a list of texts for kind "choice", a text or a list of words for kind "tags", otherwise a text.
    """
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
    """Returns the format of an output file, which is its extension.

    Raises:
      UserError: the format is unknown.
    """
    extension = path.rpartition(".")[2]
    if extension not in FORMATS:
        raise UserError(f"--output={path}: use a file that ends in .{', .'.join(FORMATS)}")
    return extension


@contextlib.contextmanager
def writing(path: str) -> Generator[Callable[[Sequence[Row]], None]]:
    """Context manager that yields a function for appending rows to a file.

    The file is created only when the context ends without an error.

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
    """Yields a function that writes rows as CSV. None becomes an empty cell; numbers, lists and so on become JSON."""
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
    """Yields a function that writes rows as Parquet, with the types of the first rows.

    A value may be an Arrow array of length 1.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with contextlib.ExitStack() as stack:
        writer: Any = None

        def write(rows: Sequence[Row]) -> None:
            nonlocal writer
            try:
                table = _arrow_table(rows, None if writer is None else writer.schema)
                if writer is None:
                    table = table.cast(pa.schema([_known(field) for field in table.schema]))
                    writer = stack.enter_context(pq.ParquetWriter(file, table.schema))
            except pa.ArrowNotImplementedError as error:
                raise UserError(f"Parquet cannot store a column ({error}): convert or remove this column") from error
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


def _arrow_table(rows: Sequence[Row], schema: Any) -> Any:
    """Returns an Arrow table of rows. The types come from the schema or, if it is None, from the values."""
    import pyarrow as pa

    names = [name for name, value in rows[0].items() if isinstance(value, pa.Array)]
    columns = {name: pa.concat_arrays([row[name] for row in rows]) for name in names}
    plain = [{name: value for name, value in row.items() if name not in columns} for row in rows]
    plain_schema = schema and pa.schema([field for field in schema if field.name not in columns])
    table = pa.Table.from_pylist(plain, plain_schema)
    columns |= {name: table.column(name) for name in table.column_names}
    return pa.table({name: columns[name] for name in rows[0]}, schema)


def joined(rows: Iterable[Row], predicted: Iterable[Row], location: str) -> list[Row]:
    """Returns the rows with the columns of their predictions added.

    Raises:
      UserError: a row already has a column with the name of a column of its prediction.
    """
    merged = []
    for row, columns in zip(rows, predicted, strict=True):
        if duplicates := row.keys() & columns.keys():
            raise UserError(f"{location} already has a column '{min(duplicates)}': rename it")
        merged.append({**row, **columns})
    return merged
