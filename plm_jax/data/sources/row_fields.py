"""Fields of the rows of tables, checked for their types."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from plm_jax.common.errors import nearest
from plm_jax.data.sources.corpus import BadRow
from plm_jax.data.sources.tables import cell_value

Row = Mapping[str, Any]

# Maximum number of characters of a value in an error, without an added quote.
_MAX_BRIEF = 40
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


def raw(location: str, row: Row, name: str) -> Any:
    """Returns a field as it is in the table; raises `BadRow` if the row lacks it."""
    if name not in row:
        raise BadRow(f"{location} has no field '{name}': {nearest(name, row)}")
    return row[name]


def value(location: str, row: Row, name: str) -> Any:
    """Returns a field of any type, with cells of CSV files parsed; raises `BadRow` if the row lacks it."""
    return cell_value(raw(location, row, name))


def text(location: str, row: Row, name: str) -> str:
    """Returns a text; raises `BadRow` if the field is missing or not a text."""
    content = raw(location, row, name)
    if not isinstance(content, str):
        raise BadRow(f"{location} has {brief(content)} in '{name}': expected a text")
    return str(content)


def texts(location: str, row: Row, name: str) -> list[str]:
    """Returns a list of texts; raises `BadRow` if the field is missing or anything else."""
    content = value(location, row, name)
    if not (isinstance(content, list) and all(isinstance(item, str) for item in content)):
        raise BadRow(f"{location} has {brief(content)} in '{name}': expected a list of texts")
    return content


def number(location: str, row: Row, name: str) -> int | float:
    """Returns a number in the range of float32; raises `BadRow` if the field is missing or anything else."""
    content = value(location, row, name)
    is_number = isinstance(content, int | float) and not isinstance(content, bool)
    if not is_number or not -_MAX_FLOAT32 < content < _MAX_FLOAT32:
        raise BadRow(f"{location} has {brief(content)} in '{name}': expected a number")
    return content


def brief(content: Any) -> str:
    """Returns a value as JSON for error messages.

    A long value is truncated and ends with an ellipsis. A truncated text keeps its closing quotation mark.
    """
    text = json.dumps(content, ensure_ascii=False, default=str)
    if len(text) <= _MAX_BRIEF:
        return text
    return f"{text[: _MAX_BRIEF - 1]}…" + ('"' if text.startswith('"') else "")
