"""Writes the config of a fine-tuning run from a table, the names of its columns and a checkpoint."""

import collections
import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plm_jax import config
from plm_jax.common import overrides, storage
from plm_jax.common.errors import UserError
from plm_jax.data.sources import row_fields, tables
from plm_jax.hub import families
from plm_jax.hub.pretrained import Pretrained
from plm_jax.runs import model_text

# Recipes of `configs/tasks/recipes.py` by Hugging Face's family; BERT's for all others.
RECIPES = {"roberta": "roberta", "electra": "electra", "openai-gpt": "gpt1", "bart": "bart"}
# Arguments of objectives by recipe.
_RECIPE_SETTINGS = {"gpt1": "**recipes.RECIPES['gpt1'].objective"}
_BATCH_SIZE = 32  # Of every recipe.
_MAX_LABELS = 1000
_MAX_FRACTIONS = 20  # More classes that are not whole numbers are scores.
_MIN_EQUAL = 20  # Rows, of which two must have the same class.
_MAX_SHOWN = 20  # Labels that are printed with their counts.
# Rows whose texts are tokenized to choose the length, and the share of them that need not be truncated.
_SAMPLE_ROWS, _SHARE_WHOLE = 2000, 0.99
_LENGTH_MULTIPLE, _SPAN_LENGTH, _DEFAULT_MAX = 16, 384, 512
_FILE = '''"""Fine-tuning on {train}, written by `plm_jax finetune --train`.

Edit a copy of this file and pass it as --config. Fields are listed by `plm_jax config --config={name}`.
"""

from plm_jax import config, objectives
from plm_jax.configs.tasks import recipes

SETTINGS = {{
{settings}
}}


def get_config():
    """Returns the run."""
    source = config.LabeledTable(
        {path!r},
        config.{form},
        validation={validation!r},
    )
    run = recipes.run({recipe!r}, objectives.{objective}, {{{source!r}: source}}, length={length})
    return config.overridden(run, SETTINGS)
'''
_SETTINGS = re.compile(r"^SETTINGS = \{.*?^\}$", re.MULTILINE | re.DOTALL)
# Fields of the recipe that the file shows.
_SHOWN = ("schedule.learning_rate", "train.epochs", "train.batch_size")
_OBJECTIVES = {
    "classes": "Classification",
    "labels": "MultiLabelClassification",
    "score": "Regression",
    "tags": "Tagging",
    "span": "SpanExtraction",
    "choice": "MultipleChoice",
}


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a table, as the flags of `finetune` name them; empty if the table has no such column.

    Attributes:
      text: columns of the texts, one or two.
      label, labels, score, tags, choices: columns of a class, of several labels, of a number, of a tag for each word,
        and of the choices among which `label` is the correct one.
      question, context, answer: columns of questions about contexts.
    """

    text: tuple[str, ...] = ()
    label: str = ""
    labels: str = ""
    score: str = ""
    tags: str = ""
    choices: str = ""
    question: str = ""
    context: str = ""
    answer: str = ""

    @property
    def kind(self) -> str:
        """Kind of the form.

        Raises:
          UserError: the columns are not those of one form.
        """
        targets = {name: getattr(self, name) for name in ("label", "labels", "score", "tags", "answer")}
        named = [name for name, column in targets.items() if column]
        if len(named) != 1:
            raise UserError(
                f"{' and '.join(f'--{name}' for name in named) or 'no column of labels'}: pass one of --label, "
                "--labels, --score, --tags and --answer"
            )
        if self.choices and named != ["label"]:
            raise UserError("--choices needs --label, the column of the correct choice")
        kind = {"label": "choice" if self.choices else "classes", "answer": "span"}.get(named[0], named[0])
        self._check_texts(kind)
        return kind

    def _check_texts(self, kind: str) -> None:
        """Rejects missing and superfluous columns of texts."""
        if kind == "span":
            if not (self.question and self.context) or self.text:
                raise UserError("--answer needs --question and --context, and no --text")
            return
        if self.question or self.context:
            raise UserError("--question and --context need --answer")
        most = 2 if kind in ("classes", "labels", "score") else 1
        if not 1 <= len(self.text) <= most:
            raise UserError(f"--text names {len(self.text)} columns: pass {'one or two' if most == 2 else 'one'}")

    def form(self) -> dict[str, str]:
        """Returns the fields of the form that are names of columns."""
        kind = self.kind
        if kind == "span":
            return {"question": self.question, "context": self.context, "answers": self.answer}
        if kind == "tags":
            return {"words": self.text[0], "tags": self.tags}
        if kind == "choice":
            return {"context": self.text[0], "endings": self.choices, "label": self.label}
        target = {"classes": "label", "labels": "field", "score": "score"}[kind]
        texts = dict(zip(("text", "pair"), self.text, strict=False))
        return {**texts, target: self.label or self.labels or self.score}


def write(
    path: str,
    train: str,
    validation: str,
    columns: Columns,
    pretrained: Pretrained,
    changes: Sequence[tuple[str, str]] = (),
) -> list[str]:
    """Writes the config file of a fine-tuning run.

    Args:
      path: path of the config file.
      train, validation: paths of the tables; `validation` may be empty.
      pretrained: the model, without its weights.
      changes: overrides of fields by flags, which the file contains.

    Returns:
      Lines to print: the labels of the training table with their counts, and the path if the file is new.

    Raises:
      UserError: a table cannot be read or lacks a column, the labels are not labels, a label occurs only in
        `validation`, or the path has another config.
    """
    kind = columns.kind
    rows = _Rows(kind, columns)
    rows.read(train)
    if validation:
        rows.check(validation, train)
    name = _source_name(train)
    length = _SPAN_LENGTH if kind == "span" else rows.length(pretrained)
    length = min(length, pretrained.max_length or length)
    recipe = RECIPES.get(_family_kind(pretrained), "bert")
    settings = {name: repr(value) for name, value in {**rows.form_settings(), **columns.form()}.items()}
    form = {"classes": "ClassForm", "labels": "LabelsForm", "score": "ScoreForm", "tags": "TagForm"}.get(kind)
    form = form or {"span": "AnswerForm", "choice": "ChoiceForm"}[kind]
    arguments = rows.objective_settings(length), _RECIPE_SETTINGS.get(recipe)
    template = functools.partial(
        _FILE.format,
        train=os.path.basename(train),
        name=os.path.basename(path),
        path=storage.absolute(train),
        validation=validation and storage.absolute(validation),
        form=f"{form}({', '.join(f'{name}={value}' for name, value in settings.items())})",
        recipe=recipe,
        objective=f"{_OBJECTIVES[kind]}({', '.join(filter(None, arguments))})",
        source=name,
        length=length,
    )
    content = _with_settings(template, path, rows.validation_interval(), changes)
    lines = [f"labels of {train}: {counts}"] if (counts := rows.label_counts()) else []
    if storage.exists(path):
        _check_equal(path, content)
        return lines
    storage.write(path, content.encode("utf-8"))
    return [*lines, f"wrote {path}"]


def _check_equal(path: str, content: str) -> None:
    """Raises a `UserError` if the config file at a path has another content."""
    existing = storage.read(path).decode("utf-8")
    if existing == content:
        return
    if _SETTINGS.sub("", existing) == _SETTINGS.sub("", content):
        raise UserError(
            f"the SETTINGS of {path} differ from those of this table and these flags: pass --config={path} and the "
            "flags instead of --train, or another --workdir"
        )
    raise UserError(
        f"{path} was written for another table or other flags, or edited: pass --config={path} instead of --train, or "
        "another --workdir"
    )


def _with_settings(template: Callable[..., str], path: str, every: int, changes: Sequence[tuple[str, str]]) -> str:
    """Returns the config file at a path with the values of the recipe and of flags.

    Args:
      template: function from the lines of SETTINGS to the file.
      every: steps between validations.
    """
    settings = {
        "evaluation.every": every,
        "data.cache_dir": os.path.join(os.path.dirname(storage.absolute(path)), "cache"),
    }
    variables: dict[str, Any] = {}
    exec(template(settings=_lines(settings)), variables)
    tree = overrides.apply(variables["get_config"]().to_dict(), changes, config.Run)
    names = [re.sub(r"\[(\d+)\]", r".\1", name) for name, _ in changes]
    run = config.resolve(tree, path, names, replaces_model=True)
    resolved = config.to_dict(run)
    return template(
        settings=_lines({name: _field(resolved, name) for name in dict.fromkeys([*_SHOWN, *settings, *names])})
    )


def _lines(settings: Mapping[str, Any]) -> str:
    return "\n".join(f"    {name!r}: {value!r}," for name, value in settings.items())


def _field(tree: Any, name: str) -> Any:
    """Returns the value at a dotted path of a tree."""
    for part in name.split("."):
        tree = tree[int(part) if isinstance(tree, list | tuple) else part]
    return tree


class _Rows:
    """Labels, sizes and texts of the rows of tables."""

    def __init__(self, kind: str, columns: Columns):
        self._kind, self._columns = kind, columns
        self._labels: collections.Counter[str] = collections.Counter()
        self._sample: list[tuple[str, ...]] = []
        self._count, self._num_choices, self._can_be_empty = 0, 0, False

    def read(self, path: str) -> None:
        """Reads the training table.

        Raises:
          UserError: the table is missing, damaged or empty, lacks a column, or has too many labels.
        """
        for location, row in self._rows(path):
            self._labels.update(self._labels_of(location, row))
            if len(self._labels) > _MAX_LABELS:
                raise UserError(
                    f"column '{self._label_column}' has more than {_MAX_LABELS} different values by {location}: pass "
                    "--score for numbers, or another column"
                )
            self._count += 1
            if len(self._sample) < _SAMPLE_ROWS:
                self._sample.append(self._texts(row))

    def check(self, path: str, train: str) -> None:
        """Reads the validation table of the training table `train`.

        Raises:
          UserError: the table is missing, damaged or empty, lacks a column, or has a label that `train` lacks.
        """
        for location, row in self._rows(path):
            for label in self._labels_of(location, row):
                if label not in self._labels:
                    raise UserError(
                        f"{location} has {row_fields.brief(label)} in '{self._label_column}', which no row of "
                        f"{train} has: fix or remove this row, or add examples of it to the training table"
                    )

    def _rows(self, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yields the location and the fields of each row of a table, after a check of its columns."""
        names = [value for value in self._columns.form().values() if value]
        is_empty = True
        for location, row in tables.read_rows(path, names, names):
            for name in names:
                if name not in row:
                    raise UserError(tables.missing_column(location, row, name))
            is_empty = False
            if self._kind == "choice":
                choices = tables.cell_value(row[self._columns.choices])
                self._num_choices = max(self._num_choices, len(choices) if isinstance(choices, list) else 0)
            elif self._kind == "span":
                answers = tables.cell_value(row[self._columns.answer])
                texts = answers.get("text") if isinstance(answers, Mapping) else answers
                self._can_be_empty |= not texts
            yield location, row
        if is_empty:
            raise UserError(f"{path} has no rows: add examples, or pass another file")

    @property
    def _label_column(self) -> str:
        return self._columns.label or self._columns.labels or self._columns.tags

    def _labels_of(self, location: str, row: Mapping[str, Any]) -> list[str]:
        """Returns the names of the labels of a row."""
        if self._kind not in ("classes", "labels", "tags"):
            return []
        column = self._label_column
        content = row[column]
        values = [content] if self._kind == "classes" else tables.cell_value(content)
        if self._kind == "labels" and not isinstance(values, list):
            values = re.split("[,;|]", content) if isinstance(content, str) else [] if content is None else [content]
        if not isinstance(values, list):
            raise UserError(f"{location} has {row_fields.brief(content)} in '{column}': expected a list of labels")
        if self._kind == "labels":
            stripped = [value.strip() if isinstance(value, str) else value for value in values]
            values = [value for value in stripped if value != ""]
        for value in values:
            if value is None or value == "" or isinstance(value, list | Mapping):
                raise UserError(f"{location} has {row_fields.brief(value)} in '{column}': expected a label")
        return [value if isinstance(value, str) else json.dumps(value) for value in values]

    def _texts(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        columns = self._columns
        values = [tables.cell_value(row[name]) if self._kind == "tags" else row[name] for name in columns.text]
        texts = [" ".join(map(str, value)) if isinstance(value, list) else str(value or "") for value in values]
        if self._kind == "choice":
            choices = tables.cell_value(row[columns.choices])
            texts.append(max(map(str, choices), key=len, default="") if isinstance(choices, list) else "")
        return tuple(texts)

    def form_settings(self) -> dict[str, Any]:
        """Returns the fields of the form that depend on the rows.

        Raises:
          UserError: there are fewer than two labels or choices, or so many fractional numbers that they must be scores.
        """
        if self._kind == "choice":
            if self._num_choices < 2:
                raise UserError(f"column '{self._columns.choices}' has no lists of choices: pass another column")
            return {"number": self._num_choices}
        if self._kind not in ("classes", "labels", "tags"):
            return {}
        if len(self._labels) < 2:
            problem = "has only one label" if self._labels else "has no labels"
            raise UserError(f"column '{self._label_column}' {problem}: at least 2 different ones are needed")
        if self._kind == "classes" and sum(map(_is_fraction, self._labels)) > _MAX_FRACTIONS:
            column = self._columns.label
            raise UserError(
                f"column '{column}' has {len(self._labels)} different numbers: pass --score={column} instead of "
                "--label to predict numbers"
            )
        if self._kind == "classes" and _MIN_EQUAL <= self._count == len(self._labels):
            raise UserError(
                f"column '{self._columns.label}' has a different value in every row: pass the column of labels"
            )
        return {"labels": tuple(sorted(self._labels, key=_label_order))}

    def label_counts(self) -> str:
        """Returns the labels of the training table with their counts, the most frequent first; "" without labels."""
        counts = self._labels.most_common(_MAX_SHOWN)
        more = len(self._labels) - len(counts)
        return ", ".join([f"{label} {count:,}" for label, count in counts] + ([f"{more} more"] if more else []))

    def objective_settings(self, length: int) -> str:
        """Returns the arguments of the objective that depend on the rows and their length."""
        if self._kind == "labels":
            return f"num_labels={len(self._labels)}"
        if self._kind == "choice":
            return f"num_choices={self._num_choices}"
        settings = ["unanswerable=True"] if self._can_be_empty else []
        if self._kind == "span" and length < _SPAN_LENGTH:
            settings += [f"stride={length // 3}", f"question_length={length // 4}"]
        return ", ".join(settings)

    def length(self, pretrained: Pretrained) -> int:
        """Returns a length of rows in which nearly all texts fit."""
        vocabulary = model_text.vocabulary(pretrained)
        sizes = [sum(len(vocabulary.encode(text)) for text in texts) for texts in self._sample]
        # Pairs have at most four special tokens.
        longest = int(np.quantile(sizes, _SHARE_WHOLE, method="higher")) + 4
        rounded = math.ceil(longest / _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
        return min(rounded, pretrained.max_length or _DEFAULT_MAX)

    def validation_interval(self) -> int:
        """Returns the number of steps between validations: half an epoch, at most 100 steps."""
        return max(1, min(100, self._count // _BATCH_SIZE // 2))


def _is_fraction(label: str) -> bool:
    """Whether a label is a number that is not whole."""
    try:
        return not float(label).is_integer()
    except ValueError:
        return False


def _label_order(label: str) -> tuple[Any, ...]:
    """Returns the sort key of a label: `O` first, numbers by value, tags by their type and then B before I."""
    try:
        return (1, float(label), "")
    except ValueError:
        prefix, dash, kind = label.partition("-")
        is_tag = bool(dash) and prefix in ("B", "I")
        return (0 if label == "O" else 2, 0.0, (kind, prefix) if is_tag else (label, ""))


def _source_name(path: str) -> str:
    """Returns a name for the source of a file: its name without extensions, as an identifier."""
    stem = os.path.basename(path.rstrip("/")).partition(".")[0]
    name = re.sub(r"\W", "_", stem)
    return name if name.isidentifier() else f"table_{name}"


def _family_kind(pretrained: Pretrained) -> str:
    """Returns the kind of a model's family, or nothing if it has none."""
    try:
        return families.family_of(families.published(pretrained.model)[0], pretrained.family).kind
    except UserError:
        return ""
