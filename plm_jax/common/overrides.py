"""Overrides of a config on the command line and in sweeps.

An override is a pair of a dotted path and a value. The value may be written as text.

    train.steps=1e5   optimizer.kind=adafactor   train.phases.0.length=64   data.mixture.books=2   vocabulary.pad=None

`SECTION.kind=K` replaces a section of another kind with the defaults of kind K. A field without a default keeps its
value if the previous kind also has this field and the value fits. `SECTION.kind` is applied before the other overrides
of the section, even if it comes last.
"""

import ast
import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import ml_collections

from plm_jax.common import trees
from plm_jax.common.errors import UserError, nearest

Change = tuple[str, Any]
_TRUE, _FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")
_INDEX = re.compile(r"\[(\d+)\]")
_MAX_SUGGESTED = 3  # Fields of the same name in other sections.


class _UnknownFieldError(UserError):
    """Raised when a section has no field with the last name in a path."""


def apply(tree: Mapping[str, Any], changes: Sequence[Change], schema: type, root: str = "config") -> dict[str, Any]:
    """Returns a copy of a tree with other values at dotted paths.

    Args:
      changes: overrides in order. A string is parsed as the type of the field. Other values are converted with
        `trees.to_dict` and not checked. If a path is repeated, the last value counts. For a tuple field, the values are
        concatenated instead.
      schema: dataclass that the tree represents.
      root: name of the tree in error messages.

    Raises:
      UserError: a field does not exist, a text is not a value of the field's type, a tuple has the wrong number of
        items, a section is set after one of its fields, or a field that a new kind requires is not set.
    """
    result, swapped = dict(tree), []
    for path, value in _in_order(changes, root):
        names = path.split(".")
        if names[-1] == "kind":
            swapped.append(names[:-1])
        try:
            result = _changed(schema, result, names, value, root)
        except _UnknownFieldError:
            same = list(_paths(result, names[-1], root))
            if not 1 <= len(same) <= _MAX_SUGGESTED:
                raise
            raise UserError(f"there is no field {root}.{'.'.join(names)}: did you mean {' or '.join(same)}?") from None
    for names in swapped:
        _check_complete(schema, result, names, root)
    return result


def _paths(tree: Any, name: str, path: str) -> Iterator[str]:
    """Yields the paths of all fields called `name` in a tree at `path`. Does not search lists."""
    for key, value in tree.items() if isinstance(tree, Mapping) else ():
        if key == name:
            yield f"{path}.{key}"
        yield from _paths(value, name, f"{path}.{key}")


def overridden(run: Any, changes: Mapping[str, Any]) -> ml_collections.ConfigDict:
    """Returns the ConfigDict of a run's config with other values at dotted paths; raises the errors of `apply`."""
    return ml_collections.ConfigDict(apply(trees.to_config_dict(run).to_dict(), list(changes.items()), type(run)))


def _in_order(changes: Sequence[Change], root: str) -> list[tuple[str, list[Any]]]:
    """Returns pairs (path, all of its values). A section's kind comes before the section's other fields."""
    values: dict[str, list[Any]] = {}
    for path, value in changes:
        path = _INDEX.sub(r".\1", path)
        values[path] = [*values.pop(path, []), value]
    ordered: list[str] = []
    for path in values:
        section, _, name = path.rpartition(".")
        below = [other for other in ordered if name == "kind" and other.startswith(f"{section}.")]
        ordered.insert(ordered.index(below[0]) if below else len(ordered), path)
    for index, path in enumerate(ordered):
        if of := [other for other in ordered[:index] if other.startswith(f"{path}.")]:
            raise UserError(
                f"{root}.{path} comes after {root}.{of[0]} and would overwrite it: pass {root}.{path} first"
            )
    return [(path, values[path]) for path in ordered]


def _changed(kind: Any, node: Any, names: Sequence[str], values: Sequence[Any], path: str) -> Any:
    """Returns a copy of the node at `path` with new values at `names` below the node; `kind` is the node's type."""
    if not names:
        return _value(kind, values, path)
    name, rest, choices = names[0], names[1:], trees.choices(kind)
    at, kind = f"{path}.{name}", _required(kind)
    if choices is not None and name == "kind" and not rest:
        return _swapped(choices, node, values[-1], path)
    if choices is not None or dataclasses.is_dataclass(kind):
        if choices is not None:
            if node is None:
                raise UserError(f"there is no field {at}, because {path} is None: set {path}.kind too")
            kind = trees.choice(choices, node, path)
        hints = typing.get_type_hints(kind)
        known = {f.name: f for f in dataclasses.fields(kind)}
        if name not in known:
            error = UserError if rest else _UnknownFieldError
            raise error(f"there is no field {at}: {nearest(name, known)}")
        below = node[name] if node and name in node else _default(known[name])
        below = None if below is dataclasses.MISSING else below
        return {**(node or {}), name: _changed(hints[name], below, rest, values, at)}
    if (element := trees.values(kind)) is not None:
        node = node or {}
        if name not in node and trees.choices(element) is not None and list(rest) != ["kind"]:
            raise UserError(f"there is no field {at}: {nearest(name, node)}")
        return {**node, name: _changed(element, node.get(name), rest, values, at)}
    if typing.get_origin(kind) is tuple:
        items = list(node or ())
        if not name.isdecimal() or int(name) >= len(items):
            there = f"use a number from 0 to {len(items) - 1}" if items else f"{path} is empty"
            raise UserError(f"there is no field {at}: {there}")
        items[int(name)] = _changed(_elements(kind, items)[int(name)], items[int(name)], rest, values, at)
        return items
    raise UserError(f"there is no field {at}: {path} is not a section")


