"""Prompts from rows: examples from the training split, the question of a row, and the answers to choose from.

`config.PromptConfig` defines the templates. The examples in the prompt of a row depend on a seed, the index of the row
and the number of examples, and not on the model.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.config import files as config_files
from plm_jax.data.labeled import tags
from plm_jax.data.layouts import randomness
from plm_jax.data.sources import files, labeled, row_fields, rows, templates
from plm_jax.data.sources.corpus import BadRow, Record

# Index of a choice in the output of a template.
_INDEX = re.compile(r"\d{1,9}", re.ASCII)


class PromptExample(NamedTuple):
    """Texts of a row.

    Attributes:
      question: text before the answer.
      choices: answers to choose from; empty if the model generates the answer.
      answers: correct answers; with choices, only the correct choice.
      right: index of the correct choice; 0 without choices.
      value: score of the row; 0 if the source has no scores or the prompt has no choices.
    """

    question: str
    choices: tuple[str, ...]
    answers: tuple[str, ...]
    right: int = 0
    value: float = 0.0


class PromptTask(NamedTuple):
    """Source whose rows are presented as prompts.

    Attributes:
      name: name of the source.
      prompt: templates.
      train: rows from which examples are drawn. Rows whose question also occurs in `tested` are left out.
      tested: rows of the split that is evaluated.
      is_scored: whether rows have a score instead of a label. If there are choices, they are then numbers.
    """

    name: str
    prompt: config.PromptConfig
    train: list[PromptExample]
    tested: list[PromptExample]
    is_scored: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """Choices of all tested rows; empty if the choices differ between rows, or if there are none."""
        choices = {example.choices for example in self.tested}
        return choices.pop() if len(choices) == 1 else ()


def find_source(run: config.Run | None, name: str) -> tuple[config.Source, float]:
    """Finds a source by its name, first in the run and then in `configs/tasks`.

    Returns:
      A pair: the source, and the fraction of the training data that is held out if the source has no validation split.

    Raises:
      UserError: neither the run nor `configs/tasks` has a source of this name.
    """
    if run is not None and name in run.data.sources:
        return run.data.sources[name], run.data.validation_fraction
    task_files = {file.removeprefix("tasks/"): file for file in config_files.names() if file.startswith("tasks/")}
    if name not in task_files:
        sources = [] if run is None else list(run.data.sources)
        accepted = ", ".join(sorted({*sources, *task_files}))
        raise UserError(
            f"there is no task '{name}': use one of {accepted}, or pass a config with such a source as --config"
        )
    config_file = config_files.load(task_files[name])
    run = config.resolve(config_file.config().to_dict(), config_file.file)
    (source,) = run.data.sources.values()
    return source, run.data.validation_fraction


def load_task(run: config.Run | None, task_name: str) -> PromptTask:
    """Loads the prompts of a task: `SOURCE` (its validation split) or `SOURCE:SPLIT`.

    Raises:
      UserError: the source is unknown or has no prompt, or its rows do not fit the prompt.
    """
    name, _, split = task_name.partition(":")
    source, fraction = find_source(run, name)
    prompt, make_example = _prompt_of(name, source), example_builder(name, source)

    def record(row: rows.SourceRow) -> Record:
        """Returns the record that `prepare` makes of a row; for a row without a document, a record of its question."""
        if isinstance(source, config.TextTable | config.Tfds) and not isinstance(row.fields.get(source.field), str):
            question = templates.render(prompt.question, *row, "question")
            return Record(question, group=files.group(*row, source))
        result = source.record(*row)
        if result is None:
            raise BadRow(f"{row.location} is a row that '{name}' skips")
        return result

    train, tested = (
        [make_example(row) for row in split_rows]
        for split_rows in rows.splits(name, source, split or "validation", fraction, record)
    )
    if not tested:
        raise UserError(f"'{task_name}' has no rows: name another split")
    # A row that is in both splits would see its own answer.
    questions = {example.question for example in tested}
    examples = [example for example in train if example.question not in questions]
    return PromptTask(name, prompt, examples, tested, isinstance(getattr(source, "form", None), config.ScoreForm))


def _prompt_of(name: str, source: config.Source) -> config.PromptConfig:
    """Returns the prompt of a source.

    Raises:
      UserError: the source has no prompt.
    """
    if source.prompt is not None:
        return source.prompt
    form, problem = getattr(source, "form", None), "has no prompt"
    if getattr(form, "labels", ()) or isinstance(form, config.ChoiceForm):
        problem = "has choices but no common template"
    raise UserError(
        f"source '{name}' {problem}: set one, such as prompt=config.PromptConfig('Review: {{text}}\\nSentiment:')"
    )


def example_builder(name: str, source: config.Source) -> Callable[[rows.SourceRow], PromptExample]:
    """Returns a function that builds the `PromptExample` of a row.

    Raises:
      UserError: the source has no prompt, or the prompt does not fit the form of the source. The returned function also
        raises a `UserError` if a row does not fit the prompt.
    """
    prompt, form = _prompt_of(name, source), getattr(source, "form", None)
    if isinstance(form, config.ClassForm) and prompt.choices and len(prompt.choices) != len(form.labels):
        raise UserError(
            f"source '{name}' has {len(prompt.choices)} prompt.choices and {len(form.labels)} form.labels: use one "
            "choice per label"
        )

    def make(row: rows.SourceRow) -> PromptExample:
        location, fields = row
        if isinstance(form, config.TagForm):
            fields = fields | {"text": labeled.record(form, location, fields).text}
        question = templates.render(prompt.question, location, fields, "prompt.question")
        choices = tuple(
            choice
            for template in prompt.choices
            for choice in templates.render_all(template, location, fields, "prompt.choices")
        )
        if not choices and isinstance(form, config.ClassForm | config.ChoiceForm):
            choices = form.labels or labeled.record(form, location, fields).other_texts
        if not choices:
            return PromptExample(question, (), _written(name, source, prompt, location, fields))
        if len(set(choices)) < max(2, len(choices)):
            raise BadRow(f"{location} has the choices {', '.join(choices)}: at least two are needed, all different")
        if isinstance(form, config.ScoreForm):
            value = labeled.record(form, location, fields).values["score"]
            right = int(np.argmin([abs(_number(location, choice) - value) for choice in choices]))
            return PromptExample(question, choices, (choices[right],), right, value)
        right = _right(prompt, form, choices, location, fields)
        return PromptExample(question, choices, (choices[right],), right)

    return make


def _number(location: str, choice: str) -> float:
    """Converts a choice to a number, for a task whose rows have scores.

    Raises:
      BadRow: the choice is not a finite number.
    """
    try:
        number = float(choice)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadRow(f"{location} has the choice {row_fields.brief(choice)}, which is not a number: fix prompt.choices")
    return number


def _right(
    prompt: config.PromptConfig,
    form: config.Form | None,
    choices: tuple[str, ...],
    location: str,
    fields: Mapping[str, Any],
) -> int:
    """Returns the index of the correct choice."""
    if not prompt.answer and isinstance(form, config.ClassForm | config.ChoiceForm):
        return int(labeled.record(form, location, fields).values["label"])
    answer = templates.render(prompt.answer or "{label}", location, fields, "prompt.answer")
    index = labeled.label_index(answer, choices)
    if index is None and _INDEX.fullmatch(answer):
        index = labeled.label_index(int(answer), choices)
    if index is None:
        raise BadRow(
            f"{location} has the answer {row_fields.brief(answer)}, which is not one of its {len(choices)} choices: "
            "fix prompt.answer"
        )
    return index


def _written(
    name: str, source: config.Source, prompt: config.PromptConfig, location: str, fields: Mapping[str, Any]
) -> tuple[str, ...]:
    """Returns the correct answers of a row without choices. Examples in prompts show the first answer."""
    form = getattr(source, "form", None)
    template = prompt.answer or getattr(source, "targets", "")
    if template:
        answers = templates.render_all(template, location, fields, "prompt.answer")
    elif isinstance(form, config.AnswerForm):
        record = labeled.record(form, location, fields)
        spans = zip(record.values["answer_begins"], record.values["answer_ends"], strict=True)
        answers = tuple(record.text[begin:end] for begin, end in spans)
    elif isinstance(form, config.TagForm):
        answers = (_entities(form, labeled.record(form, location, fields)),)
    elif isinstance(form, config.ScoreForm):
        answers = (f"{labeled.record(form, location, fields).values['score']:g}",)
    else:
        raise UserError(
            f"source '{name}' has a prompt without choices or answer: set prompt.answer, such as '{{answer}}'"
        )
    return tuple(dict.fromkeys(answers)) or ("",)


def _entities(form: config.TagForm, record: Any) -> str:
    """Returns the entities of a sentence as text, such as `Bank (ORG), Austin (LOC)`; `none` without entities."""
    words = record.text.split(" ")
    entities = tags.entities([form.labels[tag] for tag in record.values["tags"]])
    return ", ".join(f"{' '.join(words[first : last + 1])} ({kind})" for kind, first, last in entities) or "none"


class ShotSampler:
    """Sampler of the few-shot examples in the prompt of each row of a task."""

    def __init__(self, task: PromptTask, shots: int, seed: int, balanced: bool = False):
        """Checks that the training split has enough rows.

        Args:
          shots: number of examples in each prompt.
          seed: seed with which the examples are drawn.
          balanced: whether examples are drawn evenly over the choices, so that the numbers of examples per choice
            differ by at most one.

        Raises:
          UserError: the training split has too few rows, or balanced examples cannot be drawn because the choices
            differ between rows.
        """
        self._task, self._shots, self._seed = task, shots, seed
        self._groups = [range(len(task.train))]
        if balanced and shots:
            if not task.labels:
                raise UserError(f"the choices of '{task.name}' differ from row to row: leave out --balanced")
            indices_by_choice = [
                [i for i, example in enumerate(task.train) if example.right == label]
                for label in range(len(task.labels))
            ]
            self._groups = [np.array(group) for group in indices_by_choice]
        available = min(map(len, self._groups)) * len(self._groups)
        if shots > available:
            limit = f", enough for {available} balanced shots" if balanced else ""
            raise UserError(
                f"--shots={shots}: the training split of '{task.name}' has only {len(task.train)} rows that are not "
                f"tested{limit}: lower --shots"
            )

    def __call__(self, number: int) -> list[PromptExample]:
        """Returns the examples in the prompt of the row with index `number`, in order."""
        if not self._shots:
            return []
        rng, count = randomness.generator(self._seed, "shots", number, self._shots), len(self._groups)
        sizes = self._shots // count + (rng.permutation(count) < self._shots % count)
        picks = [rng.choice(len(group), size, replace=False) for group, size in zip(self._groups, sizes, strict=True)]
        chosen = np.concatenate([np.asarray(group)[picked] for group, picked in zip(self._groups, picks, strict=True)])
        return [self._task.train[i] for i in rng.permutation(chosen)]


def build_context(prompt: config.PromptConfig, shots: Sequence[PromptExample], question: str) -> str:
    """Returns the text before the answer: the introduction, the examples and the question."""
    rendered = [f"{shot.question}{prompt.delimiter}{shot.answers[0]}" for shot in shots]
    return "".join(f"{part}{prompt.separator}" for part in (prompt.introduction, *rendered) if part) + question


class FittedPrompt(NamedTuple):
    """Prompt with as many examples as fit into a model's context.

    Attributes:
      context: text that precedes the answer.
      dropped: number of examples that were dropped from the front of the prompt.
      is_cut: whether the prompt is too long even without examples, so that its first tokens will be cut.
    """

    context: str
    dropped: int
    is_cut: bool


def fit_prompt(
    prompt: config.PromptConfig,
    shots: Sequence[PromptExample],
    question: str,
    count_tokens: Callable[[str], int],
    room: int,
) -> FittedPrompt:
    """Builds a prompt. Drops examples from the front until the prompt fits or no example is left.

    Args:
      count_tokens: function that returns the number of tokens of a text.
      room: number of tokens that fit.
    """
    text = build_context(prompt, shots, question)
    dropped = 0
    while (num_tokens := count_tokens(text)) > room and dropped < len(shots):
        dropped += 1
        text = build_context(prompt, shots[dropped:], question)
    return FittedPrompt(text, dropped, num_tokens > room)
