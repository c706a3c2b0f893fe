"""Batches of equal size from items of different lengths, sorted by length, so that few programs are compiled."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from plm_jax.generation.scoring import ignore_progress

# Rows are padded to a multiple of 8, or of the largest power of two up to an eighth of their length if it is larger.
_LEAST_MULTIPLE = 8


def padded_length(size: int, limit: int | None = None) -> int:
    """Rounds a number of tokens up to one of a few lengths, and returns at most `limit`.

    A program is compiled for each length.
    """
    size = max(1, size)
    multiple = max(_LEAST_MULTIPLE, 2 ** (math.floor(math.log2(size)) - 3))
    padded = -(-size // multiple) * multiple
    return padded if limit is None else min(padded, limit)


def fitting_size(batch_size: int, number: int) -> int:
    """Returns the batch size for `number` items: `number` rounded up to a power of two, but at most `batch_size`."""
    return min(batch_size, 2 ** math.ceil(math.log2(max(1, number))))


def map_by_length(
    items: Sequence[Any],
    size: int,
    process: Callable[[list[Any]], Iterable[Any]],
    advance: Callable[[int], Any] = ignore_progress,
    length: Callable[[Any], int] = len,
) -> list[Any]:
    """Processes items in batches sorted by length and returns the results in the order of the items.

    Args:
      size: number of items in a batch; the last batch is padded by repeating its items.
      process: returns one result per item of a batch.
      advance: called with the number of items in each finished batch.
      length: function that returns the length of an item.
    """
    order = sorted(range(len(items)), key=lambda i: length(items[i]))
    results: dict[int, Any] = {}
    for first in range(0, len(items), size):
        batch = order[first : first + size]
        filled = itertools.islice(itertools.cycle(batch), size)
        results |= zip(batch, process([items[i] for i in filled]), strict=False)
        advance(len(batch))
    return [results[i] for i in range(len(items))]