def _swapped(choices: Mapping[str, type], node: Any, name: Any, path: str) -> dict[str, Any]:
    """Returns a section of kind `name`: defaults of this kind, and previous values of fields without a default.

    A section that already has this kind is unchanged.
    """
    kind = trees.choice(choices, {"kind": name}, path)
    if isinstance(node, Mapping) and node.get("kind") == name:
        return dict(node)
    section, hints = {"kind": name}, typing.get_type_hints(kind)
    for f in dataclasses.fields(kind):
        if (default := _default(f)) is not dataclasses.MISSING:
            section[f.name] = default
        elif isinstance(node, Mapping) and f.name in node and _fits(hints[f.name], node[f.name]):
            section[f.name] = node[f.name]
    return section


def _default(field: dataclasses.Field[Any]) -> Any:
    """Returns the default of a field in a tree, or MISSING."""
    default = trees.default(field)
    if default is dataclasses.MISSING or trees.values(field.type) is None:
        return trees.to_dict(default)
    return trees.to_dict(dict(default))


def _fits(kind: Any, value: Any) -> bool:
    try:
        trees.parse(kind, value, "")
    except UserError:
        return False
    return True


def _check_complete(schema: type, tree: Any, names: Sequence[str], root: str) -> None:
    """Raises a `UserError` if the section at `names` lacks fields that its new kind requires."""
    kind: Any = schema
    for name in names:
        if typing.get_origin(kind) in (dict, tuple):
            kind = trees.values(kind) or typing.get_args(kind)[0]
        else:
            kind = typing.get_type_hints(_section(kind, tree, root))[name]
        tree, root = tree[int(name) if isinstance(tree, list) else name], f"{root}.{name}"
    missing = [f.name for f in dataclasses.fields(_section(kind, tree, root)) if f.name not in tree]
    if missing:
        raise UserError(
            f"{root}.kind is '{tree['kind']}', which has no default for {', '.join(missing)}: set that too, as in "
            f"{root}.{missing[0]}=…"
        )


def _section(kind: Any, tree: Any, path: str) -> Any:
    """Returns the dataclass that a tree represents; `kind` is the annotated type of the tree."""
    choices = trees.choices(kind)
    return _required(kind) if choices is None else trees.choice(choices, tree, path)


def _required(kind: Any) -> Any:
    """Returns `T` for the type `T | None`, and any other type unchanged."""
    if typing.get_origin(kind) not in (types.UnionType, typing.Union):
        return kind
    members = [a for a in typing.get_args(kind) if a is not types.NoneType]
    return members[0] if len(members) == 1 else kind


def _elements(kind: Any, items: Sequence[Any]) -> Sequence[Any]:
    """Returns the types of a tuple's items."""
    args = typing.get_args(kind)
    return [args[0]] * len(items) if args[-1] is ... else args


def _value(kind: Any, values: Sequence[Any], path: str) -> Any:
    """Converts the values of all overrides of a field to the value of the field; `kind` is the field's type."""
    if typing.get_origin(_required(kind)) is tuple and trees.values(kind) is None:
        if values[-1] in ("None", "none") and _required(kind) is not kind:
            return None
        items = [item for value in values for item in _items(value)]
        elements = _elements(_required(kind), items)
        if len(elements) != len(items):
            raise UserError(f"{path} is {tuple(items)}: must have {len(elements)} values")
        return [_read(element, item, path) for element, item in zip(elements, items, strict=True)]
    return _read(kind, values[-1], path)


def _items(value: Any) -> Sequence[Any]:
    """Returns the items of a value for a tuple; a single item needs no brackets."""
    value = _literal(value) if isinstance(value, str) else value
    return list(value) if isinstance(value, tuple | list) else [value]


def _literal(text: str) -> Any:
    """Returns the value of a Python literal; returns any other text unchanged."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # The last two: it is nested too deeply.
        return text


def _read(kind: Any, value: Any, path: str) -> Any:
    """Parses a text as a value of a type. Converts any other value with `trees.to_dict`."""
    if not isinstance(value, str):
        return int(value) if kind is int and isinstance(value, float) and value.is_integer() else trees.to_dict(value)
    required = _required(kind)
    if required is not kind and value in ("None", "none"):
        return None
    is_union = typing.get_origin(required) in (types.UnionType, typing.Union)
    if required is str or (is_union and str in typing.get_args(required)):
        return value
    if required is bool:
        if value.lower() not in (*_TRUE, *_FALSE):
            raise UserError(f"{path} is '{value}': must be yes or no")
        return value.lower() in _TRUE
    if required in (int, float):
        return _number(required, value, path)
    if typing.get_origin(required) is Literal:
        args = {str(a): a for a in typing.get_args(required)}
        if value not in args:
            raise UserError(f"{path} is '{value}': {nearest(value, args)}")
        return args[value]
    literal = _literal(value)
    if isinstance(literal, str) and kind is not Any:
        raise UserError(f"{path} is a section: set its fields, as in {path}.NAME=…")
    return literal


def _number(kind: type, text: str, path: str) -> int | float:
    try:
        number = float(text)
        whole = int(text) if re.fullmatch(r"[+-]?[\d_]+", text) else int(number) if number.is_integer() else None
    except ValueError:
        whole = number = None
    result = number if kind is float else whole
    if result is None:
        raise UserError(f"{path} is '{text}': must be {'a number' if kind is float else 'an integer'}")
    return result
