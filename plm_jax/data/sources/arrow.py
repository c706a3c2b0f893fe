"""Rows of Parquet files, and of Arrow files in the stream format or the file format.

An Arrow file is read one record batch at a time, and a Parquet file in batches of about 8 MB. PyArrow is imported when
the first file is read, because the training process and sources of text do not need it.
"""

import contextlib
import decimal
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from plm_jax.common import extras, storage
from plm_jax.common.errors import UserError, one_line
from plm_jax.data.sources import text
from plm_jax.data.sources.corpus import BadRow

# Names of formats in errors.
FORMATS = {"parquet": "a Parquet file", "arrow": "an Arrow file"}
# Treatment of columns whose types have no counterpart in JSON: `reject` raises an error; `text` turns dates and times
# into ISO 8601, and rejects other types; `keep` makes each value an Arrow array of length 1.
OtherTypes = Literal["reject", "text", "keep"]
# Batches that become Python objects at a time.
_BATCH_ROWS, _BATCH_BYTES = 1024, 2**23
_BUFFER_BYTES = 2**20
# First bytes of the file format, and last bytes of the stream format.
_FILE_MAGIC, _STREAM_END = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"


class _NotUtf8:
    """Placeholder for a text that is not UTF-8."""


def read_rows(
    path: str,
    file_format: str,
    check_columns: Callable[[list[str]], list[str]],
    max_characters: int,
    max_depth: int,
    advance: Callable[[int], Any],
    other_types: OtherTypes = "reject",
) -> Iterator[tuple[int, dict[str, Any] | BadRow]]:
    """Yields a pair per row of a file: the number of the row, counted from 1, and its content.

    The content is a dict from column to value or, for a bad row, its error.

    Args:
      file_format: one of `FORMATS`.
      check_columns: function that receives the names of the columns of the file and returns the columns to read.
      max_characters: maximum number of characters of a row; longer rows are bad rows.
      max_depth: maximum depth of nested lists and structs; a column with a deeper type has no counterpart in JSON.
      advance: called with the approximate number of bytes that were read since the last call.
      other_types: how to read columns whose types have no counterpart in JSON. `reject`: raise an error; `text`: read
        dates and times as text and reject other types; `keep`: yield Arrow arrays of length 1 as values.

    Raises:
      UserError: PyArrow is not installed, the file cannot be read, is empty or is damaged, or a column has a type that
        cannot be read.
    """
    batches = _parquet_batches if file_format == "parquet" else _arrow_batches
    number = reported = 0

    def columns(schema: Any) -> list[str]:
        return _columns(path, schema, check_columns, max_depth, other_types)

    with _open(path, FORMATS[file_format]) as (file, size):
        for share, batch in batches(path, file, size, columns):
            readable = [other_types != "keep" or _is_readable(column.type, max_depth) for column in batch.columns]
            for content in _contents(path, number, batch, max_characters, readable):
                number += 1
                yield number, content
            advance(int(size * share) - reported)
            reported = int(size * share)


@contextlib.contextmanager
def _open(path: str, format_name: str) -> Iterator[tuple[Any, int]]:
    """Yields an open file and its size; converts errors that occur while it is read to `UserError`."""
    with extras.report_missing():
        import pyarrow
    with storage.reaching(path):
        try:
            with storage.open_binary(path) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(0)
                if not size:
                    raise UserError(f"{path} is empty: replace it with {format_name}")
                yield file, size
        except (pyarrow.ArrowException, UnicodeDecodeError, MemoryError, ArithmeticError) as error:
            raise _damaged(path, format_name, error) from error
        except OSError as error:
            if type(error) is OSError and not error.errno:  # Of PyArrow.
                raise _damaged(path, format_name, error) from error
            raise UserError(f"cannot read {path}: {error.strerror or one_line(error)}") from error


def _damaged(path: str, format_name: str, error: BaseException) -> UserError:
    return UserError(f"{path} is damaged or not {format_name} ({one_line(error)}): replace it")


def _parquet_batches(
    path: str, file: Any, size: int, columns: Callable[[Any], list[str]]
) -> Iterator[tuple[float, Any]]:
    """Yields pairs: the share of the file that was read so far, and a record batch of the columns to read."""
    from pyarrow import parquet

    table = parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)
    names, metadata = columns(table.schema_arrow), table.metadata
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    row_bytes = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=1)
    batch_rows = min(max(int(_BATCH_BYTES / max(row_bytes, 1)), 1), _BATCH_ROWS)
    rows = 0
    for batch in table.iter_batches(batch_rows, columns=names, use_threads=False):
        rows += batch.num_rows
        yield rows / max(metadata.num_rows, 1), batch.select(names)
    if rows != metadata.num_rows:
        raise UserError(f"{path} has {rows:,} rows, but its footer counts {metadata.num_rows:,}: replace it")


