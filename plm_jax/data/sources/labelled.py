"""Rows of labelled sources as the texts and columns of the cache.

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
from typing import Any

import numpy as np

from plm_jax import config
from plm_jax.common.errors import nearest
from plm_jax.data.cache.columns import Column
from plm_jax.data.sources.corpus import BadRow, Record

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


def columns(form: config.Form) -> tuple[Column, ...]:
    """What documents of a form bring along."""
    return _COLUMNS[form.kind]


def keeps_offsets(form: config.Form) -> bool:
    """Whether labels of a form are those of stretches of text."""
    return form.kind in ("tags", "span")


def record(form: config.Form, place: str, row: Row) -> Record:
    """The example that a row is; `place` is what errors call it.

    Raises:
      BadRow: it lacks a field, what it holds is not of the form, or it has no text.
    """
    found = _RECORDS[form.kind](form, place, row)
    if not any(map(str.strip, (found.text, *found.others))):
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
    is_index = type(value) is int and not any(map(_NUMBER.fullmatch, names))
    return value if is_index and 0 <= value < len(names) else None


def _label(place: str, field: str, value: Any, labels: tuple[str, ...]) -> int:
    index = label_index(value, labels)
    if index is None:
        raise BadRow(f"{place} has {_brief(value)} in '{field}', none of form.labels: {nearest(str(value), labels)}")
    return index


def _one_or_two(form: config.ClassForm | config.ScoreForm, place: str, row: Row) -> tuple[str, tuple[str, ...]]:
    """The text of a row, and the one that it is paired with."""
    return _text(place, row, form.text), (_text(place, row, form.pair),) if form.pair else ()


def _classes(form: config.ClassForm, place: str, row: Row) -> Record:
    label = _label(place, form.label, _field(place, row, form.label), form.labels)
    return Record(*_one_or_two(form, place, row), values={"label": label})


def _score(form: config.ScoreForm, place: str, row: Row) -> Record:
    score = _field(place, row, form.score)
    if isinstance(score, bool) or not isinstance(score, int | float) or not -_MOST < score < _MOST:
        raise BadRow(f"{place} has {_brief(score)} in '{form.score}': give a number")
    return Record(*_one_or_two(form, place, row), values={"score": score})


def _tags(form: config.TagForm, place: str, row: Row) -> Record:
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


def _span(form: config.AnswerForm, place: str, row: Row) -> Record:
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
    are_lists = isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts)
    if are_lists and all(isinstance(text, str) for text in texts) and all(type(start) is int for start in starts):
        return list(zip(texts, starts, strict=True))
    raise BadRow(
        f"{place} has {_brief(answers)} in '{field}': give a list of texts and starts, as in "
        '{"text": ["here"], "answer_start": [7]}'
    )


def _choice(form: config.ChoiceForm, place: str, row: Row) -> Record:
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
