"""Sources of a config as seqio tasks, which are read as texts. Importing this module imports seqio and TensorFlow."""

import contextlib
import hashlib
import importlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from typing_extensions import override

from plm_jax.common import storage, trees, users
from plm_jax.common.errors import UserError, in_users_code, nearest, one_line
from plm_jax.data import cache
from plm_jax.data.sources import files
from plm_jax.data.sources.corpus import Corpus, Record, Skipped, ignore
from plm_jax.data.sources.files import FileSource, TableInputsTargets
from plm_jax.data.sources.source import InputsTargetsSource, RegisteredSource, Source, TaskSource, TfdsSource
from plm_jax.data.tensorflow_side import seqio, tf, tfds

_TEXT = seqio.Feature(seqio.PassThroughVocabulary(0), add_eos=False, dtype=tf.string, rank=0)
_FEATURES = {"text": _TEXT}
_PARTS: tuple[str, ...] = ("inputs", "targets")
# Feature with the group of a row, for a source of files with the setting `group`.
_GROUP = "plm_jax/group"
# Version of a builder as TFDS prints it, after a slash; `tfds.builder` expects it after a colon.
_VERSION = re.compile(r"/(\d+\.\d+\.\d+)$")


class TaskExample(NamedTuple):
    """An example: its inputs and targets as texts, and all features of its row as NumPy arrays and bytes."""

    inputs: str
    targets: str
    row: dict[str, Any]


class _FileSource(seqio.DataSource):
    """Documents of text files or tables; a shard of a split is a range of its files.

    Attributes:
      error: the last `UserError` raised while reading, which TensorFlow hides; None if there was none.
    """

    def __init__(self, source: FileSource, bad_rows: str):
        super().__init__(splits=files.splits(source))
        self._bad_rows = bad_rows
        self.error: UserError | None = None
        self._source = source

    @property
    @override
    def supports_arbitrary_sharding(self) -> bool:
        return False

    @override
    def list_shards(self, split: str) -> list[str]:
        return files.paths(files.for_split(self._source, split))

    @override
    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = False,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **_: Any,
    ) -> tf.data.Dataset:
        source = files.for_split(self._source, split)
        index, number = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        names = _PARTS if isinstance(source, TableInputsTargets) else ("text",)
        groups = (_GROUP,) if getattr(source, "group", "") else ()

        def documents() -> Iterator[dict[str, bytes]]:
            skipped = Skipped() if self._bad_rows == "skip" else None
            try:
                for record in files.read(source, index, number, skipped):
                    texts = *record.texts, *([record.group or ""] if groups else ())
                    yield {name: text.encode("utf-8") for name, text in zip((*names, *groups), texts, strict=True)}
            except UserError as error:
                self.error = error
                raise

        signature = {name: tf.TensorSpec([], tf.string) for name in (*names, *groups)}
        return tf.data.Dataset.from_generator(documents, output_signature=signature)


class _TfdsTexts(seqio.TfdsDataSource):
    """Documents of a TFDS builder, whose shards can be read in parallel."""


class TaskCorpus(Corpus):
    """Documents, or inputs and targets, of a seqio task."""

    def __init__(self, name: str, source: TaskSource):
        self._source, self._task = source, task(name, source)
        self.splits = tuple(self._task.splits)

    @override
    def shards(self, split: str, most: int = 1) -> list[seqio.ShardInfo | None]:
        return shards(self._source, self._task, split)

    @override
    def read(
        self,
        split: str,
        shard: seqio.ShardInfo | None,
        skipped: Skipped | None = None,
        advance: Callable[[int], Any] = ignore,
    ) -> Iterator[Record]:
        if isinstance(self._source, InputsTargetsSource):
            rows = ((example.inputs, (example.targets,)) for example in examples(self._task, split, shard))
        else:
            field = self._source.document_field if isinstance(self._source, RegisteredSource) else None
            rows = ((text, None) for text in texts(self._task, split, field or "text", shard))
        for number, (text, other_texts) in enumerate(rows, 1):
            advance(1)
            yield Record(text, other_texts, shard.index if shard else 0, number)

    @override
    def fingerprint(self) -> list[str]:
        return fingerprint(self._source, self._task)

    @override
    def progress(self) -> dict[str, Any]:
        if not isinstance(self._source, TfdsSource):
            return super().progress()
        total = sum(self._task.source.num_input_examples(split) or 0 for split in self._task.splits)
        return {"total": total, "unit": " documents"}


