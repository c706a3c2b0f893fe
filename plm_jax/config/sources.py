"""Where the documents and examples of a run come from."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from plm_jax.common import progress, ranges
from plm_jax.common.roles import Role
from plm_jax.config.prompts import PromptConfig

if TYPE_CHECKING:
    from plm_jax.data.sources.corpus import Corpus


class Source(Role):
    """Where text comes from: a corpus, or a task of inputs and targets.

    Attributes:
      places: the fields that say where it lies, and nothing of what it is; relative ones count from the config file.
      prompt: of rows with fields how `evaluate --shots` puts them to a model; None: it does not.
    """

    places: ClassVar[tuple[str, ...]] = ()
    prompt: PromptConfig | None = None

    def open(self, name: str) -> "Corpus":
        """Its documents, as `prepare` reads them; `name` is what the config calls it.

        Raises:
          UserError: what the user can mend in it.
        """
        raise NotImplementedError

    def rates(self) -> dict[str, float] | None:
        """Of a mixture of tasks the rate of each; None: it is none."""
        return None


@dataclass(frozen=True)
class FileSource(Source):
    """A source of text or JSONL files.

    Attributes:
      max_characters: of a line, paragraph or file that is a row; a longer one is a bad row.
    """

    max_characters: Annotated[int, ranges.Range(1, 2**31 - 1)] = field(default=2**27, kw_only=True)

    def open(self, name: str) -> "Corpus":
        """See `Source.open`."""
        from plm_jax.data.sources import files

        return files.FileCorpus(name, self)


class TaskSource(Source):
    """A source that seqio reads; seconds are spent on TensorFlow only where there is one."""

    def open(self, name: str) -> "Corpus":
        """See `Source.open`."""
        with progress.doing("importing TensorFlow"):
            from plm_jax.data.sources import tasks
        return tasks.TaskCorpus(name, self)


class RegisteredSource(TaskSource):
    """A source of which seqio's registry knows more; there its name may be that of a mixture."""

    def rates(self) -> dict[str, float] | None:
        """See `Source.rates`."""
        with progress.doing("importing TensorFlow"):
            from plm_jax.data.sources import tasks
        return tasks.rates(self)


class InputsTargetsSource(Source):
    """A source of examples, with inputs and targets; the others are of documents."""


@dataclass(frozen=True)
class JsonSource(FileSource):
    """A source of JSONL files.

    Attributes:
      max_depth: how deep lists and objects of a line may lie in each other; a line with deeper ones is a bad row.
      group: field that groups rows, a text or an integer, such as a document's id. If the source has no validation
        split, rows of one group stay in one split. Empty: rows with the same first text are a group, such as the
        questions of one context.
    """

    max_characters: Annotated[int, ranges.Range(1, 2**31 - 1)] = field(default=2**24, kw_only=True)
    max_depth: Annotated[int, ranges.Range(1, 512)] = field(default=100, kw_only=True)
    group: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class TextFiles(FileSource):
    """Plain text, `.gz` allowed. `path` may be a glob. One document a file, or one a paragraph or line."""

    kind: ClassVar[str] = "text"
    places: ClassVar[tuple[str, ...]] = ("path",)
    path: str
    document: Literal["file", "paragraph", "line"] = "file"


@dataclass(frozen=True)
class JsonLines(JsonSource):
    """One JSON object a line, `.gz` allowed; `field` holds the document's text.

    Attributes:
      path, validation: the files for training and those for validation, each may be a glob; without the latter `Data`
        parts the former.
    """

    kind: ClassVar[str] = "jsonl"
    places: ClassVar[tuple[str, ...]] = ("path", "validation")
    path: str
    field: str = "text"
    validation: str = ""
    prompt: PromptConfig | None = None


@dataclass(frozen=True)
class Tfds(TaskSource):
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


@dataclass(frozen=True)
class SeqioTask(RegisteredSource):
    """A task, or a mixture of tasks, that `module` registers with seqio under `name`; its `field` holds text.

    Of a mixture each task is prepared and read as a source `SOURCE-TASK` of its own, and so the run's config.json holds
    these, as its `validation/…` do; of the rate of SOURCE each has the share that seqio's rates give it, which
    `prepare` works out.
    """

    kind: ClassVar[str] = "seqio"
    name: str
    module: str
    field: str = "text"


@dataclass(frozen=True)
class JsonLinesInputsTargets(JsonSource, InputsTargetsSource):
    """One JSON object a line, `.gz` allowed, each an example with inputs and targets; `path` may be a glob.

    Attributes:
      inputs, targets: templates in which `{name}` stands for a field, as in `sentiment: {sentence}` or `{choices[0]}`.
      only: a field of rows that is true in those that are taken; empty: all are.
    """

    kind: ClassVar[str] = "jsonl_inputs_targets"
    places: ClassVar[tuple[str, ...]] = ("path",)
    path: str
    inputs: str = "{inputs}"
    targets: str = "{targets}"
    only: str = ""
    prompt: PromptConfig | None = None


@dataclass(frozen=True)
class SeqioInputsTargets(RegisteredSource, InputsTargetsSource):
    """A task, or a mixture of tasks, that `module` registers with seqio; each row is an example, inputs and targets.

    They may be texts or tokens, whose text is then taken: `inputs_pretokenized`, or what the task's vocabulary decodes.
    A mixture is read as in `SeqioTask`.
    """

    kind: ClassVar[str] = "seqio_inputs_targets"
    name: str
    module: str
