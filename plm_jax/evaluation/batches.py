"""Batches of one size from items of any length, shortest first, so that few programs are compiled."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from plm_jax.generation.scoring import ignore_progress


def map_by_length(
    items: Sequence[Any],
    size: int,
    process: Callable[[list[Any]], Sequence[Any]],
    advance: Callable[[int], Any] = ignore_progress,
) -> list[Any]:
    """Processes items in batches sorted by length and returns the results in the order of the items.

    Args:
      size: number of items in a batch; the last batch is padded by repeating its items.
      process: returns one result per item of a batch.
      advance: called with the number of items in each finished batch.
    """
    order = sorted(range(len(items)), key=lambda i: len(items[i]))
    results: dict[int, Any] = {}
    for first in range(0, len(items), size):
        batch = order[first : first + size]
        filled = itertools.islice(itertools.cycle(batch), size)
        results |= zip(batch, process([items[i] for i in filled]), strict=False)
        advance(len(batch))
    return [results[i] for i in range(len(items))]