def task(name: str, source: Source) -> seqio.Task:
    """Returns the seqio task of a source, and registers it as `plm_jax:NAME:HASH` unless its module registers it.

    Raises:
      UserError: an unknown TFDS builder, module or task, a data set that cannot be downloaded, or a source without a
        `train` split.
    """
    task = registered(name, source)
    if "train" not in task.splits:
        raise UserError(f"source '{name}' has no split 'train', only {', '.join(task.splits)}: use another source")
    return task


def registered(name: str, source: Source, bad_rows: str = "stop") -> seqio.Task:
    """Returns the seqio task of a source like `task`, but accepts a source without a `train` split, for evaluation.

    Args:
      bad_rows: `stop` or `skip`, as in `DataConfig`; for sources of files.
    """
    if isinstance(source, RegisteredSource):
        return _seqio_task(source, source.name)
    if not isinstance(source, FileSource | TfdsSource):
        raise TypeError(f"'{name}' is of kind '{source.kind}', which seqio cannot read")
    return _register(name, source, bad_rows)


def _seqio_task(source: RegisteredSource, name: str) -> seqio.Task:
    _imported(source.module)
    if name not in seqio.TaskRegistry.names():
        if name in seqio.MixtureRegistry.names():
            raise UserError(f"'{name}' is a mixture that was not prepared: run `python -m plm_jax prepare --config=…`")
        hint = nearest(name, [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()])
        raise UserError(f"{source.module} registers no task '{name}': {hint}")
    task = seqio.TaskRegistry.get(name)
    if isinstance(task.source, seqio.TfdsDataSource) and not task.source.tfds_dataset.tfds_splits:
        download(task.source.tfds_dataset.builder)
    return task


def rates(source: RegisteredSource) -> dict[str, float] | None:
    """Returns the rate of each task of a mixture, as seqio computes it, or None if the source does not name a mixture.

    Like seqio, skips tasks without a `train` split.

    Raises:
      UserError: the module cannot be imported, a data set cannot be downloaded, a rate is negative, not finite or
        cannot be computed, or no task has both a `train` split and a rate above 0.
    """
    module = _imported(source.module)
    if source.name not in seqio.MixtureRegistry.names():
        return None
    mixture = seqio.MixtureRegistry.get(source.name)
    rates = {}
    for name in [task.name for task in mixture.tasks]:
        task = _seqio_task(source, name)  # Downloads the task, whose number of examples may decide its rate.
        if "train" not in task.splits:
            continue
        try:
            rates[name] = float(mixture.get_rate(task))
        except Exception as error:
            reason = in_users_code(error, module.__file__ or "") or one_line(error)
            raise UserError(
                f"mixture '{source.name}' fails to compute the rate of task '{name}' ({reason}): fix it"
            ) from error
        if not (rates[name] >= 0 and math.isfinite(rates[name])):
            raise UserError(
                f"mixture '{source.name}' has the rate {rates[name]} for task '{name}': use a finite rate of at least 0"
            )
    if not sum(rates.values()) > 0:
        raise UserError(f"mixture '{source.name}' has no task with a split 'train' and a rate above 0: add one")
    return rates


def _imported(module: str) -> ModuleType:
    """Imports a module that registers tasks; errors in a user's module name its file and line."""
    try:
        is_ours = module.split(".")[0] == __name__.split(".")[0]
        return importlib.import_module(module) if is_ours else users.imported(module)
    except (ModuleNotFoundError, ValueError) as error:  # ValueError: not a module name.
        raise UserError(f"cannot import {module} ({error}): fix the source's module") from error


