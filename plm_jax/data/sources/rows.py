"""The rows of a source with fields as they are, for prompts, by the same splits as its cache has."""

from collections.abc import Callable
from typing import Any, NamedTuple

from plm_jax import config
from plm_jax.common import progress
from plm_jax.common.errors import UserError, nearest
from plm_jax.data.sources import files
from plm_jax.data.sources.corpus import Record


class SourceRow(NamedTuple):
    """A row's fields by name, and what errors call it."""

    place: str
    fields: dict[str, Any]


def splits(
    name: str, source: config.Source, wanted: str, fraction: float, record: Callable[[SourceRow], Record]
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
    read, known = _reader(name, source)
    if wanted not in (*known, "validation"):
        raise UserError(f"'{name}' has no split '{wanted}': {nearest(wanted, known)}")
    train = read("train")
    if wanted == "train" or wanted in known:
        return train, train if wanted == "train" else read(wanted)
    from plm_jax.data import prepare  # What it brings along only sources without a split need.

    held = prepare.hold_out([record(row) for row in train], fraction)
    parted = {of: [row for row, is_held in zip(train, held, strict=True) if is_held == of] for of in (False, True)}
    if not parted[True]:
        fix = "give it validation rows, or raise config.data.validation_fraction"
        raise UserError(f"nothing is held out of '{name}': {fix}")
    return parted[False], parted[True]


def _reader(name: str, source: config.Source) -> tuple[Callable[[str], list[SourceRow]], tuple[str, ...]]:
    """What reads a split, and the splits that there are."""
    if isinstance(source, config.JsonSource):

        def of_files(split: str) -> list[SourceRow]:
            of = files.of_split(source, split)
            rows = (SourceRow(*row) for path in files.paths(of) for row in files.json_rows(path, of))
            return [row for row in rows if files.is_taken(*row, source)]

        return of_files, files.splits(source)
    if isinstance(source, config.Tfds | config.LabelledTfds):
        with progress.doing("importing TensorFlow"):
            from plm_jax.data.sources import labelled_tfds, tasks
        builder = tasks.builder(source)
        own = {"train": source.train, "validation": source.validation}
        found = tasks.download(builder)
        if source.train not in found:
            raise UserError(f"{source.name} has no split '{source.train}': {nearest(source.train, found)}")
        known = (*(split for split, of in own.items() if of in found), *found)

        def of_builder(split: str) -> list[SourceRow]:
            return [SourceRow(*row) for row in labelled_tfds.rows(builder, source.name, own.get(split, split))]

        return of_builder, known
    raise UserError(
        f"source '{name}' is of kind '{source.kind}', whose rows have no fields: prompts need JSONL or TFDS"
    )
