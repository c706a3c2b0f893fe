"""The rows of a source with fields as they are, for prompts, by the same splits as its cache has."""

from collections.abc import Callable

from plm_jax.common.errors import UserError, nearest
from plm_jax.data.prepare import reading
from plm_jax.data.sources.corpus import Record
from plm_jax.data.sources.source import Source, SourceRow


def splits(
    name: str, source: Source, wanted: str, fraction: float, record: Callable[[SourceRow], Record]
) -> tuple[list[SourceRow], list[SourceRow]]:
    """The rows of `train`, and those of the split that is wanted.

    Where a source has no split for validation, `train` is parted as `prepare` parts it.

    Args:
      name: what the config calls the source.
      fraction: of rows that are held out where there is no split for them.
      record: returns the record that `prepare` reads for a row, which decides whether the row is held out.

    Raises:
      UserError: a source whose rows have no fields, or without such a split; what is wrong with its rows.
    """
    read, known = source.open_rows(name)
    if wanted not in (*known, "validation"):
        raise UserError(f"'{name}' has no split '{wanted}': {nearest(wanted, known)}")
    train = read("train")
    if wanted == "train" or wanted in known:
        return train, train if wanted == "train" else read(wanted)
    held = reading.hold_out([record(row) for row in train], fraction)
    parted = {of: [row for row, is_held in zip(train, held, strict=True) if is_held == of] for of in (False, True)}
    if not parted[True]:
        fix = "give it validation rows, or raise config.data.validation_fraction"
        raise UserError(f"nothing is held out of '{name}': {fix}")
    return parted[False], parted[True]
