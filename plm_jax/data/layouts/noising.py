"""Rows with an objective's noise and targets: what the trainer's reader and seqio preprocessors share."""

import numpy as np

from plm_jax import objectives
from plm_jax.data.layouts.formats import Example
from plm_jax.data.layouts.layout import Layout
from plm_jax.data.layouts.rows import Rows


def make(
    objective: objectives.BoundObjective,
    rows: Rows,
    item: int,
    rng: np.random.Generator,
    word_initial: np.ndarray | None,
) -> Example:
    """A row with noise and targets; arguments as of `read`."""
    return objective(read(objective, rows, item, rng, word_initial), rng)


def read(
    objective: objectives.BoundObjective,
    rows: Rows,
    item: int,
    rng: np.random.Generator,
    word_initial: np.ndarray | None,
) -> Example:
    """A row with all that the objective reads.

    Args:
      word_initial: bool [vocab_size], for words masked whole where the split does not say where they begin.
    """
    example = rows.example(item, rng)
    if "word_starts" in objective.reads and "word_starts" not in example:
        assert word_initial is not None, "objectives that mask whole words need word_initial"
        (example["word_starts"],) = word_initial[example["tokens"]].nonzero()
    return example


def blank(layout: Layout, length: int, objective: objectives.BoundObjective, num_characters: int = 0) -> Example:
    """An example without text: the keys, shapes and types of all that `make` gives; arguments as of `Layout.blank`."""
    row = layout.blank(length, objective, num_characters)
    row |= {name: np.zeros(1, np.int64) for name in objective.reads}
    return objective(row, np.random.default_rng(0))
