"""Sources of labelled examples: where their rows are, and which fields of a row hold what.

config.LabelledJsonLines("train.jsonl", config.ClassForm(("negative", "positive"), text="sentence"), "test.jsonl")
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from plm_jax.common import progress, ranges
from plm_jax.common.errors import UserError
from plm_jax.common.roles import Role
from plm_jax.config.prompts import PromptConfig
from plm_jax.config.sources import JsonSource, Source, TaskSource

if TYPE_CHECKING:
    from plm_jax.data.sources.corpus import Corpus


class Form(Role):
    """What the rows of a labelled source are; the fields say which of a row's hold it.

    Attributes:
      num_texts: how many texts an example has.
      labels: names of the classes or tags, in the order of their ids; empty where there are none.
    """

    labels: tuple[str, ...] = ()

    @property
    def num_texts(self) -> int:
        """See `Form`."""
        raise NotImplementedError


@dataclass(frozen=True)
class ClassForm(Form):
    """A text, or a pair of texts, and its class: a name of `labels`, or its number from 0.

    Attributes:
      pair: the field of the second text; empty: there is one text.
    """

    kind: ClassVar[str] = "classes"
    labels: tuple[str, ...]
    text: str = "text"
    pair: str = ""
    label: str = "label"

    def __post_init__(self):
        _check_labels(self.labels)

    @property
    def num_texts(self) -> int:
        """See `Form`."""
        return 2 if self.pair else 1


@dataclass(frozen=True)
class ScoreForm(Form):
    """A text, or a pair of texts, and a number; `pair` as in `ClassForm`."""

    kind: ClassVar[str] = "score"
    text: str = "text"
    pair: str = ""
    score: str = "score"

    @property
    def num_texts(self) -> int:
        """See `Form`."""
        return 2 if self.pair else 1


@dataclass(frozen=True)
class TagForm(Form):
    """A list of words and one of as many tags: names of `labels`, or their numbers from 0."""

    kind: ClassVar[str] = "tags"
    labels: tuple[str, ...]
    words: str = "tokens"
    tags: str = "tags"

    def __post_init__(self):
        _check_labels(self.labels)

    @property
    def num_texts(self) -> int:
        """See `Form`."""
        return 1


@dataclass(frozen=True)
class AnswerForm(Form):
    """A question, a context, and the stretches of it that answer the question, none where it has no answer.

    Answers are SQuAD's `{"text": […], "answer_start": […]}`, or a list of `{"text": …, "start": …}`; an offset counts
    the characters of the context. The first answer is what training reads.
    """

    kind: ClassVar[str] = "span"
    question: str = "question"
    context: str = "context"
    answers: str = "answers"

    @property
    def num_texts(self) -> int:
        """See `Form`."""
        return 2


@dataclass(frozen=True)
class ChoiceForm(Form):
    """A context, a list of `number` texts that may go on with it, and the right one, its number from 0 or the text."""

    kind: ClassVar[str] = "choice"
    number: Annotated[int, ranges.Range(2, 1024)]
    context: str = "question"
    endings: str = "choices"
    label: str = "label"

    @property
    def num_texts(self) -> int:
        """See `Form`."""
        return 1 + self.number


def _check_labels(labels: tuple[str, ...]) -> None:
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise UserError(f"a source has form.labels {', '.join(labels) or '()'}: give at least two, none twice")


class LabelledSource(Source):
    """A source of labelled examples."""

    form: Form


@dataclass(frozen=True)
class LabelledJsonLines(JsonSource, LabelledSource):
    """Labelled examples, one JSON object a line, `.gz` allowed; places as in `JsonLines`."""

    kind: ClassVar[str] = "labelled_jsonl"
    places: ClassVar[tuple[str, ...]] = ("path", "validation")
    path: str
    form: Form
    validation: str = ""
    prompt: PromptConfig | None = None


@dataclass(frozen=True)
class LabelledTfds(TaskSource, LabelledSource):
    """Labelled examples of a TensorFlow Datasets builder, such as `glue/mnli` or `squad`; splits as in `Tfds`."""

    kind: ClassVar[str] = "labelled_tfds"
    places: ClassVar[tuple[str, ...]] = ("data_dir",)
    name: str
    form: Form
    data_dir: str = ""
    train: str = "train"
    validation: str = "validation"
    prompt: PromptConfig | None = None

    def open(self, name: str) -> "Corpus":
        """See `Source.open`."""
        with progress.doing("importing TensorFlow"):
            from plm_jax.data.sources import labelled_tfds
        return labelled_tfds.TfdsCorpus(name, self)
