"""Conversion between dataclasses and trees for JSON and ConfigDicts, with errors that name the field.

A field whose type is a role or a union of dataclasses with a `kind` is a tagged choice. In a tree, a tagged choice is a
dict of its fields and its `kind`. A field that is a tuple of pairs (name, choice) is a dict in a tree.
"""

import dataclasses
import functools
import numbers
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import ml_collections

from plm_jax.common import ranges
from plm_jax.common.errors import UserError, nearest
from plm_jax.common.roles import Role, is_role

# Value of a field in a `Difference` if a tree lacks it.
ABSENT = "not there"


class Difference(NamedTuple):
    """Field that differs between two trees.

    Attributes:
      field: dotted path of the field.
      was: value in the first tree; ABSENT if the tree lacks the field.
      now: value in the second tree; ABSENT if the tree lacks the field.
    """

    field: str
    was: Any
    now: Any


def to_dict(value: Any) -> Any:
    """Converts a value to a tree for JSON. Dataclasses become dicts, and tuples become lists.

    The dict of a tagged choice has an entry `kind`.
    """
    if dataclasses.is_dataclass(value):
        tag = getattr(value, "kind", None)
        items = {f.name: (f.type, getattr(value, f.name)) for f in dataclasses.fields(value)}
        fields = {name: to_dict(item if values(kind) is None else dict(item)) for name, (kind, item) in items.items()}
        return fields if tag is None or "kind" in fields else {"kind": tag, **fields}
    if isinstance(value, dict):
        return {k: to_dict(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_dict(v) for v in value]
    return value


def to_config_dict(value: Any) -> ml_collections.ConfigDict:
    """Converts a dataclass to a ConfigDict. A class attribute `kind` becomes an entry of this name."""
    tree = ml_collections.ConfigDict({"kind": value.kind} if isinstance(getattr(value, "kind", None), str) else {})
    for f in dataclasses.fields(value):
        item = getattr(value, f.name)
        if values(f.type) is not None:
            item = dict(item)
        if dataclasses.is_dataclass(item):
            item = to_config_dict(item)
        elif isinstance(item, dict):
            item = ml_collections.ConfigDict(
                {k: to_config_dict(v) if dataclasses.is_dataclass(v) else v for k, v in item.items()}
            )
        elif isinstance(item, tuple):
            item = _with_dicts(item)
        tree[f.name] = item
    return tree


def _with_dicts(value: Any) -> Any:
    """Converts the dataclasses in nested tuples to dictionaries."""
    if isinstance(value, tuple):
        return tuple(map(_with_dicts, value))
    return to_dict(value) if dataclasses.is_dataclass(value) else value


def choices(kind: Any) -> dict[str, type] | None:
    """Returns the choices of a type by kind; None for a type without choices.

    A role has choices, and so does a union of roles and dataclasses with a `kind`. For a subclass of a role that is not
    a choice itself, returns only the choices that inherit from the subclass.
    """
    if isinstance(kind, type) and issubclass(kind, Role) and not hasattr(kind, "kind"):
        return {name: choice for name, choice in kind.choices.items() if issubclass(choice, kind)}
    if typing.get_origin(kind) not in (types.UnionType, typing.Union):
        return None
    by_kind: dict[str, type] = {}
    for part in typing.get_args(kind):
        if is_role(part):
            by_kind |= part.choices
        elif isinstance(part, type) and dataclasses.is_dataclass(part) and "kind" in vars(part):
            by_kind[vars(part)["kind"]] = part
    return by_kind or None


def choice(choices: Mapping[str, type], tree: Any, where: str) -> type:
    """Returns the choice whose kind is the `kind` of a tree.

    Raises:
      UserError: there is no choice of that kind.
    """
    kind = tree.get("kind") if isinstance(tree, Mapping) else tree
    if not isinstance(kind, str) or kind not in choices:
        raise UserError(f"{where}.kind is {ranges.shown(kind)}: {nearest(str(kind)[:60], choices)}")
    return choices[kind]


def default(field: dataclasses.Field) -> Any:
    """Returns the default of a field, or `dataclasses.MISSING`."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def values(kind: Any) -> Any:
    """Returns the type `T` of the values in a dict type, such as `dict[str, T]`, or in `tuple[tuple[str, T], ...]`.

    In a tuple type, `T` must be a role. Returns None for any other type.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    pair: tuple[Any, ...] = typing.get_args(args[0]) if origin is tuple and args[1:] == (...,) else ()
    is_named = len(pair) == 2 and pair[0] is str and is_role(pair[1])
    return args[1] if origin is dict else pair[1] if is_named else None


def parse(kind: Any, value: Any, where: str) -> Any:
    """Converts a value of a tree to the annotated type `kind`. Functions and values of type `Any` are not checked.

    Args:
      where: name of the value in error messages.

    Raises:
      UserError: a field is unknown or missing, or a value has the wrong type or is out of range.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _parse_number(args[0], value, where, args[1])
    if origin in (types.UnionType, typing.Union):
        if value is None and types.NoneType in args:
            return None
        if choices(kind) is None:
            kinds = [a for a in args if a is not types.NoneType]
            is_list = isinstance(value, tuple | list)
            return parse(next((k for k in kinds if is_list and typing.get_origin(k) is tuple), kinds[0]), value, where)
    if (by_kind := choices(kind)) is not None:
        return _parse_dataclass(choice(by_kind, value, where), value, where)
    if dataclasses.is_dataclass(kind):
        return _parse_dataclass(kind, value, where)
    if (element := values(kind)) is not None:
        if not isinstance(value, dict):
            raise UserError(f"{where} is {ranges.shown(value)}: must be a mapping from names")
        named = {k: parse(element, v, f"{where}.{k}") for k, v in value.items()}
        return named if origin is dict else tuple(named.items())
    if origin is tuple:
        if not isinstance(value, tuple | list):
            raise UserError(f"{where} is {ranges.shown(value)}: must be a tuple")
        items = [args[0]] * len(value) if args[-1] is ... else args
        if len(items) != len(value):
            raise UserError(f"{where} is {ranges.shown(value)}: must have {len(items)} values")
        return tuple(parse(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(items, value, strict=True)))
    if origin is Literal:
        if value not in args:
            raise UserError(f"{where} is {ranges.shown(value)}: {nearest(str(value)[:60], map(str, args))}")
        return value
    if kind is float:
        return _parse_number(kind, value, where, ranges.FINITE)
    if kind is Any or not isinstance(kind, type):  # For example a function, which cannot be checked.
        return value
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"{where} is {ranges.shown(value)}: must be {_article(kind.__name__)}")
    return value


def _parse_number(kind: type[int] | type[float], value: Any, where: str, accepted: ranges.Range) -> int | float:
    accepts = numbers.Integral if kind is int else numbers.Real
    if isinstance(value, bool) or not issubclass(type(value), accepts):
        raise UserError(f"{where} is {ranges.shown(value)}: must be {_article(kind.__name__)} {accepted.requirement()}")
    accepted.check(value, where)
    return kind(value)


def checked(value: Any, where: str) -> Any:
    """Returns a copy of a dataclass after checking the types and ranges of its fields.

    Args:
      where: name of the dataclass in error messages.

    Raises:
      UserError: a field has the wrong type or is out of range.
    """
    return parse(type(value), to_dict(value), where)


def _article(name: str) -> str:
    return {"int": "an integer", "str": "a string", "float": "a number", "bool": "True or False"}[name]


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _parse_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise UserError(f"{where} is {ranges.shown(value)}: must be a mapping with its fields")
    hints = _hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind)}
    fields = {k: v for k, v in value.items() if k != "kind" or "kind" in known}
    if "kind" not in known and "kind" in value and value["kind"] != getattr(kind, "kind", None):
        raise UserError(f"{where}.kind is {value['kind']!r}: {nearest(str(value['kind']), [kind.kind])}")
    for name in fields:
        if name not in known:
            raise UserError(f"there is no field {where}.{name}: {nearest(name, known)}")
    for name, f in known.items():
        if name not in fields and default(f) is dataclasses.MISSING:
            raise UserError(f"{where}.{name} is missing: set it")
    return kind(**{name: parse(hints[name], v, f"{where}.{name}") for name, v in fields.items()})


def differences(was: Any, now: Any, path: str = "") -> list[Difference]:
    """Returns the fields in which two trees differ, in order.

    Two dicts that differ both in `kind` and in the names of their fields count as a single difference.

    Args:
      path: dotted path of the trees.
    """
    trees = isinstance(was, dict) and isinstance(now, dict)
    if not trees or (was.get("kind") != now.get("kind") and was.keys() != now.keys()):
        return [] if was == now else [Difference(path, was, now)]
    result = []
    for name in was | now:
        result += differences(was.get(name, ABSENT), now.get(name, ABSENT), f"{path}.{name}" if path else name)
    return result


def brief(value: Any) -> str:
    """Returns a value of a tree as a text of at most 60 characters; for a tagged choice, its kind."""
    text = str(value.get("kind", value) if isinstance(value, dict) else value)
    return text if len(text) <= 60 else f"{text[:57]}…"
