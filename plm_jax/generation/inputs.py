"""What a model is given from outside, checked: rows of ids, masks, prompts of ids."""

from typing import Any

import numpy as np

from plm_jax.common.errors import UserError


def integers(name: str, values: Any) -> np.ndarray:
    """An int32 array of numbers in nested sequences, or of an array of NumPy, JAX or another library; they may be bool.

    Raises:
      UserError: rows of different lengths, or what is no integer.
    """
    try:
        found = np.asarray(values)
        if found.dtype.kind == "O" and any(map(np.iterable, found.flat)):
            raise ValueError("an array of lists")
    except ValueError as error:
        raise UserError(f"{name} have rows of different lengths: pad them to one, and give a mask") from error
    with np.errstate(invalid="ignore"):
        converted = found.astype(np.int32) if found.dtype.kind in "biuf" else None
    if converted is None or not np.array_equal(found, converted):
        raise UserError(f"{name} are no integers: give ids")
    return converted


def ids(name: str, values: Any, size: int) -> dict[str, np.ndarray]:
    """`{name: int32 [B, L]}` of ids below `size`.

    Raises:
      UserError: another shape, or an id out of range.
    """
    found = integers(name, values)
    if found.ndim != 2:
        raise UserError(f"{name} have shape {found.shape}: give [batch, length]")
    if found.size and not (found.min() >= 0 and found.max() < size):
        raise UserError(f"{name} range from {found.min()} to {found.max()}: the model's go from 0 to {size - 1}")
    return {name: found}


def mask(name: str, values: Any, of: str, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """`{name: int32 [B, L]}`, of the shape of `tokens`, which errors call `of`; empty without values."""
    if values is None:
        return {}
    found = integers(name, values)
    same_shape(name, found, of, tokens)
    return {name: found}


def same_shape(name: str, found: np.ndarray, of: str, tokens: np.ndarray) -> None:
    """Raises a `UserError` if two arrays differ in shape."""
    if found.shape != tokens.shape:
        raise UserError(f"{name} has shape {found.shape}, {of} {tokens.shape}: give the same")


def prompts(given: Any) -> list[str] | list[list[int]]:
    """Prompts as lists, all texts or all ids; one alone, a text or a sequence of ids, is a list of one.

    Raises:
      UserError: they are neither, or mixed.
    """
    found = [given] if isinstance(given, str) else list(given)
    texts = [isinstance(prompt, str) for prompt in found]
    if all(texts):
        return found
    if any(texts):
        raise UserError("some prompts are texts and some are ids: give one kind at a time")
    rows = [integers("a prompt's ids", row) for row in (found if any(map(np.iterable, found)) else [found])]
    if any(row.ndim != 1 for row in rows):
        raise UserError("a prompt is no list of ids: give [[1, 2, 3], …]")
    return [row.tolist() for row in rows]
