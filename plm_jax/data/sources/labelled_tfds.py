"""Labelled examples of TensorFlow Datasets. Importing this imports TensorFlow."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from typing_extensions import override

from plm_jax.common.errors import UserError, nearest
from plm_jax.data.sources import labelled, tasks
from plm_jax.data.sources.corpus import Corpus, Record, Skipped, ignore, kept
from plm_jax.data.sources.source import RowReader, SourceRow, TfdsSource
from plm_jax.data.tensorflow_side import tfds


class TfdsCorpus(Corpus):
    """Labelled examples of a builder's splits, in its order."""

    skips_bad_rows = True

    def __init__(self, source: TfdsSource, form: labelled.Form):
        self._source, self._form, self._builder = source, form, tasks.builder(source)
        self._found = tasks.download(self._builder)
        if source.train not in self._found:
            raise UserError(f"{source.name} has no split '{source.train}': {nearest(source.train, self._found)}")
        self.splits = ("train", "validation") if source.validation in self._found else ("train",)
        self.columns, self.keeps_offsets = labelled.columns(form), labelled.keeps_offsets(form)

    @override
    def shards(self, split: str, most: int = 1) -> list[None]:
        return [None]

    @override
    def read(
        self, split: str, shard: None, skipped: Skipped | None = None, advance: Callable[[int], Any] = ignore
    ) -> Iterator[Record]:
        for number, (place, row) in enumerate(rows(self._builder, self._source.name, getattr(self._source, split)), 1):
            advance(1)
            found = kept(functools.partial(labelled.record, self._form, place, row), skipped)
            if found is not None:
                yield found._replace(place=number)

    @override
    def fingerprint(self) -> list[str]:
        """The builder's name and version, and the sizes of its splits."""
        return tasks.builder_fingerprint(self._builder)

    @override
    def progress(self) -> dict[str, Any]:
        """So many examples."""
        total = sum(self._found[getattr(self._source, split)].num_examples for split in self.splits)
        return {"total": total, "unit": " examples"}


def open_rows(source: TfdsSource) -> RowReader:
    """Returns a reader of the rows of a builder.

    Raises:
      UserError: the builder is unknown or cannot be downloaded, or has no split for training.
    """
    builder = tasks.builder(source)
    renamed = {"train": source.train, "validation": source.validation}
    known = tasks.download(builder)
    if source.train not in known:
        raise UserError(f"{source.name} has no split '{source.train}': {nearest(source.train, known)}")

    def read(split: str) -> list[SourceRow]:
        return [SourceRow(*row) for row in rows(builder, source.name, renamed.get(split, split))]

    return RowReader(read, (*(split for split, name in renamed.items() if name in known), *known))


def rows(builder: tfds.core.DatasetBuilder, name: str, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a builder's split in its order as JSON would hold them, and what errors call each."""
    # One file after another.
    reading = tfds.ReadConfig(interleave_cycle_length=1)
    as_dataset: Any = builder.as_dataset  # Its decorator hides its arguments.
    examples: Any = tfds.as_numpy(as_dataset(split, shuffle_files=False, read_config=reading))
    for number, row in enumerate(examples, 1):
        yield f"{name} {split}:{number}", _plain(row)


def _plain(value: Any) -> Any:
    """What JSON would hold of a row's NumPy values."""
    if isinstance(value, Mapping):
        return {name: _plain(of) for name, of in value.items()}
    if isinstance(value, np.ndarray):
        return [_plain(of) for of in value] if value.ndim else _plain(value[()])
    if isinstance(value, bytes):
        return value.decode("utf-8")
    return value.item() if isinstance(value, np.generic) else value
