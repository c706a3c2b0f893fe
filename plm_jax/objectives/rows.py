"""Helpers of objectives: random subsets and padded rows, with few NumPy calls (each takes about a microsecond)."""

import numpy as np
from jaxtyping import Float, Int, Num

from plm_jax.common.errors import UserError


def check_joined(example: dict[str, np.ndarray], name: str) -> None:
    """Raises a `UserError` if an example has segment ids, which the objective `name` does not support."""
    if "segment_ids" in example:
        raise UserError(f"{name} does not support segment ids: set config.data.layout.attend_across_documents to True")


def subset(
    total: int, size: int, rng: np.random.Generator, weights: Float[np.ndarray, " {total}"] | None = None
) -> Int[np.ndarray, " {size}"]:
    """Draws `size` of the numbers 0 to `total` - 1 without replacement, and returns them sorted.

    Args:
      weights: relative weight, above 0, with which each number is drawn among the numbers not yet drawn; by default,
        all weights are equal.
    """
    if not size:
        return np.zeros(0, np.int64)
    keys = rng.random(total)
    if weights is not None:
        # The first of exponential times with these rates is drawn first (Efraimidis and Spirakis 2006).
        keys = -np.log1p(-keys) / weights
    chosen = keys.argpartition(size - 1)[:size]
    chosen.sort()
    return chosen


def padded(
    values: Num[np.ndarray, " {size}"] | int, size: int, length: int, pad: int = 0, dtype: type = np.int32
) -> Num[np.ndarray, " {length}"]:
    """Returns a row [length]: `values` [size], or one value repeated `size` times, followed by `pad`."""
    row = np.zeros(length, dtype)
    row[:size] = values
    if pad:
        row[size:] = pad
    return row


def segment_positions(segment_ids: Int[np.ndarray, " length"]) -> Int[np.ndarray, " length"]:
    """Returns the position of each token within its segment, int32; 0 at padding, where the segment id is 0."""
    index = np.arange(len(segment_ids), dtype=np.int32)
    begins = np.ones(len(segment_ids), np.bool_)
    begins[1:] = segment_ids[1:] != segment_ids[:-1]
    return (index - np.maximum.accumulate(np.where(begins, index, 0))) * (segment_ids > 0)
