"""Rows as prompts: the question of a row behind examples from the training split, and the answers to choose from.

What a prompt is, `config.PromptConfig` says. The examples before row i are a pure function of (seed, i, how many).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.config import files as pages
from plm_jax.data.labelled import tags
from plm_jax.data.layouts import randomness
from plm_jax.data.sources import files, labelled, rows, templates
from plm_jax.data.sources.corpus import BadRow, Record

# The index of a choice, as a template writes it.
_INDEX = re.compile(r"\d{1,9}", re.ASCII)


class PromptExample(NamedTuple):
    """A row as text.

    Attributes:
      question: what comes before the answer.
      choices: the answers among which one is right; empty: the answer is written.
      answers: those that are right; of choices the right one.
      right: the number of the right choice.
      value: of a source of scores the row's.
    """

    question: str
    choices: tuple[str, ...]
    answers: tuple[str, ...]
    right: int = 0
    value: float = 0.0


class PromptTask(NamedTuple):
    """A source whose rows are put to models.

    Attributes:
      name: what the user calls it.
      prompt: its templates.
      train: where examples come from; none is also in `tested`.
      tested: the rows of the split that is asked for.
      is_scored: whether each row has a score, which a choice is the number of.
    """

    name: str
    prompt: config.PromptConfig
    train: list[PromptExample]
    tested: list[PromptExample]
    is_scored: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """The choices that all rows have; empty where they have their own."""
        found = {example.choices for example in self.tested}
        return found.pop() if len(found) == 1 else ()


def source_of(run: config.Run | None, name: str) -> tuple[config.Source, float]:
    """The source that a user calls by this name and the share of it that is held out: the run's, else a page's.

    Pages are those of `configs/tasks`.

    Raises:
      UserError: there is neither.
    """
    if run is not None and name in run.data.sources:
        return run.data.sources[name], run.data.validation_fraction
    known = {page.removeprefix("tasks/"): page for page in pages.names() if page.startswith("tasks/")}
    if name not in known:
        sources = [] if run is None else list(run.data.sources)
        there = ", ".join(sorted({*sources, *known}))
        raise UserError(f"there is no task '{name}': name one of {there}, or by --config a page with a source of yours")
    page = pages.load(known[name])
    run = config.resolve(page.config().to_dict(), page.file)
    (source,) = run.data.sources.values()
    return source, run.data.validation_fraction


def task(run: config.Run | None, given: str) -> PromptTask:
    """What `SOURCE` (its validation split) or `SOURCE:SPLIT` asks of a model.

    Raises:
      UserError: an unknown source, one without a prompt or with one that its rows do not fit.
    """
    name, _, split = given.partition(":")
    source, fraction = source_of(run, name)
    prompt, make = _prompt_of(name, source), maker(name, source)

    def record(row: rows.SourceRow) -> Record:
        """Returns the record that `prepare` makes of a row, or one of its question if the row has no text."""
        if isinstance(source, config.JsonLines | config.Tfds) and not isinstance(row.fields.get(source.field), str):
            question = templates.render(prompt.question, *row, "question")
            return Record(question, group=files.group(*row, source))
        found = source.record(*row)
        if found is None:
            raise BadRow(f"{row.location} is a row that '{name}' leaves out")
        return found

    train, tested = (
        [make(row) for row in part] for part in rows.splits(name, source, split or "validation", fraction, record)
    )
    if not tested:
        raise UserError(f"'{given}' has no rows: name another split")
    # A row that stands in both files would be told its own answer.
    questions = {example.question for example in tested}
    kept = [example for example in train if example.question not in questions]
    return PromptTask(name, prompt, kept, tested, isinstance(getattr(source, "form", None), config.ScoreForm))


def _prompt_of(name: str, source: config.Source) -> config.PromptConfig:
    """Returns the prompt of a source.

    Raises:
      UserError: the source has no prompt.
    """
    if source.prompt is not None:
        return source.prompt
    form, problem = getattr(source, "form", None), "has no prompt"
    if getattr(form, "labels", ()) or isinstance(form, config.ChoiceForm):
        problem = "has choices and no template that they have in common"
    raise UserError(
        f"source '{name}' {problem}: give it one, as prompt=config.PromptConfig('Review: {{text}}\\nSentiment:')"
    )


def maker(name: str, source: config.Source) -> Callable[[rows.SourceRow], PromptExample]:
    """What makes an example of a row of the source that the config calls by this name.

    Raises:
      UserError: it has no prompt, or one that does not go with its form; later, a row that does not fit it.
    """
    prompt, form = _prompt_of(name, source), getattr(source, "form", None)
    if isinstance(form, config.ClassForm) and prompt.choices and len(prompt.choices) != len(form.labels):
        raise UserError(
            f"source '{name}' has {len(prompt.choices)} prompt.choices and {len(form.labels)} form.labels: give a "
            "choice for each label"
        )

    def make(row: rows.SourceRow) -> PromptExample:
        place, fields = row
        if isinstance(form, config.TagForm):
            fields = fields | {"text": labelled.record(form, place, fields).text}
        question = templates.render(prompt.question, place, fields, "prompt.question")
        choices = tuple(
            choice
            for template in prompt.choices
            for choice in templates.render_all(template, place, fields, "prompt.choices")
        )
        if not choices and isinstance(form, config.ClassForm | config.ChoiceForm):
            choices = form.labels or labelled.record(form, place, fields).other_texts
        if not choices:
            return PromptExample(question, (), _written(name, source, prompt, place, fields))
        if len(set(choices)) < max(2, len(choices)):
            raise BadRow(f"{place} has the choices {', '.join(choices)}: give at least two, none twice")
        if isinstance(form, config.ScoreForm):
            value = labelled.record(form, place, fields).values["score"]
            right = int(np.argmin([abs(_number(place, choice) - value) for choice in choices]))
            return PromptExample(question, choices, (choices[right],), right, value)
        right = _right(prompt, form, choices, place, fields)
        return PromptExample(question, choices, (choices[right],), right)

    return make


def _number(place: str, choice: str) -> float:
    """Returns the number that a choice of a scored task is."""
    try:
        number = float(choice)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadRow(f"{place} has the choice '{choice[:40]}', which is not a number: fix prompt.choices")
    return number


def _right(
    prompt: config.PromptConfig,
    form: config.Form | None,
    choices: tuple[str, ...],
    place: str,
    fields: Mapping[str, Any],
) -> int:
    """The number of the right choice."""
    if not prompt.answer and isinstance(form, config.ClassForm | config.ChoiceForm):
        return int(labelled.record(form, place, fields).values["label"])
    answer = templates.render(prompt.answer or "{label}", place, fields, "prompt.answer")
    index = labelled.label_index(answer, choices)
    if index is None and _INDEX.fullmatch(answer):
        index = labelled.label_index(int(answer), choices)
    if index is None:
        raise BadRow(f"{place} has the answer '{answer[:40]}', none of its {len(choices)} choices: fix prompt.answer")
    return index


def _written(
    name: str, source: config.Source, prompt: config.PromptConfig, place: str, fields: Mapping[str, Any]
) -> tuple[str, ...]:
    """The right answers of a row that is answered in words, of which examples show the first."""
    form = getattr(source, "form", None)
    template = prompt.answer or getattr(source, "targets", "")
    if template:
        found = templates.render_all(template, place, fields, "prompt.answer")
    elif isinstance(form, config.AnswerForm):
        record = labelled.record(form, place, fields)
        spans = zip(record.values["answer_begins"], record.values["answer_ends"], strict=True)
        found = tuple(record.text[begin:end] for begin, end in spans)
    elif isinstance(form, config.TagForm):
        found = (_entities(form, labelled.record(form, place, fields)),)
    elif isinstance(form, config.ScoreForm):
        found = (f"{labelled.record(form, place, fields).values['score']:g}",)
    else:
        raise UserError(f"source '{name}' has a prompt without choices or answer: set prompt.answer, as '{{answer}}'")
    return tuple(dict.fromkeys(found)) or ("",)


def _entities(form: config.TagForm, record: Any) -> str:
    """The entities of a sentence in words, as `Bank (ORG), Austin (LOC)`."""
    words = record.text.split(" ")
    found = tags.entities([form.labels[tag] for tag in record.values["tags"]])
    return ", ".join(f"{' '.join(words[first : last + 1])} ({kind})" for kind, first, last in found) or "none"


class Drawer:
    """Draws the examples before each row of a task."""

    def __init__(self, task: PromptTask, shots: int, seed: int, balanced: bool = False):
        """`balanced`: of each choice as many as of any other, or one more.

        Raises:
          UserError: fewer rows than that in the training split, or choices that rows do not have in common.
        """
        self._task, self._shots, self._seed = task, shots, seed
        self._groups = [range(len(task.train))]
        if balanced and shots:
            if not task.labels:
                raise UserError(f"'{task.name}' has no choices that all rows have in common: leave out --balanced")
            found = [[i for i, of in enumerate(task.train) if of.right == label] for label in range(len(task.labels))]
            self._groups = [np.array(group) for group in found]
        most = min(map(len, self._groups)) * len(self._groups)
        if shots > most:
            of = f"{most} of which are balanced, " if balanced else ""
            raise UserError(
                f"{shots} shots are more than the training split of '{task.name}' has: {len(task.train)} rows, {of}"
                "none of them tested; give fewer"
            )

    def __call__(self, number: int) -> list[PromptExample]:
        """The examples before the row of this number, in their order."""
        if not self._shots:
            return []
        rng, count = randomness.generator(self._seed, "shots", number, self._shots), len(self._groups)
        sizes = self._shots // count + (rng.permutation(count) < self._shots % count)
        found = [rng.choice(len(group), size, replace=False) for group, size in zip(self._groups, sizes, strict=True)]
        chosen = np.concatenate([np.asarray(group)[at] for group, at in zip(self._groups, found, strict=True)])
        return [self._task.train[i] for i in rng.permutation(chosen)]


def context(prompt: config.PromptConfig, shots: Sequence[PromptExample], question: str) -> str:
    """The text behind which the answer comes."""
    told = [f"{shot.question}{prompt.delimiter}{shot.answers[0]}" for shot in shots]
    return "".join(f"{part}{prompt.separator}" for part in (prompt.introduction, *told) if part) + question


class Asked(NamedTuple):
    """A row as it is put to a model.

    Attributes:
      context: the text behind which the answer comes.
      dropped: how many examples at its begin had no room.
      is_cut: whether not even the question has room, which then loses its begin.
    """

    context: str
    dropped: int
    is_cut: bool


def fitted(
    prompt: config.PromptConfig, shots: Sequence[PromptExample], question: str, size: Callable[[str], int], room: int
) -> Asked:
    """The prompt of a row with the last examples that have room; `size` counts the tokens of a text."""
    found = context(prompt, shots, question)
    dropped = 0
    while (tokens := size(found)) > room and dropped < len(shots):
        dropped += 1
        found = context(prompt, shots[dropped:], question)
    return Asked(found, dropped, tokens > room)
