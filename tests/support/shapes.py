"""Run-time checks of array shapes in annotations, by jaxtyping's import hook."""

import functools
import inspect
import threading
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import jaxtyping
import numpy as np
from jaxtyping import AbstractArray

_jaxtyped = jaxtyping.jaxtyped


def install(packages: list[str]) -> None:
    """Checks the calls of functions with annotated arrays, in modules of these packages that are imported afterwards.

    The hook decorates every function and class. The checks of those without arrays took half the time of collection.
    """
    jaxtyping.jaxtyped = decorator
    jaxtyping.install_import_hook(packages, f"{__name__}.check")


def decorator(typechecker: Any) -> Callable[[Any], Any]:
    """Replaces `jaxtyping.jaxtyped`, and leaves functions and classes without arrays as they are."""

    def decorate(item: Any) -> Any:
        if not _has_arrays(item):
            return item
        checked = _jaxtyped(item, typechecker=typechecker)
        return checked if inspect.isclass(item) else _remembering(item, checked, typechecker)

    return decorate


def _remembering(function: Callable[..., Any], checked: Any, typechecker: Any) -> Callable[..., Any]:
    """Returns `checked`, which does not repeat the check of a call whose arrays have the types and shapes of another.

    The check takes longer than many functions of NumPy.
    """
    local = threading.local()
    accepted: dict[Any, set[Any]] = {}

    def get_result(*args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        return local.result

    @functools.cache
    def check_result() -> Any:
        # jaxtyping looks up annotations in quotes among the globals.
        parts = (get_result.__code__, function.__globals__, function.__name__, None, get_result.__closure__)
        return _jaxtyped(functools.wraps(function)(types.FunctionType(*parts)), typechecker=typechecker)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        key = (*map(_described, args), *((name, _described(value)) for name, value in kwargs.items()))
        if key not in accepted:
            result = checked(*args, **kwargs)
            accepted[key] = {_described(result)}
            return result
        result = function(*args, **kwargs)
        if (described := _described(result)) not in accepted[key]:
            local.result = result
            check_result()(*args, **kwargs)
            accepted[key].add(described)
        return result

    return call


def _described(value: Any) -> Any:
    """Returns what the checks depend on: types, shapes and dtypes of arrays, and integers, which may name sizes."""
    if isinstance(value, int | np.integer):
        return type(value), int(value)
    if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type):
        return type(value), tuple(value.shape), value.dtype
    return type(value)


def _has_arrays(item: Any) -> bool:
    """Whether a parameter, field or result may be an array. Annotations in quotes may be anything."""
    annotations = getattr(item.__init__ if inspect.isclass(item) else item, "__annotations__", {})
    hints = [part for hint in annotations.values() for part in (hint, *typing.get_args(hint))]
    return any(isinstance(hint, str | typing.ForwardRef) or any(_array_types(hint)) for hint in hints)


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that raises `TypeError` if an array does not have the shape and type of its annotation.

    Only annotations of jaxtyping are checked, and only for arrays of their library, because JAX accepts NumPy arrays.
    """
    signature = inspect.signature(function)

    @functools.cache
    def arrays() -> dict[str, tuple[type, ...]]:
        hints = typing.get_type_hints(function)
        return {name: kinds for name, hint in hints.items() if (kinds := tuple(_array_types(hint)))}

    def check_value(name: str, value: Any) -> None:
        accepted = tuple(kind for kind in arrays().get(name, ()) if _is_array(value, kind))
        if accepted and not isinstance(value, accepted):
            raise TypeError(f"{name} of {function.__qualname__} is {value.dtype}{list(value.shape)}, not {accepted}")

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            check_value(name, value)
        result = function(*args, **kwargs)
        check_value("return", result)
        return result

    return checked


def _is_array(value: Any, kind: Any) -> bool:
    return hasattr(value, "shape") if kind.array_type is Any else isinstance(value, kind.array_type)


def _array_types(hint: Any) -> Iterator[type]:
    """Yields the array types in an annotation, which may be a union."""
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        yield hint
    elif typing.get_origin(hint) in (typing.Union, types.UnionType):
        for member in typing.get_args(hint):
            yield from _array_types(member)