def _arrow_batches(path: str, file: Any, size: int, columns: Callable[[Any], list[str]]) -> Iterator[tuple[float, Any]]:
    """Yields pairs: the share of the file that was read so far, and a record batch of the columns to read."""
    from pyarrow import ipc

    is_file = file.read(len(_FILE_MAGIC)) == _FILE_MAGIC
    if not is_file:
        file.seek(max(size - len(_STREAM_END), 0))
        if file.read() != _STREAM_END:
            raise UserError(f"{path} is not an Arrow file, or was cut off: replace it")
    file.seek(0)
    open_reader = ipc.open_file if is_file else ipc.open_stream
    schema = open_reader(file).schema
    names = columns(schema)
    file.seek(0)
    included = [schema.get_field_index(name) for name in names]
    reader = open_reader(file, options=ipc.IpcReadOptions(included_fields=included, use_threads=False))
    number = reader.num_record_batches if is_file else 0
    batches = map(reader.get_batch, range(number)) if is_file else reader
    for index, batch in enumerate(batches, 1):
        batch.validate(full=True)  # Otherwise, PyArrow trusts the offsets of a damaged file.
        for first in range(0, batch.num_rows, _BATCH_ROWS):
            piece = batch.slice(first, _BATCH_ROWS)
            yield index / number if is_file else file.tell() / size, piece.select(names)


def _columns(
    path: str,
    schema: Any,
    check_columns: Callable[[list[str]], list[str]],
    max_depth: int,
    other_types: OtherTypes,
) -> list[str]:
    """Checks the types of the columns to read, and returns the names of these columns."""
    names = check_columns(schema.names)
    for name in names if other_types != "keep" else ():
        kind = schema.field(name).type
        if not (_is_readable(kind, max_depth) or (other_types == "text" and _is_time(kind))):
            remedy = ", remove it, or write a .parquet file" if other_types == "text" else ""
            raise UserError(
                f"{path} has the column '{name}' of type {str(kind)[:80]}: convert it to text, numbers, booleans, or "
                f"lists and structs of these{remedy}"
            )
    return names


def _is_time(kind: Any) -> bool:
    """Whether an Arrow type is a date, a time or a timestamp."""
    from pyarrow import types

    return types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind)


def _is_readable(kind: Any, max_depth: int) -> bool:
    """Whether the values of an Arrow type have a counterpart in JSON that is nested at most `max_depth` levels deep."""
    from pyarrow import types

    tests = (
        *(types.is_string, types.is_large_string, types.is_string_view, types.is_integer, types.is_floating),
        *(types.is_boolean, types.is_decimal, types.is_null),
    )
    if any(test(kind) for test in tests):
        return True
    if max_depth <= 0:
        return False
    if types.is_dictionary(kind):
        return _is_readable(kind.value_type, max_depth - 1)
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view, types.is_large_list_view)
    if any(test(kind) for test in lists):
        return _is_readable(kind.value_type, max_depth - 1)
    return types.is_struct(kind) and all(_is_readable(field.type, max_depth - 1) for field in kind)


def _contents(
    path: str, before: int, batch: Any, max_characters: int, readable: Sequence[bool]
) -> Iterator[dict[str, Any] | BadRow]:
    """Yields, for each row of a batch, a dict from column to value or, for a bad row, its error.

    Args:
      before: number of rows before the batch.
      readable: for each column, whether to convert its values to JSON types. Values of other columns are Arrow arrays
        of length 1.
    """
    names = batch.schema.names
    columns = [
        _values(column) if in_json else [column.slice(index, 1) for index in range(len(column))]
        for column, in_json in zip(batch.columns, readable, strict=True)
    ]
    for index in range(batch.num_rows):
        values = [column[index] for column in columns]
        if sum(map(_num_characters, values)) > max_characters:
            yield text.too_long(f"{path}:row {before + index + 1}", max_characters)
        elif any(value is _NotUtf8 for value in values):
            yield BadRow(f"{path}:row {before + index + 1} is not UTF-8 text: convert it to UTF-8")
        else:
            yield dict(zip(names, values, strict=True))


def _values(column: Any) -> list[Any]:
    """Returns the values of a column in the types of JSON, with dates and times in ISO 8601.

    The class `_NotUtf8` stands for text that is not UTF-8.
    """
    import pyarrow

    if isinstance(column, pyarrow.DictionaryArray):
        column = column.dictionary_decode()
    if _is_time(column.type):
        return [value and value.replace(" ", "T", 1) for value in column.cast(pyarrow.string()).to_pylist()]
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        values = [_value(scalar) for scalar in column]
    return list(map(_plain, values)) if "decimal" in str(column.type) else values


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return _NotUtf8


def _plain(value: Any) -> Any:
    """Converts the decimals in a value to integers or floats."""
    if isinstance(value, decimal.Decimal):
        exponent = value.as_tuple().exponent
        return int(value) if isinstance(exponent, int) and exponent >= 0 else float(value)
    if isinstance(value, list):
        return list(map(_plain, value))
    return {name: _plain(member) for name, member in value.items()} if isinstance(value, dict) else value


def _num_characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_num_characters, value.values()))
    return sum(map(_num_characters, value)) if isinstance(value, list) else 0
