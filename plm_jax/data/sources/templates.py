"""Templates of rows, such as `sentiment: {sentence}` or `{choices[0]}`."""

import json
import math
import re
import string
from collections.abc import Callable, Mapping
from typing import Any

from plm_jax.common.errors import nearest
from plm_jax.data.sources import row_fields
from plm_jax.data.sources.corpus import BadRow
from plm_jax.data.sources.tables import Cell, cell_value

# Largest number of digits of a width or a precision.
_MAX_DIGITS = 3
# Name of the field in a replacement field such as `choices[0]`.
_NAME = re.compile(r"[^.\[]*")


class _Template(string.Formatter):
    """Formatter like `str.format` that accepts only texts and numbers, and writes booleans as JSON does.

    Widths and precisions of more than three digits are rejected, so that a row's text is about as long as its fields.
    """

    def get_field(self, field_name, args, kwargs):
        value, first = super().get_field(field_name, args, _with_values(field_name, kwargs))
        if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"'{field_name}' is {row_fields.brief(value)}, neither text nor a number")
        return json.dumps(value) if isinstance(value, bool) else value, first

    def format_field(self, value, format_spec):
        if re.search(rf"\d{{{_MAX_DIGITS + 1}}}", format_spec):
            raise ValueError(
                f"{row_fields.brief(format_spec)} has a number above 999: use a smaller width or precision"
            )
        try:
            return super().format_field(value, format_spec)
        except ValueError:
            if isinstance(value, Cell) and isinstance(value.value, int | float):
                return super().format_field(value.value, format_spec)
            raise


def _with_values(field_name: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a row whose cell is parsed if `field_name` reads a part of the cell, such as `choices[0]`."""
    name = _name(field_name)
    return {**row, name: cell_value(row[name])} if name != field_name and isinstance(row.get(name), Cell) else row


def _name(field_name: str) -> str:
    match = _NAME.match(field_name)
    return match[0] if match else ""


def fields(template: str) -> set[str]:
    """Returns the names of the fields of a row that a template uses; in an invalid template, those before the error."""
    names: set[str] = set()
    try:
        for _, field_name, format_spec, _ in string.Formatter().parse(template):
            if field_name is not None:
                names |= {_name(field_name)} | fields(format_spec or "")
    except ValueError:  # The first row that is rendered reports the error of the template.
        pass
    return names


def render(template: str, location: str, row: Mapping[str, Any], template_name: str) -> str:
    """Renders a template with the fields of a row.

    Args:
      location: name of the row in errors.
      template_name: name of the template in errors.

    Raises:
      BadRow: the template is invalid, the row lacks a field, or a field is neither text nor a finite number.
    """
    return _raise_bad_row(lambda: _Template().vformat(template, (), row), location, row, template_name)


def render_all(template: str, location: str, row: Mapping[str, Any], template_name: str) -> tuple[str, ...]:
    """Returns a tuple: the rendered template or, if the template is only a field with a list of texts, these texts.

    Raises:
      BadRow: the template is invalid, the row lacks a field, or a field does not fit the template.
    """
    parts = _raise_bad_row(lambda: list(string.Formatter().parse(template)), location, row, template_name)
    text, field, *_ = parts[0] if len(parts) == 1 else ("", None)
    if field and not text:
        values = _with_values(field, row)
        value, _ = _raise_bad_row(lambda: string.Formatter().get_field(field, (), values), location, row, template_name)
        value = cell_value(value)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
    return (render(template, location, row, template_name),)


def _raise_bad_row(function: Callable[[], Any], location: str, row: Mapping[str, Any], template_name: str) -> Any:
    """Calls a function that formats a row, converts its errors to `BadRow`, and returns its result."""
    try:
        return function()
    except KeyError as error:
        (name,) = error.args
        raise BadRow(f"{location} has no field '{name}': {nearest(str(name), row)}") from None
    except (ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise BadRow(f"{location} does not fit the source's {template_name}: {error}") from None
