"""Items of any lengths in batches of one size, the shortest first: what is compiled for one batch serves others."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from plm_jax.generation.scoring import ignore_progress


def by_length(
    items: Sequence[Any],
    size: int,
    of_batch: Callable[[list[Any]], Sequence[Any]],
    advance: Callable[[int], Any] = ignore_progress,
) -> list[Any]:
    """What `of_batch` gives for the items, in their order; the last batch is filled up with its first ones.

    Args:
      advance: is told how many more items are done.
    """
    order = sorted(range(len(items)), key=lambda i: len(items[i]))
    found: dict[int, Any] = {}
    for first in range(0, len(items), size):
        batch = order[first : first + size]
        filled = itertools.islice(itertools.cycle(batch), size)
        found |= zip(batch, of_batch([items[i] for i in filled]), strict=False)
        advance(len(batch))
    return [found[i] for i in range(len(items))]
