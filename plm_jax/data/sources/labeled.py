"""Sources of labeled examples: the fields of a row, and the texts and columns that the cache stores for them.

    config.LabeledTable("train.jsonl", config.ClassForm(("negative", "positive"), text="sentence"), "test.jsonl")

An example is a document of the cache, and its texts are the sentences of the document. For classes, labels and scores,
the texts are one text or a pair of texts; for tags, the words joined by spaces; for spans, a context and a question;
for choices, a context and its endings. The first text decides whether the example is held out, unless the setting
`group` names a field. Each form has its own columns:

    classes   label          id of the class
    labels    labels         ids of the labels, sorted
    score     score          the score
    tags      tags           id of the tag of each word
              word_begins    first character of each word in the text
    span      answer_begins  first character of each answer in the context
              answer_ends    end of each answer in the context, exclusive
              context_bytes  the context in UTF-8
    choice    label          index of the correct choice
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError, nearest
from plm_jax.common.roles import Role
from plm_jax.data.cache.columns import Column
from plm_jax.data.sources import row_fields
from plm_jax.data.sources.corpus import BadRow, Record
from plm_jax.data.sources.files import TableSource
from plm_jax.data.sources.prompts import PromptConfig
from plm_jax.data.sources.row_fields import Row
from plm_jax.data.sources.source import Source
from plm_jax.data.sources.tables import Cell, cell_value

_NUMBER = re.compile(r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*")
_LABEL = Column("label", "<i4", "document")
_COLUMNS = {
    "classes": (_LABEL,),
    "labels": (Column("labels", "<i4", "value"),),
    "score": (Column("score", "<f4", "document"),),
    "tags": (Column("tags", "<i4", "value"), Column("word_begins", "<u4", "value")),
    "span": (
        Column("answer_begins", "<u4", "value"),
        Column("answer_ends", "<u4", "value"),
        Column("context_bytes", "|u1", "value"),
    ),
    "choice": (_LABEL,),
}


class Form(Role):
    """Format of the rows of a labeled source; settings such as `text` name fields of a row.

    Attributes:
      labels: names of the classes, labels or tags, in the order of their ids; empty for other forms.
    """

    labels: tuple[str, ...] = ()

    @property
    def num_texts(self) -> int:
        """Number of texts of an example."""
        raise NotImplementedError

    @property
    def fields(self) -> set[str]:
        """Names of the fields of a row that the form reads."""
        settings: Any = self
        values = (getattr(self, setting.name) for setting in dataclasses.fields(settings))
        return {value for value in values if isinstance(value, str) and value}


class _TextsForm(Form):
    """The base of forms of a text or a pair of texts."""

    pair: str

    @property
    @override
    def num_texts(self) -> int:
        return 2 if self.pair else 1


@dataclass(frozen=True)
class ClassForm(_TextsForm):
    """A text or a pair of texts, and its class: a name in `labels` or an index from 0.

    If a name in `labels` looks like a number, numbers are read as names, not as indices.

    Attributes:
      text: field of the text.
      pair: field of the second text; if empty, there is only one text.
      label: field of the class.
    """

    kind: ClassVar[str] = "classes"
    labels: tuple[str, ...]
    text: str = "text"
    pair: str = ""
    label: str = "label"

    def __post_init__(self):
        _check_labels(self.labels)


@dataclass(frozen=True)
class LabelsForm(_TextsForm):
    """A text or a pair of texts, and any number of labels.

    Labels are a list of names in `labels` or of indices from 0, or a text with names separated by commas, semicolons or
    vertical bars. If a name in `labels` looks like a number, numbers are read as names, not as indices.

    Attributes:
      text: field of the text.
      pair: field of the second text; if empty, there is only one text.
      field: field of the labels.
    """

    kind: ClassVar[str] = "labels"
    labels: tuple[str, ...]
    text: str = "text"
    pair: str = ""
    field: str = "labels"

    def __post_init__(self):
        _check_labels(self.labels)


@dataclass(frozen=True)
class ScoreForm(_TextsForm):
    """A text or a pair of texts, and a number.

    Attributes:
      text: field of the text.
      pair: field of the second text; if empty, there is only one text.
      score: field of the number.
    """

    kind: ClassVar[str] = "score"
    text: str = "text"
    pair: str = ""
    score: str = "score"


@dataclass(frozen=True)
class TagForm(Form):
    """A list of words and a list with a tag for each word: a name in `labels` or an index from 0.

    If a name in `labels` looks like a number, numbers are read as names, not as indices.

    Attributes:
      words: field of the words.
      tags: field of the tags.
    """

    kind: ClassVar[str] = "tags"
    labels: tuple[str, ...]
    words: str = "tokens"
    tags: str = "tags"

    def __post_init__(self):
        _check_labels(self.labels)

    @property
    @override
    def num_texts(self) -> int:
        return 1


@dataclass(frozen=True)
class AnswerForm(Form):
    """A question, a context, and the spans of the context that answer the question, if any.

    Answers are SQuAD's `{"text": […], "answer_start": […]}`, or a list of `{"text": …, "start": …}`. Starts are offsets
    in the context, in characters. Training reads the first answer.

    Attributes:
      question: field of the question.
      context: field of the context.
      answers: field of the answers.
    """

    kind: ClassVar[str] = "span"
    question: str = "question"
    context: str = "context"
    answers: str = "answers"

    @property
    @override
    def num_texts(self) -> int:
        return 2


@dataclass(frozen=True)
class ChoiceForm(Form):
    """A context, a list of possible endings, and the correct ending as an index from 0 or as a text.

    Attributes:
      number: number of endings.
      context: field of the context.
      endings: field of the endings.
      label: field of the correct ending.
    """

    kind: ClassVar[str] = "choice"
    number: Annotated[int, ranges.Range(2, 1024)]
    context: str = "question"
    endings: str = "choices"
    label: str = "label"

    @property
    @override
    def num_texts(self) -> int:
        return 1 + self.number


def _check_labels(labels: tuple[str, ...]) -> None:
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise UserError(f"a source has form.labels {', '.join(labels) or '()'}: list at least two different labels")


def columns(kind: str) -> tuple[Column, ...]:
    """Returns the cache columns of examples with this kind of form."""
    return _COLUMNS[kind]


def keeps_offsets(form: Form) -> bool:
    """Whether the labels of a form refer to spans of the text."""
    return form.kind in ("tags", "span")


def record(form: Form, location: str, row: Row) -> Record:
    """Returns the record of a row; `location` is the name of the row in errors.

    Raises:
      BadRow: the row lacks a field, a field does not fit the form, or there is no text.
    """
    record = _RECORDS[form.kind](form, location, row)
    if not any(map(str.strip, record.texts)):
        # Rows skipped without an error are not counted.
        raise BadRow(f"{location} has no text: remove this row")
    return record


def label_index(value: Any, names: Sequence[str]) -> int | None:
    """Returns the index of a label among the names of a task's classes, or None if `value` is not a label.

    Args:
      value: a JSON value. It is a label if it is a name, or if it is a boolean or a number whose JSON text is a name.
        If no name looks like a number, an index from 0 is a label, too. Other values are not labels; for example, null
        is not the class "None".
    """
    name = json.dumps(value) if isinstance(value, bool | int | float) else value
    if isinstance(name, str) and name in names:
        return names.index(name)
    if isinstance(value, bool) or not isinstance(value, int) or any(map(_NUMBER.fullmatch, names)):
        return None
    return value if 0 <= value < len(names) else None


def _label(location: str, field: str, value: Any, labels: tuple[str, ...]) -> int:
    if isinstance(value, Cell) and value not in labels:
        value = value.value
    index = label_index(value, labels)
    if index is None:
        raise BadRow(
            f"{location} has {row_fields.brief(value)} in '{field}', which is not in form.labels: "
            f"{nearest(str(value), labels)}"
        )
    return index


def _one_or_two(form: ClassForm | LabelsForm | ScoreForm, location: str, row: Row) -> tuple[str, tuple[str, ...]]:
    """Returns the first text of a row, and a tuple with its second text, which is empty if the form has no `pair`."""
    return row_fields.text(location, row, form.text), (row_fields.text(location, row, form.pair),) if form.pair else ()


def _classes(form: ClassForm, location: str, row: Row) -> Record:
    label = _label(location, form.label, row_fields.raw(location, row, form.label), form.labels)
    return Record(*_one_or_two(form, location, row), values={"label": label})


def _labels(form: LabelsForm, location: str, row: Row) -> Record:
    values = row_fields.raw(location, row, form.field)
    if isinstance(values, str) and values not in form.labels and not isinstance(values := cell_value(values), list):
        values = [name.strip() for name in re.split("[,;|]", str(values)) if name.strip()]
    if not isinstance(values, list):
        values = [values]
    ids = sorted({_label(location, form.field, value, form.labels) for value in values})
    return Record(*_one_or_two(form, location, row), values={"labels": ids})


def _score(form: ScoreForm, location: str, row: Row) -> Record:
    score = row_fields.number(location, row, form.score)
    return Record(*_one_or_two(form, location, row), values={"score": score})


def _tags(form: TagForm, location: str, row: Row) -> Record:
    words, tags = row_fields.texts(location, row, form.words), row_fields.value(location, row, form.tags)
    if not isinstance(tags, list) or len(tags) != len(words):
        number = len(tags) if isinstance(tags, list) else "no"
        raise BadRow(f"{location} has {len(words)} words and {number} tags: expected a tag for each word")
    if not all(map(str.strip, words)):
        raise BadRow(f"{location} has an empty word in '{form.words}': remove it and its tag")
    begins, end = [], 0
    for word in words:
        begins.append(end)
        end += len(word) + 1
    ids = [_label(location, form.tags, tag, form.labels) for tag in tags]
    return Record(" ".join(words), (), values={"tags": ids, "word_begins": begins})


def _span(form: AnswerForm, location: str, row: Row) -> Record:
    context, question = row_fields.text(location, row, form.context), row_fields.text(location, row, form.question)
    begins, ends = [], []
    for text, begin in _answers(location, form.answers, row_fields.value(location, row, form.answers)):
        if not text.strip():
            raise BadRow(f"{location} has an answer without text in '{form.answers}': remove it")
        if begin < 0 or not context.startswith(text, begin):
            actual = context[max(begin, 0) :][: len(text)]
            raise BadRow(
                f"{location} has the answer {row_fields.brief(text)} at offset {begin}, but the context has "
                f"{row_fields.brief(actual)} there: fix the offset, in characters"
            )
        begins.append(begin)
        ends.append(begin + len(text))
    values = {
        "answer_begins": begins,
        "answer_ends": ends,
        "context_bytes": np.frombuffer(context.encode("utf-8"), np.uint8),
    }
    return Record(context, (question,), values=values)


def _answers(location: str, field: str, answers: Any) -> list[tuple[str, int]]:
    """Returns the text of each answer with the offset of its first character; raises `BadRow` for other values."""
    if isinstance(answers, Mapping):
        texts, starts = answers.get("text"), answers.get("answer_start")
    elif isinstance(answers, list) and all(isinstance(answer, Mapping) for answer in answers):
        texts = [answer.get("text") for answer in answers]
        starts = [answer.get("answer_start", answer.get("start")) for answer in answers]
    else:
        texts = starts = None
    if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
        pairs = list(zip(texts, starts, strict=True))
        if all(isinstance(text, str) and type(start) is int for text, start in pairs):
            return pairs
    raise BadRow(
        f"{location} has {row_fields.brief(answers)} in '{field}': expected a list of texts and starts, as in "
        '{"text": ["here"], "answer_start": [7]}'
    )


def _choice(form: ChoiceForm, location: str, row: Row) -> Record:
    choices, label = row_fields.texts(location, row, form.endings), row_fields.value(location, row, form.label)
    if len(choices) != form.number:
        raise BadRow(f"{location} has {len(choices)} choices, but form.number is {form.number}: make them equal")
    if isinstance(label, str) and choices.count(label) == 1:
        label = choices.index(label)
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < form.number:
        last = form.number - 1
        raise BadRow(
            f"{location} has {row_fields.brief(label)} in '{form.label}': expected 0 to {last}, or the text of one "
            "choice"
        )
    return Record(row_fields.text(location, row, form.context), tuple(choices), values={"label": label})


_RECORDS: dict[str, Callable[[Any, str, Row], Record]] = {
    "classes": _classes,
    "labels": _labels,
    "score": _score,
    "tags": _tags,
    "span": _span,
    "choice": _choice,
}


class LabeledSource(Source):
    """A source of labeled examples."""

    form: Form


@dataclass(frozen=True)
class LabeledTable(TableSource, LabeledSource):
    """Labeled examples in the rows of JSON Lines, CSV, TSV, Parquet or Arrow files.

    Attributes:
      path: path of the training files, as in `TextTable`.
      form: fields of an example and its kind of label.
      validation: path of the validation files; may be a glob; if empty, some of the training examples are held out.
    """

    kind: ClassVar[str] = "labeled_table"
    location_fields: ClassVar[tuple[str, ...]] = ("path", "validation")
    path: str
    form: Form
    validation: str = ""
    prompt: PromptConfig | None = None

    @property
    @override
    def columns(self) -> tuple[Column, ...]:
        return columns(self.form.kind)

    @property
    @override
    def keeps_offsets(self) -> bool:
        return keeps_offsets(self.form)

    @property
    @override
    def fields(self) -> set[str]:
        return self.form.fields | ({self.group} - {""})

    @override
    def _record(self, location: str, row: dict[str, Any]) -> Record:
        return record(self.form, location, row)
