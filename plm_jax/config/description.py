"""Listing of a config: the value, type and description of each field. The descriptions come from docstrings."""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from plm_jax.common import trees

_INDENT = "  "


def lines(section: Any) -> Iterator[str]:
    """Yields the lines that list the fields of a section, a dataclass instance.

    A plain field is one line `name = value  # type: description`. A field that is a section is a line with its name,
    followed by its own fields, indented.
    """
    hints = typing.get_type_hints(type(section), include_extras=True)
    descriptions = field_descriptions(type(section))
    for f in dataclasses.fields(section):
        yield from _lines(f.name, getattr(section, f.name), hints[f.name], descriptions.get(f.name, ""))


def _lines(name: str, value: Any, kind: Any, description: str) -> Iterator[str]:
    choices, element = trees.choices(kind), trees.values(kind)
    if element is not None:
        value = dict(value)
    if dataclasses.is_dataclass(value):
        yield f"{name}:" + (f"  # {description or sentence(type(value).__doc__)}" if not choices else "")
        if choices:
            meaning = sentence(type(value).__doc__)
            yield f"{_INDENT}kind = {getattr(value, 'kind', None)}  # one of {', '.join(sorted(choices))}: {meaning}"
        yield from (_INDENT + line for line in lines(value))
    elif isinstance(value, Mapping) and value:
        yield f"{name}:  # {description}".rstrip(" #")
        for key, item in value.items():
            yield from (_INDENT + line for line in _lines(key, item, element, ""))
    elif isinstance(value, tuple) and any(dataclasses.is_dataclass(item) for item in value):
        yield f"{name}:  # {description}".rstrip(" #")
        element = typing.get_args(kind)[0]
        for index, item in enumerate(value):
            yield from (_INDENT + line for line in _lines(str(index), item, element, ""))
    else:
        meaning = [f"kind: one of {', '.join(sorted(choices))}" if choices else type_name(kind)]
        meaning += [description] if description else []
        yield f"{name} = {repr(value) if value == '' else value}  # {': '.join(meaning)}"


def type_name(kind: Any) -> str:
    """Returns a readable name of a type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return f"{type_name(args[0])}, {args[1]}"
    if origin is Literal:
        return " | ".join(repr(a) if a == "" else str(a) for a in args)
    if origin in (types.UnionType, typing.Union):
        return " | ".join(map(type_name, args))
    if (element := trees.values(kind)) is not None:
        return f"{type_name(element)} by name"
    if origin is tuple:
        return f"tuple of {type_name(args[0])}" if args[-1] is ... else f"({', '.join(map(type_name, args))})"
    return {types.NoneType: "None", int: "integer", float: "number", str: "text", bool: "yes | no", Any: "value"}.get(
        kind, getattr(kind, "__name__", str(kind))
    )


def field_descriptions(kind: type) -> dict[str, str]:
    """Returns the description of each field of a dataclass, from `Attributes:` in its docstring and those of its bases.

    A description is the first paragraph of the entry, on one line and without its period. Fields without an entry are
    left out.
    """
    descriptions: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, attributes = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        for entry in re.split(r"\n(?=  \w)", "\n" + attributes):
            names, _, text = entry.strip().partition(": ")
            if text:
                line = _first_paragraph(text).removesuffix(".")
                descriptions |= {name.strip(): line for name in names.split(",")}
    return descriptions


def sentence(text: str | None) -> str:
    """Returns the first sentence of a text on one line, without its period; "" for None."""
    return re.split(r"\.(?= [A-Z`]|$)", _first_paragraph(text or ""))[0]


def _first_paragraph(text: str) -> str:
    """Returns the first paragraph of a text on one line."""
    return " ".join(re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0].split())
