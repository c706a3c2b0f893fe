"""A config told to a person: each field with its value, its type, and what its section's docstring says of it."""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from plm_jax.common import trees
from plm_jax.common.roles import Role

_INDENT = "  "


def lines(section: Any) -> Iterator[str]:
    """A section's fields, one a line, as `name = value  # type: what it is`; sections in it are indented."""
    hints, docs = typing.get_type_hints(type(section), include_extras=True), documented(type(section))
    for f in dataclasses.fields(section):
        yield from _lines(f.name, getattr(section, f.name), hints[f.name], docs.get(f.name, ""))


def _lines(name: str, value: Any, kind: Any, told: str) -> Iterator[str]:
    choices, element = trees.choices(kind), trees.values(kind)
    if element is not None:
        value = dict(value)
    if dataclasses.is_dataclass(value):
        of = f" of {', '.join(sorted(choices))}" if choices else ""
        yield f"{name}:" + (f"  # {told or _sentence(type(value).__doc__)}" if not choices else "")
        if choices:
            kind_name = value.kind if isinstance(value, Role) else ""
            yield f"{_INDENT}kind = {kind_name}  # one{of}: {_sentence(type(value).__doc__)}"
        yield from (_INDENT + line for line in lines(value))
    elif isinstance(value, Mapping) and value:
        yield f"{name}:  # {told}".rstrip(" #")
        for key, item in value.items():
            yield from (_INDENT + line for line in _lines(key, item, element, ""))
    elif isinstance(value, tuple) and any(dataclasses.is_dataclass(item) for item in value):
        yield f"{name}:  # {told}".rstrip(" #")
        element = typing.get_args(kind)[0]
        for index, item in enumerate(value):
            yield from (_INDENT + line for line in _lines(str(index), item, element, ""))
    else:
        shown = [f"kind: one of {', '.join(sorted(choices))}"] if choices else [_type(kind)]
        yield f"{name} = {value}  # {': '.join([*shown, *([told] if told else [])])}"


def _type(kind: Any) -> str:
    """A type as a person writes it."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return f"{_type(args[0])}, {args[1]}"
    if origin is Literal:
        return " | ".join(repr(a) if a == "" else str(a) for a in args)
    if origin in (types.UnionType, typing.Union):
        return " | ".join(map(_type, args))
    if (element := trees.values(kind)) is not None:
        return f"{_type(element)} by name"
    if origin is tuple:
        return f"tuple of {_type(args[0])}" if args[-1] is ... else f"({', '.join(map(_type, args))})"
    return {types.NoneType: "None", int: "integer", float: "number", str: "text", bool: "yes | no"}.get(
        kind, getattr(kind, "__name__", str(kind))
    )


def documented(kind: type) -> dict[str, str]:
    """The first sentence that the docstrings of a dataclass and its bases say of each field."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, attributes = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        for entry in re.split(r"\n(?=  \w)", "\n" + attributes):
            names, _, told = entry.strip().partition(": ")
            if told:
                found |= {name.strip(): _sentence(told) for name in names.split(",")}
    return found


def _sentence(text: str | None) -> str:
    """The first sentence of a text, on one line, without its full stop."""
    return re.split(r"\.(?= [A-Z`]|$)", " ".join((text or "").split()))[0]
