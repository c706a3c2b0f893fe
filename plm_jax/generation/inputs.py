"""Checks of the inputs that callers pass to a model: rows of ids, masks and prompts."""

from typing import Any

import numpy as np
from jaxtyping import Int32

from plm_jax.common.errors import UserError


def integers(name: str, values: Any) -> Int32[np.ndarray, "..."]:
    """Converts nested sequences, or an array of NumPy, JAX or another library, to int32.

    Values of type bool and whole floating-point numbers are converted too.

    Raises:
      UserError: rows have different lengths, or a value is not an integer or does not fit into int32.
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O" and any(map(np.iterable, array.flat)):
            raise ValueError("an array of lists")
    except ValueError as error:
        raise UserError(f"{name} have rows of different lengths: pad them to one length, and pass a mask") from error
    with np.errstate(invalid="ignore"):
        converted = array.astype(np.int32) if array.dtype.kind in "biuf" else None
    if converted is None or not np.array_equal(array, converted):
        raise UserError(f"{name} are not integers: pass ids")
    return converted


def ids(name: str, values: Any, size: int) -> dict[str, np.ndarray]:
    """Returns `{name: int32 [B, L]}` with ids from 0 to `size` - 1.

    Raises:
      UserError: a value is not an integer, the array does not have two axes, or an id is out of range.
    """
    array = integers(name, values)
    if array.ndim != 2:
        raise UserError(f"{name} have shape {array.shape}: expected [batch, length]")
    if array.size and not (array.min() >= 0 and array.max() < size):
        raise UserError(f"{name} range from {array.min()} to {array.max()}: the model's range from 0 to {size - 1}")
    return {name: array}


def mask(name: str, values: Any, tokens_name: str, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Returns `{name: int32 [B, L]}` with the shape of `tokens`, or an empty dictionary if `values` is None.

    Raises:
      UserError: a value is not an integer, or the shapes differ.
    """
    if values is None:
        return {}
    array = integers(name, values)
    check_same_shape(name, array, tokens_name, tokens)
    return {name: array}


def check_same_shape(name: str, array: np.ndarray, tokens_name: str, tokens: np.ndarray) -> None:
    """Raises a `UserError` if two arrays differ in shape."""
    if array.shape != tokens.shape:
        raise UserError(f"{name} has shape {array.shape}, {tokens_name} {tokens.shape}: pass equal shapes")


def prompts(values: Any) -> list[str] | list[list[int]]:
    """Returns prompts as a list of texts or a list of rows of ids. A single prompt becomes a list of one.

    Raises:
      UserError: a prompt is neither a text nor ids, or some prompts are texts and some are ids.
    """
    items = [values] if isinstance(values, str) else list(values)
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) == len(items):
        return texts
    if texts:
        raise UserError("some prompts are texts and some are ids: pass only texts or only ids")
    rows = [integers("a prompt's ids", row) for row in (items if any(map(np.iterable, items)) else [items])]
    if any(row.ndim != 1 for row in rows):
        raise UserError("a prompt is not a list of ids: pass [[1, 2, 3], …]")
    return [row.tolist() for row in rows]
