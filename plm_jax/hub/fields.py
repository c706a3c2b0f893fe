"""Two-way tables between a `config.json` and model settings.

A family lists the fields of its `config.json` once. The same entries read a file, write one and report a value that
cannot be read.
"""

import json
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from typing_extensions import override

from plm_jax.common.errors import UserError, nearest

Item = TypeVar("Item")
# Names in `config.json` → activations. The first of several names for an activation is written.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu_exact",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


class Entry:
    """Base of the entries of a table.

    An entry describes one or more fields of `config.json`, one or more settings, or both.
    """

    def values(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the checked values of the fields that the entry describes.

        Args:
          config: fields of a `config.json`. The fields of earlier entries have their checked values.

        Raises:
          UserError: a value cannot be read.
        """
        return {}

    def settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns settings by their dotted paths, such as `embedding.width`.

        Args:
          values: the fields of a `config.json`; those of the entries have been replaced by the results of `values`.

        Raises:
          UserError: values are not supported or contradict each other.
        """
        return {}

    def fields(self, model: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of `config.json` that this entry writes for a model.

        Args:
          model: settings of the model.
          fields: fields that earlier entries returned for this model.
        """
        return {}


@dataclass(frozen=True)
class Field(Entry):
    """A field of `config.json` that holds a setting.

    Attributes:
      name: name in `config.json`.
      path: dotted path of the setting. If there are several paths, the field holds a tuple of settings.
      default: value that `transformers` assumes if the field is absent, or a function that computes this value from
        earlier fields. If the default is a function, null counts as absent, except in a field of type bool.
      also: paths of further settings that get the same value. They are ignored when the field is written.
      choices: mapping from values of the field to settings. If several values map to the same setting, the first of
        these values is written.
      divides: another field whose value must be a multiple of this field's value.
      same_as: another field. The setting is None if both fields have the same value. A setting of None is written as
        the value of the other field.
      read: function that converts the value to the setting.
      write: function that computes the value from a model. By default, the value is the setting. If the model lacks the
        setting, or `choices` lacks its value, `default` is written.
      value_type: int for a positive integer, float for a number of at least 0, bool or str. None: the type of
        `default`, or int if `default` is a function.
    """

    name: str
    path: str | tuple[str, ...]
    default: Any
    also: tuple[str, ...] = ()
    choices: Mapping[Any, Any] | None = None
    divides: str | None = None
    same_as: str | None = None
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None
    value_type: type | None = None

    @override
    def values(self, config):
        kind = self.value_type or (int if callable(self.default) else type(self.default))
        # Null means that the size is computed.
        null = (None,) if callable(self.default) and kind is not bool else ()
        is_given = self.name in config and config[self.name] not in null
        value = config[self.name] if is_given else self._default(config)
        if kind is bool:
            value = bool(value)
        elif kind is int:
            check_size(self.name, value)
        elif kind is float:
            is_rate = type(value) in (int, float) and 0 <= value <= sys.float_info.max
            check(self.name, value, is_rate, "a number of at least 0")
            value = float(value)
        if self.choices is not None:
            known(self.name, value, self.choices)
        if self.divides is not None:
            check_divides(self.name, self.divides, {**config, self.name: value})
        return {self.name: value}

    @override
    def settings(self, values):
        value: Any = values[self.name]
        if self.choices is not None:
            value = self.choices[value]
        elif self.read is not None:
            value = self.read(value)
        elif self.same_as is not None and value == values[self.same_as]:
            value = None
        if isinstance(self.path, tuple):
            return dict(zip(self.path, value, strict=True))
        return dict.fromkeys((self.path, *self.also), value)

    @override
    def fields(self, model, fields):
        return {self.name: self._written(model, fields)}

    def _written(self, model: Any, fields: Mapping[str, Any]) -> Any:
        if self.write is not None:
            return self.write(model)
        paths = self.path if isinstance(self.path, tuple) else (self.path,)
        try:
            setting = operator.attrgetter(*paths)(model)
        except AttributeError:
            return self._default(fields)
        if self.choices is not None:
            return next((value for value, choice in self.choices.items() if choice == setting), self._default(fields))
        return fields[self.same_as] if setting is None and self.same_as is not None else setting

    def _default(self, fields: Mapping[str, Any]) -> Any:
        return self.default(fields) if callable(self.default) else self.default


@dataclass(frozen=True)
class Fixed(Entry):
    """A field for which only one value can be read.

    Attributes:
      name: name in `config.json`.
      value: the only accepted value. If it is false, 0 or null, every value that Python treats as false is accepted.
      default: value that `transformers` assumes if the field is absent. None: `value`.
      is_written: whether the field is written.
    """

    name: str
    value: Any
    default: Any = None
    is_written: bool = True

    @override
    def values(self, config):
        value = config.get(self.name, self.value if self.default is None else self.default)
        is_accepted = value == self.value if self.value else not value
        check(self.name, value, is_accepted, f"{json.dumps(self.value)}, the only value that can be read")
        return {}

    @override
    def fields(self, model, fields):
        return {self.name: self.value} if self.is_written else {}


@dataclass(frozen=True)
class Written(Entry):
    """A field that is written and never read."""

    name: str
    value: Any

    @override
    def fields(self, model, fields):
        return {self.name: self.value}


@dataclass(frozen=True)
class Derived(Entry):
    """A setting that follows from fields and has no field of its own.

    Attributes:
      path: dotted path of the setting.
      compute: function that takes the values of the fields and returns the setting.
    """

    path: str
    compute: Callable[[Mapping[str, Any]], Any]

    @override
    def settings(self, values):
        return {self.path: self.compute(values)}


def activation(name: str, default: str, *also: str, names: Mapping[str, str] = ACTIVATIONS) -> Field:
    """Returns the field `name`, which sets the activation of the feed-forward layers and the settings `also`."""
    return Field(name, "feed_forward.activation", default, also=also, choices=names)


def initializer_range(name: str, *also: str) -> Field:
    """Returns the field `name`, which sets the standard deviation of the initializer and the settings `also`."""
    return Field(name, "initializer.std", 0.02, also=also)


def quotient(width: str, number: str) -> Callable[[Mapping[str, Any]], int]:
    """Returns a function that divides the value of the field `width` by the value of the field `number`.

    The function raises a `UserError` if `number` does not divide `width`.
    """

    def divide(values: Mapping[str, Any]) -> int:
        check_divides(number, width, values)
        return values[width] // values[number]

    return divide


def changed(
    entries: tuple[Entry, ...], *new: Entry, without: tuple[str, ...] = (), **defaults: Any
) -> tuple[Entry, ...]:
    """Returns a copy of a table with some entries or defaults changed.

    Args:
      entries: the table.
      new: new entries. A new entry replaces the entry of the same name. If there is no such entry, it is appended.
      without: names of the entries to leave out.
      defaults: new defaults, by name of the entry. The table must have these entries.
    """
    by_name: dict[Any, Any] = {getattr(entry, "name", entry): entry for entry in entries}
    by_name |= {name: replace(by_name[name], default=default) for name, default in defaults.items()}
    by_name |= {getattr(entry, "name", entry): entry for entry in new}
    return tuple(entry for name, entry in by_name.items() if name not in without)


def read(entries: tuple[Entry, ...], config: Mapping[str, Any]) -> dict[str, Any]:
    """Reads a `config.json` with the entries of a table.

    Returns:
      A dict from dotted paths to settings.

    Raises:
      UserError: a value is invalid or not supported.
    """
    values = dict(config)
    for entry in entries:
        values |= entry.values(values)
    return {path: value for entry in entries for path, value in entry.settings(values).items()}


def write(entries: tuple[Entry, ...], model: Any) -> dict[str, Any]:
    """Returns the fields of a model's `config.json`, in the order of the table's entries."""
    fields: dict[str, Any] = {}
    for entry in entries:
        fields |= entry.fields(model, fields)
    return fields


def with_settings(part: Any, settings: Mapping[str, Any]) -> Any:
    """Returns a copy of the dataclass `part` with some settings replaced.

    Args:
      settings: new values by dotted path.
    """
    values: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for path, value in settings.items():
        name, _, rest = path.partition(".")
        if rest:
            nested.setdefault(name, {})[rest] = value
        else:
            values[name] = value
    values |= {name: with_settings(getattr(part, name), inner) for name, inner in nested.items()}
    return replace(part, **values)


def shortest_period(items: Sequence[Item]) -> tuple[Item, ...]:
    """Returns the shortest prefix whose repetition yields the sequence. The sequence must not be empty.

    The last repetition may be cut off.
    """
    sizes = range(1, len(items) + 1)
    size = next(size for size in sizes if all(item == items[i % size] for i, item in enumerate(items)))
    return tuple(items[:size])


def check_size(name: str, value: Any) -> None:
    """Raises a `UserError` unless the value of a field is a positive integer below 2 ** 31."""
    check(name, value, type(value) is int and 0 < value < 2**31, "a positive integer")


def check_divides(number: str, size: str, values: Mapping[str, Any]) -> None:
    """Raises a `UserError` unless the value of the field `number` divides the value of the field `size`."""
    if values[size] % values[number]:
        raise UserError(
            f"config.json: {number} {values[number]} does not divide {size} {values[size]}: change {number} or {size}"
        )


def check(name: str, value: Any, is_accepted: bool, accepted: str) -> None:
    """Raises a `UserError` unless `is_accepted` is true.

    Args:
      name: name of the field.
      value: value of the field.
      is_accepted: whether the value is accepted.
      accepted: description of the accepted values, for the message.
    """
    if not is_accepted:
        raise UserError(f"config.json: {name} is {repr(value)[:100]}: must be {accepted}")


def known(name: str, value: Any, choices: Mapping[Any, Any]) -> None:
    """Raises a `UserError` unless the value of the field `name` is a key of `choices`."""
    if value not in choices:
        raise UserError(f"config.json: {name} is '{value}': {nearest(str(value), choices)}")
