"""Settings of sources that TensorFlow reads. TensorFlow is imported only when one of these sources is opened."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

from typing_extensions import override

from plm_jax.common import progress
from plm_jax.data.sources import labeled
from plm_jax.data.sources.corpus import Corpus, Record, document_record
from plm_jax.data.sources.labeled import Form, LabeledSource
from plm_jax.data.sources.prompts import PromptConfig
from plm_jax.data.sources.source import InputsTargetsSource, RegisteredSource, RowReader, TfdsSource


def import_tasks() -> ModuleType:
    """Imports `plm_jax.data.sources.tasks`, which imports seqio and TensorFlow."""
    with progress.doing("importing TensorFlow"):
        from plm_jax.data.sources import tasks
    return tasks


def _labeled_tfds() -> ModuleType:
    with progress.doing("importing TensorFlow"):
        from plm_jax.data.sources import labeled_tfds
    return labeled_tfds


@dataclass(frozen=True)
class Tfds(TfdsSource):
    """Documents of a TensorFlow Datasets builder such as `wikipedia/20230601.en`.

    Attributes:
      name: name of the builder.
      field: feature with the text of a document.
      data_dir: folder of the prepared data; if empty, the default of TensorFlow Datasets.
      train: split for training.
      validation: split for validation; if the builder has no such split, some of the training documents are held out.
    """

    kind: ClassVar[str] = "tfds"
    location_fields: ClassVar[tuple[str, ...]] = ("data_dir",)
    name: str
    field: str = "text"
    data_dir: str = ""
    train: str = "train"
    validation: str = "validation"
    prompt: PromptConfig | None = None

    @property
    @override
    def document_field(self) -> str:
        return self.field

    @override
    def open(self, name: str) -> Corpus:
        return import_tasks().TaskCorpus(name, self)

    @override
    def open_rows(self, name: str) -> RowReader:
        return _labeled_tfds().open_rows(self)

    @override
    def record(self, location: str, row: dict[str, Any]) -> Record:
        return document_record(location, row, self.field)


@dataclass(frozen=True)
class LabeledTfds(TfdsSource, LabeledSource):
    """Labeled examples of a TensorFlow Datasets builder such as `glue/mnli` or `squad`.

    Attributes:
      name: name of the builder.
      form: features of an example and its kind of label.
      data_dir: folder of the prepared data; if empty, the default of TensorFlow Datasets.
      train: split for training.
      validation: split for validation; if the builder has no such split, some of the training examples are held out.
    """

    kind: ClassVar[str] = "labeled_tfds"
    location_fields: ClassVar[tuple[str, ...]] = ("data_dir",)
    name: str
    form: Form
    data_dir: str = ""
    train: str = "train"
    validation: str = "validation"
    prompt: PromptConfig | None = None

    @override
    def open(self, name: str) -> Corpus:
        return _labeled_tfds().TfdsCorpus(self, self.form)

    @override
    def open_rows(self, name: str) -> RowReader:
        return _labeled_tfds().open_rows(self)

    @override
    def record(self, location: str, row: dict[str, Any]) -> Record:
        return labeled.record(self.form, location, row)


class SeqioSource(RegisteredSource):
    """A task, or a mixture of tasks, that a module registers with seqio."""

    @override
    def open(self, name: str) -> Corpus:
        return import_tasks().TaskCorpus(name, self)

    @override
    def rates(self) -> dict[str, float] | None:
        return import_tasks().rates(self)


@dataclass(frozen=True)
class SeqioTask(SeqioSource):
    """Documents of a task, or of a mixture of tasks, that a module registers with seqio.

    Each task of a mixture is prepared and read as a source named SOURCE-TASK. This name is used in the run's
    config.json and in the names of its `validation/…` metrics. The rate of SOURCE is divided among the tasks in
    proportion to seqio's rates, which `prepare` computes.

    Attributes:
      name: name of the task or mixture.
      module: Python module that registers the task or mixture.
      field: feature with the text of a document.
    """

    kind: ClassVar[str] = "seqio"
    name: str
    module: str
    field: str = "text"

    @property
    @override
    def document_field(self) -> str:
        return self.field


@dataclass(frozen=True)
class SeqioInputsTargets(SeqioSource, InputsTargetsSource):
    """Examples with inputs and targets of a task, or of a mixture of tasks, that a module registers with seqio.

    Inputs and targets may be texts or tokens. The text of tokens is read from `inputs_pretokenized` and
    `targets_pretokenized`, or else decoded by the task's vocabulary. Mixtures are read as in `SeqioTask`.

    Attributes:
      name: name of the task or mixture.
      module: Python module that registers the task or mixture.
    """

    kind: ClassVar[str] = "seqio_inputs_targets"
    name: str
    module: str