def _register(name: str, source: FileSource | TfdsSource, bad_rows: str) -> seqio.Task:
    definition = hashlib.sha256(json.dumps([trees.to_dict(source), bad_rows], sort_keys=True).encode()).hexdigest()
    full_name = f"plm_jax:{name}:{definition[:8]}"
    if full_name in seqio.TaskRegistry.names():
        return seqio.TaskRegistry.get(full_name)
    if isinstance(source, TfdsSource):
        known = download_splits(source, builder(source))
        splits = {"train": source.train} | ({"validation": source.validation} if source.validation in known else {})
        return register_tfds(full_name, source, splits)
    provider: Any = _FileSource(source, bad_rows)
    if isinstance(source, TableInputsTargets):
        return seqio.TaskRegistry.add(
            full_name,
            source=provider,
            preprocessors=[],
            output_features=dict.fromkeys(_PARTS, _TEXT),
            metric_fns=[accuracy],
        )
    return seqio.TaskRegistry.add(full_name, source=provider, preprocessors=[], output_features=_FEATURES)


def register_tfds(name: str, source: TfdsSource, splits: dict[str, str] | None = None) -> seqio.Task:
    """Registers the documents of a TFDS builder as a seqio task `name`, without downloading anything.

    Args:
      splits: split of the builder for each split of the task; None for every split of the builder.

    Raises:
      UserError: an unknown builder or field.
    """
    full_name, _, version = builder(source).info.full_name.rpartition("/")
    provider: Any = _TfdsTexts(f"{full_name}:{version}", source.data_dir or None, splits)
    field = source.document_field
    rename = [lambda dataset: dataset.map(lambda row: {"text": row[field]})]
    return seqio.TaskRegistry.add(name, source=provider, preprocessors=rename, output_features=_FEATURES)


def builder(source: TfdsSource) -> tfds.core.DatasetBuilder:
    """Returns the TFDS builder of a source.

    Raises:
      UserError: the builder is unknown or lacks the source's field.
    """
    try:
        builder = tfds.builder(_VERSION.sub(r":\1", source.name), data_dir=source.data_dir or None)
    except (tfds.core.DatasetNotFoundError, ValueError, AssertionError) as error:  # AssertionError: no such version.
        reason = one_line(error, 400)
        raise UserError(
            f"TensorFlow Datasets does not know '{source.name}' ({reason}): fix the source's name"
        ) from error
    features: Any = builder.info.features
    field = source.document_field
    if field is not None and field not in features:
        raise UserError(f"{source.name} has no feature '{field}': {nearest(field, features)}")
    return builder


def download(builder: tfds.core.DatasetBuilder) -> Mapping[str, Any]:
    """Downloads and prepares a builder if necessary. Returns its splits, which are unknown before the download.

    Raises:
      UserError: the builder cannot be downloaded.
    """
    try:
        builder.download_and_prepare()
    except Exception as error:
        reason = one_line(error, 160)
        raise UserError(
            f"cannot download '{builder.info.full_name}' ({reason}): place the prepared data set in {builder.data_dir}"
        ) from error
    return builder.info.splits


def download_splits(source: TfdsSource, builder: tfds.core.DatasetBuilder) -> Mapping[str, Any]:
    """Returns the splits of a source's builder, as `download` does.

    Raises:
      UserError: the builder cannot be downloaded, or lacks the source's training split.
    """
    splits = download(builder)
    if source.train not in splits:
        raise UserError(f"{source.name} has no split '{source.train}': {nearest(source.train, splits)}")
    return splits


def shards(source: Source, task: seqio.Task, split: str) -> list[seqio.ShardInfo | None]:
    """Returns the shards of a split, which can be read in parallel.

    For files and TFDS builders, each file is a shard. Files of TFDS are never combined into one shard, because TFDS
    would interleave their examples. A task of seqio's registry is a single shard, None, because its examples may depend
    on each other. Tasks that `register_tfds` registered have a shard per file.
    """
    if isinstance(source, RegisteredSource) and not isinstance(task.source, _TfdsTexts):
        return [None]
    number = len(task.source.list_shards(split))
    return [seqio.ShardInfo(index, number) for index in range(number)]


