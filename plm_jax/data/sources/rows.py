"""Rows of a source with their fields, for prompts, in the same splits as its cache."""

from collections.abc import Callable

from plm_jax.common.errors import UserError, nearest
from plm_jax.data.prepare import reading
from plm_jax.data.sources.corpus import Record
from plm_jax.data.sources.source import Source, SourceRow


def splits(
    name: str, source: Source, split: str, fraction: float, record: Callable[[SourceRow], Record]
) -> tuple[list[SourceRow], list[SourceRow]]:
    """Returns the rows of `train` and the rows of another split.

    If the split is `validation` and the source has none, the rows of `train` are divided into the two splits as
    `prepare` divides them. In all other cases, the first list has all rows of `train`.

    Args:
      name: name of the source in the config.
      split: name of the other split; `train` returns the rows of `train` twice.
      fraction: fraction of the rows that are held out if `train` is divided.
      record: function from a row to the record that `prepare` reads for the row; the record decides whether the row is
        held out.

    Raises:
      UserError: the rows of the source have no fields, there is no such split, no row is held out, or a row does not
        fit the source.
    """
    read, splits = source.open_rows(name)
    if split not in (*splits, "validation"):
        raise UserError(f"'{name}' has no split '{split}': {nearest(split, splits)}")
    rows = read("train")
    if split == "train" or split in splits:
        return rows, rows if split == "train" else read(split)
    is_held_out = reading.hold_out([record(row) for row in rows], fraction)
    if not any(is_held_out):
        fix = "add validation rows, or increase config.data.validation_fraction"
        raise UserError(f"no held-out rows in '{name}': {fix}")
    pairs = list(zip(rows, is_held_out, strict=True))
    return [row for row, held_out in pairs if not held_out], [row for row, held_out in pairs if held_out]
