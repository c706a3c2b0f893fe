"""Labeled examples of TensorFlow Datasets. Importing this module imports TensorFlow."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from typing_extensions import override

from plm_jax.data.sources import labeled, tasks
from plm_jax.data.sources.corpus import Corpus, Record, Skipped, ignore, read_or_skip
from plm_jax.data.sources.source import RowReader, SourceRow, TfdsSource
from plm_jax.data.tensorflow_side import tfds


class TfdsCorpus(Corpus):
    """Labeled examples of a TFDS builder, in the order of the builder."""

    skips_bad_rows = True

    def __init__(self, source: TfdsSource, form: labeled.Form):
        self._source, self._form, self._builder = source, form, tasks.builder(source)
        self._downloaded = tasks.download_splits(source, self._builder)
        self.splits = ("train", "validation") if source.validation in self._downloaded else ("train",)
        self.columns, self.keeps_offsets = labeled.columns(form.kind), labeled.keeps_offsets(form)

    @override
    def shards(self, split: str, most: int = 1) -> list[None]:
        return [None]

    @override
    def read(
        self, split: str, shard: None, skipped: Skipped | None = None, advance: Callable[[int], Any] = ignore
    ) -> Iterator[Record]:
        located = rows(self._builder, self._source.name, getattr(self._source, split))
        for number, (location, row) in enumerate(located, 1):
            advance(1)
            record = read_or_skip(functools.partial(labeled.record, self._form, location, row), skipped)
            if record is not None:
                yield record._replace(row_number=number)

    @override
    def fingerprint(self) -> list[str]:
        """Returns the builder's name and version, and the sizes of its splits."""
        return tasks.builder_fingerprint(self._builder)

    @override
    def progress(self) -> dict[str, Any]:
        total = sum(self._downloaded[getattr(self._source, split)].num_examples for split in self.splits)
        return {"total": total, "unit": " examples"}


def open_rows(source: TfdsSource) -> RowReader:
    """Returns a reader of the rows of a builder.

    Raises:
      UserError: the builder is unknown or cannot be downloaded, lacks the field of the source, or has no split for
        training.
    """
    builder = tasks.builder(source)
    renamed = {"train": source.train, "validation": source.validation}
    known = tasks.download_splits(source, builder)

    def read(split: str) -> list[SourceRow]:
        return [SourceRow(*row) for row in rows(builder, source.name, renamed.get(split, split))]

    return RowReader(read, (*(split for split, name in renamed.items() if name in known), *known))


def rows(builder: tfds.core.DatasetBuilder, name: str, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields, for each row of a builder's split, the name of the row in errors and its fields as JSON values."""
    reading = tfds.ReadConfig(interleave_cycle_length=1)  # Reads one file after another.
    as_dataset: Any = builder.as_dataset  # Its decorator hides its arguments.
    examples: Any = tfds.as_numpy(as_dataset(split, shuffle_files=False, read_config=reading))
    for number, row in enumerate(examples, 1):
        yield f"{name} {split}:{number}", _plain(row)


def _plain(value: Any) -> Any:
    """Converts NumPy values to JSON values."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return [_plain(item) for item in value] if value.ndim else _plain(value[()])
    if isinstance(value, bytes):
        return value.decode("utf-8")
    return value.item() if isinstance(value, np.generic) else value
