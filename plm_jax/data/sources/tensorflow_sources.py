"""Settings of the sources that TensorFlow reads. TensorFlow is imported only when one of them is opened."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

from typing_extensions import override

from plm_jax.common import progress
from plm_jax.common.errors import nearest
from plm_jax.data.sources import labelled
from plm_jax.data.sources.corpus import BadRow, Corpus, Record
from plm_jax.data.sources.labelled import Form, LabelledSource
from plm_jax.data.sources.prompts import PromptConfig
from plm_jax.data.sources.source import InputsTargetsSource, RegisteredSource, RowReader, TfdsSource


def import_tasks() -> ModuleType:
    """Imports `plm_jax.data.sources.tasks`, and with it seqio and TensorFlow."""
    with progress.doing("importing TensorFlow"):
        from plm_jax.data.sources import tasks
    return tasks


def _labelled_tfds() -> ModuleType:
    with progress.doing("importing TensorFlow"):
        from plm_jax.data.sources import labelled_tfds
    return labelled_tfds


@dataclass(frozen=True)
class Tfds(TfdsSource):
    """A TensorFlow Datasets builder, `name` as in `wikipedia/20230601.en`; `field` holds the document's text.

    Attributes:
      train, validation: the builder's splits that are these two; one without the second is parted by `Data`.
    """

    kind: ClassVar[str] = "tfds"
    places: ClassVar[tuple[str, ...]] = ("data_dir",)
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
        return _labelled_tfds().open_rows(self)

    @override
    def record(self, place: str, row: dict[str, Any]) -> Record:
        text = row.get(self.field)
        if not isinstance(text, str):
            raise BadRow(f"{place} has no text in '{self.field}': {nearest(self.field, row)}")
        return Record(text)


@dataclass(frozen=True)
class LabelledTfds(TfdsSource, LabelledSource):
    """Labelled examples of a TensorFlow Datasets builder, such as `glue/mnli` or `squad`; splits as in `Tfds`."""

    kind: ClassVar[str] = "labelled_tfds"
    places: ClassVar[tuple[str, ...]] = ("data_dir",)
    name: str
    form: Form
    data_dir: str = ""
    train: str = "train"
    validation: str = "validation"
    prompt: PromptConfig | None = None

    @override
    def open(self, name: str) -> Corpus:
        return _labelled_tfds().TfdsCorpus(self, self.form)

    @override
    def open_rows(self, name: str) -> RowReader:
        return _labelled_tfds().open_rows(self)

    @override
    def record(self, place: str, row: dict[str, Any]) -> Record:
        return labelled.record(self.form, place, row)


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
    """A task, or a mixture of tasks, that `module` registers with seqio under `name`; its `field` holds text.

    Of a mixture each task is prepared and read as a source `SOURCE-TASK` of its own, and so the run's config.json holds
    these, as its `validation/…` do; of the rate of SOURCE each has the share that seqio's rates give it, which
    `prepare` works out.
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
    """A task, or a mixture of tasks, that `module` registers with seqio; each row is an example, inputs and targets.

    They may be texts or tokens, whose text is then taken: `inputs_pretokenized`, or what the task's vocabulary decodes.
    A mixture is read as in `SeqioTask`.
    """

    kind: ClassVar[str] = "seqio_inputs_targets"
    name: str
    module: str
