"""Rows with the noise and targets of an objective, for the reader and for seqio preprocessors."""

from collections.abc import Mapping
from types import MappingProxyType

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
    token_counts: np.ndarray | None = None,
) -> Example:
    """Returns a row with noise and targets; the arguments are the same as for `read`.

    If the row is packed, the objective acts on each of its inner rows.
    """
    inner = rows.inner_rows(item, rng)
    examples = [objective(read(objective, *row, word_initial, token_counts), row[-1]) for row in inner]
    return examples[0] if rows.packing is None else rows.packing.join(examples)


def read(
    objective: objectives.BoundObjective,
    rows: Rows,
    item: int,
    rng: np.random.Generator,
    word_initial: np.ndarray | None,
    token_counts: np.ndarray | None = None,
) -> Example:
    """Returns a row that is not packed, with everything that the objective reads.

    Args:
      word_initial: bool [vocab_size], whether a token begins a word; needed by whole-word masking if the split does not
        store the starts of words.
      token_counts: [vocab_size], number of occurrences of each token; needed by smoothed masking.
    """
    example = {**rows.constants, **rows.example(item, rng)}
    if "word_starts" in objective.reads and "word_starts" not in example:
        assert word_initial is not None, "objectives that mask whole words need word_initial"
        (example["word_starts"],) = word_initial[example["tokens"]].nonzero()
    if "token_counts" in objective.reads:
        assert token_counts is not None, "objectives with smoothed masking need token_counts"
        example["token_counts"] = token_counts[example["tokens"]]
    return example


def blank(
    layout: Layout,
    length: int,
    objective: objectives.BoundObjective,
    num_characters: int = 0,
    constants: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Example:
    """Returns an example without text that has the keys, shapes and types of examples from `make`.

    Args:
      layout: layout of the rows.
      length, objective, num_characters: arguments of `layout.blank`.
      constants: `Rows.constants` of the rows.
    """
    row = {**constants, **layout.blank(length, objective, num_characters)}
    row |= {name: np.zeros(len(row["tokens"]) if name == "token_counts" else 1, np.int64) for name in objective.reads}
    example, packing = objective(row, np.random.default_rng(0)), layout.packing(objective, length)
    return example if packing is None else packing.join([example])