def texts(task: seqio.Task, split: str, field: str = "text", shard: seqio.ShardInfo | None = None) -> Iterator[str]:
    """Yields the documents of a split, or of one shard of the split, in the order of the source.

    Raises:
      UserError: the examples of the task lack `field`, or the source of files raises this error.
    """
    rows = _dataset(task, split, (field,), shard)
    with _source_errors(task):
        values: Any = rows.map(lambda row: row[field]).as_numpy_iterator()
        for value in values:
            yield value.decode("utf-8")


def examples(task: seqio.Task, split: str, shard: seqio.ShardInfo | None = None) -> Iterator[TaskExample]:
    """Yields the examples of a split, or of one shard of the split, in the order of the source.

    Raises:
      UserError: the examples lack inputs or targets, or the source of files raises this error.
    """
    rows = _dataset(task, split, _PARTS, shard)
    with _source_errors(task):
        values: Any = rows.as_numpy_iterator()
        for row in values:
            yield TaskExample(_text(task, row, "inputs"), _text(task, row, "targets"), row)


def record(example: TaskExample) -> Record:
    """Returns the record that `prepare` reads for an example."""
    group = example.row.get(_GROUP)
    return Record(example.inputs, (example.targets,), group=None if group is None else group.decode("utf-8"))


def _dataset(task: seqio.Task, split: str, features: tuple[str, ...], shard: seqio.ShardInfo | None) -> tf.data.Dataset:
    """Returns the rows of a split or shard; raises `UserError` if they lack a feature."""
    rows = task.get_dataset(sequence_length=None, split=split, shuffle=False, use_cached=False, shard_info=shard)
    for field in features:
        if field not in rows.element_spec:
            raise UserError(f"task '{task.name}' has no feature '{field}': {nearest(field, rows.element_spec)}")
    return rows


@contextlib.contextmanager
def _source_errors(task: seqio.Task) -> Iterator[None]:
    """Raises the `UserError` of a source of files instead of the error that TensorFlow makes of it."""
    try:
        yield
    except tf.errors.OpError:
        error = getattr(task.source, "error", None)  # `_FileSource` and the text-to-text suite have it.
        if error:
            raise error from None
        raise


def _text(task: seqio.Task, row: dict[str, Any], name: str) -> str:
    """Returns a feature of a row as text.

    The feature `{name}_pretokenized`, in which seqio usually stores the text, is preferred to `name`. If the feature is
    tokens, they are decoded.
    """
    value = row.get(f"{name}_pretokenized", row[name])
    if isinstance(value, bytes):
        return value.decode("utf-8")
    return task.output_features[name].vocabulary.decode(value.tolist())


def accuracy(targets: list[str], predictions: list[str]) -> dict[str, float]:
    """Returns the share of predictions that equal their targets."""
    hits = [target == prediction for target, prediction in zip(targets, predictions, strict=True)]
    return {"accuracy": sum(hits) / len(hits)}


def fingerprint(source: Source, task: seqio.Task) -> list[str]:
    """Returns strings, to be hashed, by which changes of the contents of a seqio task are detected.

    For files, the strings are the SHA-256 of each file. For a TFDS builder, whose files may have terabytes, they are
    its name, its version and the sizes of its splits. For a registered task, hashes of code are added: of the task's
    module, of the modules that this module imports from its folder, and of the files that the data source lists in
    `code`.
    """
    paths, sizes, code = [], [], []
    if isinstance(source, RegisteredSource):
        code += users.digests(source.module)
        paths += getattr(task.source, "code", ())
    if isinstance(task.source, seqio.TfdsDataSource) and not task.source.tfds_dataset.tfds_splits:
        sizes = builder_fingerprint(task.source.tfds_dataset.builder)
    else:
        paths += [path for split in cache.SPLITS if split in task.splits for path in task.source.list_shards(split)]
    hashed = [files.sha256(path) for path in paths if path and (storage.is_remote(path) or os.path.isfile(path))]
    return [*code, *hashed, *sizes]


def builder_fingerprint(builder: tfds.core.DatasetBuilder) -> list[str]:
    """Returns the name and version of a TFDS builder and the sizes of its splits."""
    splits = sorted(builder.info.splits.items())
    return [builder.info.full_name, *(f"{name}:{split.num_examples}" for name, split in splits)]
