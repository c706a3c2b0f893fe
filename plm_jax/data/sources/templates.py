"""Templates of rows, such as `sentiment: {sentence}` or `{choices[0]}`."""

import json
import re
import string
from collections.abc import Callable, Mapping
from typing import Any

from plm_jax.common.errors import nearest
from plm_jax.data.sources.corpus import BadRow

# Largest number of digits of a width or a precision.
_MAX_DIGITS = 3


class _Template(string.Formatter):
    """Formats like `str.format`, but accepts only texts and numbers, and writes booleans as JSON does.

    Widths and precisions of more than three digits are rejected, so that a row's text is about as long as its fields.
    """

    def get_field(self, field_name, args, kwargs):
        value, first = super().get_field(field_name, args, kwargs)
        if not isinstance(value, str | int | float):
            raise ValueError(f"'{field_name}' is {json.dumps(value, default=str)[:40]}, neither text nor a number")
        return json.dumps(value) if isinstance(value, bool) else value, first

    def format_field(self, value, format_spec):
        if re.search(rf"\d{{{_MAX_DIGITS + 1}}}", format_spec):
            raise ValueError(f"'{format_spec[:40]}' has a number above 999: use a smaller width or precision")
        return super().format_field(value, format_spec)


def render(template: str, location: str, row: Mapping[str, Any], template_name: str) -> str:
    """Renders a template with the fields of a row.

    Args:
      location: name of the row in errors.
      template_name: name of the template in errors.

    Raises:
      BadRow: the row lacks a field, or a field is neither text nor a number.
    """
    return _raise_bad_row(lambda: _Template().vformat(template, (), row), location, row, template_name)


def render_all(template: str, location: str, row: Mapping[str, Any], template_name: str) -> tuple[str, ...]:
    """Renders a template; if it is only a field with a list of texts, returns every text of the list."""
    parts = list(string.Formatter().parse(template))
    text, field, *_ = parts[0] if len(parts) == 1 else ("", None)
    if field and not text:
        value, _ = _raise_bad_row(lambda: string.Formatter().get_field(field, (), row), location, row, template_name)
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
    return (render(template, location, row, template_name),)


def _raise_bad_row(function: Callable[[], Any], location: str, row: Mapping[str, Any], template_name: str) -> Any:
    """Returns the result of a function that formats a row, with its errors raised as `BadRow`."""
    try:
        return function()
    except KeyError as error:
        (name,) = error.args
        raise BadRow(f"{location} has no field '{name}': {nearest(str(name), row)}") from None
    except (ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise BadRow(f"{location} does not fit the source's {template_name}: {error}") from None
