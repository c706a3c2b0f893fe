"""Texts of rows by templates such as `sentiment: {sentence}` or `{choices[0]}`."""

import json
import re
import string
from collections.abc import Mapping
from typing import Any

from plm_jax.common.errors import nearest
from plm_jax.data.sources.corpus import BadRow

# Largest number of digits of a width or a precision.
_MOST_DIGITS = 3


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
        if re.search(rf"\d{{{_MOST_DIGITS + 1}}}", format_spec):
            raise ValueError(f"'{format_spec[:40]}' has a number above 999: give a smaller width or precision")
        return super().format_field(value, format_spec)


def render(template: str, place: str, row: Mapping[str, Any], what: str) -> str:
    """The text that a template makes of a row; `place` and `what` the template is for are said in errors.

    Raises:
      BadRow: it lacks a field, or one holds neither text nor a number.
    """
    return _told(lambda: _Template().vformat(template, (), row), place, row, what)


def render_all(template: str, place: str, row: Mapping[str, Any], what: str) -> tuple[str, ...]:
    """As `render`, but a field alone that holds a list of texts gives all of them."""
    parts = list(string.Formatter().parse(template))
    text, field, *_ = parts[0] if len(parts) == 1 else ("", None)
    if field and not text:
        value, _ = _told(lambda: string.Formatter().get_field(field, (), row), place, row, what)
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return tuple(value)
    return (render(template, place, row, what),)


def _told(make, place: str, row: Mapping[str, Any], what: str) -> Any:
    try:
        return make()
    except KeyError as error:
        (name,) = error.args
        raise BadRow(f"{place} has no field '{name}': {nearest(str(name), row)}") from None
    except (ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise BadRow(f"{place} does not fit the source's {what}: {error}") from None
