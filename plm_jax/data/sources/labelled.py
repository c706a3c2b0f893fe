"""Sources of labelled examples: which fields of a row hold what, and rows as the texts and columns of the cache.

    config.LabelledJsonLines("train.jsonl", config.ClassForm(("negative", "positive"), text="sentence"), "test.jsonl")

An example's texts are the sentences of its document: a text and its pair; words, joined by spaces; a context and then
the question to it; a context and its choices. What is held out follows from the first. Its columns are, of each form:

    classes   label         the class
    score     score
    tags      tags          of each word, and `word_begins`, at which character of the text it begins
    span      answer_begins of each answer the character of the context with which it begins, `answer_ends`, up to
                            which it goes, and `context_bytes`, the context's UTF-8
    choice    label         which choice is right
"""

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
from plm_jax.data.sources.corpus import BadRow, Record
from plm_jax.data.sources.files import JsonSource
from plm_jax.data.sources.prompts import PromptConfig
from plm_jax.data.sources.source import Source

Row = Mapping[str, Any]

# Of a float32.
_MOST = float(np.finfo(np.float32).max)
_NUMBER = re.compile(r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*")
_LABEL = Column("label", "<i4", "document")
_COLUMNS = {
    "classes": (_LABEL,),
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
    """What the rows of a labelled source are; the fields say which of a row's hold it.

    Attributes:
      labels: names of the classes or tags, in the order of their ids; empty where there are none.
    """

    labels: tuple[str, ...] = ()

    @property
    def num_texts(self) -> int:
        """Number of texts of an example."""
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
    @override
    def num_texts(self) -> int:
        return 2 if self.pair else 1


@dataclass(frozen=True)
class ScoreForm(Form):
    """A text, or a pair of texts, and a number; `pair` as in `ClassForm`."""

    kind: ClassVar[str] = "score"
    text: str = "text"
    pair: str = ""
    score: str = "score"

    @property
    @override
    def num_texts(self) -> int:
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
    @override
    def num_texts(self) -> int:
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
    @override
    def num_texts(self) -> int:
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
    @override
    def num_texts(self) -> int:
        return 1 + self.number


def _check_labels(labels: tuple[str, ...]) -> None:
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise UserError(f"a source has form.labels {', '.join(labels) or '()'}: give at least two, none twice")


def columns(form: Form) -> tuple[Column, ...]:
    """What documents of a form bring along."""
    return _COLUMNS[form.kind]


def keeps_offsets(form: Form) -> bool:
    """Whether labels of a form are those of stretches of text."""
    return form.kind in ("tags", "span")


def record(form: Form, place: str, row: Row) -> Record:
    """The example that a row is; `place` is what errors call it.

    Raises:
      BadRow: it lacks a field, what it holds is not of the form, or it has no text.
    """
    found = _RECORDS[form.kind](form, place, row)
    if not any(map(str.strip, (found.text, *(found.others or ())))):
        raise BadRow(f"{place} has no text: leave it out")  # Left out unseen it would count nowhere.
    return found


def _field(place: str, row: Row, name: str) -> Any:
    if name not in row:
        raise BadRow(f"{place} has no field '{name}': {nearest(name, row)}")
    return row[name]


def _text(place: str, row: Row, name: str) -> str:
    text = _field(place, row, name)
    if not isinstance(text, str):
        raise BadRow(f"{place} has {_brief(text)} in '{name}': give a text")
    return text


def _texts(place: str, row: Row, name: str) -> list[str]:
    texts = _field(place, row, name)
    if not (isinstance(texts, list) and all(isinstance(text, str) for text in texts)):
        raise BadRow(f"{place} has {_brief(texts)} in '{name}': give a list of texts")
    return texts


def _brief(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:40]


def label_index(value: Any, names: Sequence[str]) -> int | None:
    """Returns the index of a label among the names of a task's classes, or None if it is not one of them.

    Args:
      value: a value of JSON: a name; true, false or a number that is a name as JSON writes it; or, where no name looks
        like a number, the index itself. Nothing else is a label: null is not the class "None".
    """
    name = json.dumps(value) if isinstance(value, bool | int | float) else value
    if isinstance(name, str) and name in names:
        return names.index(name)
    if isinstance(value, bool) or not isinstance(value, int) or any(map(_NUMBER.fullmatch, names)):
        return None
    return value if 0 <= value < len(names) else None


def _label(place: str, field: str, value: Any, labels: tuple[str, ...]) -> int:
    index = label_index(value, labels)
    if index is None:
        raise BadRow(f"{place} has {_brief(value)} in '{field}', none of form.labels: {nearest(str(value), labels)}")
    return index


def _one_or_two(form: ClassForm | ScoreForm, place: str, row: Row) -> tuple[str, tuple[str, ...]]:
    """The text of a row, and the one that it is paired with."""
    return _text(place, row, form.text), (_text(place, row, form.pair),) if form.pair else ()


def _classes(form: ClassForm, place: str, row: Row) -> Record:
    label = _label(place, form.label, _field(place, row, form.label), form.labels)
    return Record(*_one_or_two(form, place, row), values={"label": label})


def _score(form: ScoreForm, place: str, row: Row) -> Record:
    score = _field(place, row, form.score)
    if isinstance(score, bool) or not isinstance(score, int | float) or not -_MOST < score < _MOST:
        raise BadRow(f"{place} has {_brief(score)} in '{form.score}': give a number")
    return Record(*_one_or_two(form, place, row), values={"score": score})


def _tags(form: TagForm, place: str, row: Row) -> Record:
    words, tags = _texts(place, row, form.words), _field(place, row, form.tags)
    if not isinstance(tags, list) or len(tags) != len(words):
        number = len(tags) if isinstance(tags, list) else "no"
        raise BadRow(f"{place} has {len(words)} words and {number} tags: give a tag for each word")
    if not all(map(str.strip, words)):
        raise BadRow(f"{place} has an empty word in '{form.words}': leave it and its tag out")
    begins, at = [], 0
    for word in words:
        begins.append(at)
        at += len(word) + 1
    ids = [_label(place, form.tags, tag, form.labels) for tag in tags]
    return Record(" ".join(words), (), values={"tags": ids, "word_begins": begins})


def _span(form: AnswerForm, place: str, row: Row) -> Record:
    context, question = _text(place, row, form.context), _text(place, row, form.question)
    begins, ends = [], []
    for text, begin in _answers(place, form.answers, _field(place, row, form.answers)):
        if not text.strip():
            raise BadRow(f"{place} has an answer without text in '{form.answers}': leave it out")
        if begin < 0 or not context.startswith(text, begin):
            found = context[max(begin, 0) :][: len(text)]
            raise BadRow(
                f"{place} has the answer {_brief(text)} not at its offset: at {begin} of its context is {_brief(found)}"
            )
        begins.append(begin)
        ends.append(begin + len(text))
    values = {
        "answer_begins": begins,
        "answer_ends": ends,
        "context_bytes": np.frombuffer(context.encode("utf-8"), np.uint8),
    }
    return Record(context, (question,), values=values)


def _answers(place: str, field: str, answers: Any) -> list[tuple[str, int]]:
    """The text of each answer and the character with which it begins."""
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
        f"{place} has {_brief(answers)} in '{field}': give a list of texts and starts, as in "
        '{"text": ["here"], "answer_start": [7]}'
    )


def _choice(form: ChoiceForm, place: str, row: Row) -> Record:
    choices, label = _texts(place, row, form.endings), _field(place, row, form.label)
    if len(choices) != form.number:
        raise BadRow(f"{place} has {len(choices)} choices, form.number is {form.number}: give as many")
    if isinstance(label, str) and choices.count(label) == 1:
        label = choices.index(label)
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < form.number:
        most = form.number - 1
        raise BadRow(f"{place} has {_brief(label)} in '{form.label}': give 0 to {most}, or the text of one choice")
    return Record(_text(place, row, form.context), tuple(choices), values={"label": label})


_RECORDS: dict[str, Callable[[Any, str, Row], Record]] = {
    "classes": _classes,
    "score": _score,
    "tags": _tags,
    "span": _span,
    "choice": _choice,
}


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

    @property
    @override
    def columns(self) -> tuple[Column, ...]:
        return columns(self.form)

    @property
    @override
    def keeps_offsets(self) -> bool:
        return keeps_offsets(self.form)

    @override
    def _record(self, place: str, row: dict[str, Any]) -> Record:
        return record(self.form, place, row)
