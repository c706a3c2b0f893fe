"""Config of a fine-tuning run, written from a table, the names of its columns and a checkpoint."""

import collections
import functools
import json
import math
import os
import re
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plm_jax import config
from plm_jax.common import overrides, storage
from plm_jax.common.errors import UserError
from plm_jax.data.sources import row_fields, tables
from plm_jax.data.sources.corpus import BadRow, Skipped, read_or_skip
from plm_jax.hub import families
from plm_jax.hub.pretrained import Pretrained
from plm_jax.runs import model_text, run_directory

# Recipes of `configs/tasks/recipes.py` by Hugging Face's family; all other families use the recipe of BERT.
RECIPES = {"roberta": "roberta", "electra": "electra", "openai-gpt": "gpt1", "bart": "bart"}
# Arguments of objectives by recipe.
_RECIPE_SETTINGS = {"gpt1": "**recipes.RECIPES['gpt1'].objective"}
_BATCH_SIZE = 32  # Batch size of every recipe.
_MAX_LABELS = 1000
_MAX_FRACTIONS = 20  # Maximum number of classes that are fractional numbers; more are taken for scores.
_MIN_EQUAL = 20  # Number of rows from which two must have the same class.
_MAX_SHOWN = 20  # Labels that are printed with their counts.
_MAX_SCALE = 10  # Of scores: absolute mean and standard deviation without a warning.
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
# Last line of the file; the CRC-32 of the lines above shows whether a user has edited them.
_CHECKSUM = "\n\n# CRC-32 {:08x}. Until training begins, `finetune --train` replaces this file unless it was edited.\n"
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
    """Names of columns of a table: one field per column flag of `finetune`; empty if the flag is not set.

    Attributes:
      text: columns of the texts, one or two.
      label: column of the class or, if `choices` is set, of the correct choice.
      labels: column with the labels of each row: a list, or text in which `,`, `;` or `|` separates them.
      score: column of the score, a number.
      tags: column with a list of tags in each row, one per word.
      choices: column of the choices, one of which is correct.
      question: column of the question about a context.
      context: column of the context of a question.
      answer: column of the answer to a question.
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
        """Kind of the form: `classes`, `labels`, `score`, `tags`, `span` or `choice`.

        Raises:
          UserError: the columns do not belong to exactly one form.
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
        """Returns the name of the column for each field of the form, by the name of the field.

        Raises:
          UserError: the columns do not belong to exactly one form.
        """
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

    An existing file with other contents is replaced only if nobody has edited it and no run has begun in its folder.

    Args:
      path: path of the config file.
      train, validation: paths of the tables; `validation` may be empty.
      pretrained: the model, without its weights.
      changes: pairs (field, value) from flags that override the config; they are written to the file.

    Returns:
      Lines to print: the most frequent labels of the training table with their counts, the number of bad rows that were
      skipped, and the path if the file was written.

    Raises:
      UserError: a table cannot be read or lacks a column, a column does not contain labels, a label occurs only in
        `validation`, or there is a different config at `path` that was edited or used for training.
    """
    kind = columns.kind
    name = _source_name(train)
    rows = _Rows(kind, columns, Skipped() if dict(changes).get("data.bad_rows") == "skip" else None)
    rows.read(name, train, validation)
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
    lines = rows.report(train)
    rows.warn(train)
    if storage.exists(path):
        existing = storage.read(path).decode("utf-8")
        if _body(existing) == content:
            return lines
        if existing != _with_checksum(_body(existing)) or run_directory.has_begun(os.path.dirname(path)):
            raise _differs(path, _body(existing), content)
    storage.write(path, _with_checksum(content).encode("utf-8"))
    return [*lines, f"wrote {path}"]


def _with_checksum(body: str) -> str:
    return body + _CHECKSUM.format(zlib.crc32(body.encode("utf-8")))


def _body(existing: str) -> str:
    """Returns the contents of a config file without its checksum."""
    return existing.partition(_CHECKSUM.partition("{")[0])[0]


def _differs(path: str, existing: str, content: str) -> UserError:
    """Returns the error for a config file at a path that must not be replaced by other content."""
    if _SETTINGS.sub("", existing) == _SETTINGS.sub("", content):
        return UserError(
            f"the SETTINGS of {path} differ from those of this table and these flags: pass --config={path} and the "
            "flags instead of --train, or another --workdir"
        )
    return UserError(
        f"{path} was written for another table or other flags, or edited: pass --config={path} instead of --train, or "
        "another --workdir"
    )


def _with_settings(template: Callable[..., str], path: str, every: int, changes: Sequence[tuple[str, str]]) -> str:
    """Returns the contents of a config file for `path`, with SETTINGS from the recipe and the flags.

    Args:
      template: function from the lines of SETTINGS to the contents of the file.
      every: number of steps between validations.
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

    def __init__(self, kind: str, columns: Columns, skipped: Skipped | None):
        self._kind, self._columns, self._skipped = kind, columns, skipped
        self._labels: collections.Counter[str] = collections.Counter()
        self._sample: list[tuple[str, ...]] = []
        self._count, self._num_choices, self._can_be_empty = 0, 0, False
        self._score_sum, self._score_squares = 0.0, 0.0

    def read(self, name: str, train: str, validation: str) -> None:
        """Reads the tables of a source; `validation` may be empty.

        Raises:
          UserError: a table is missing, damaged or empty, lacks a column, or has too many labels or bad rows, or
            `validation` has a label that `train` lacks.
        """
        self._read_table(train, self._add)
        if self._skipped:
            self._skipped.check(name)
        if validation:
            self._read_table(validation, functools.partial(self._check, train))
        if self._skipped:
            self._skipped.check(name)

    def _read_table(self, path: str, read: Callable[[str, Mapping[str, Any]], None]) -> None:
        """Passes the location and the fields of each row of a table to a function."""
        names = [value for value in self._columns.form().values() if value]

        def read_row(row: tables.TableRow) -> None:
            fields = row.fields
            for name in names:
                if name not in fields:
                    raise BadRow(tables.missing_column(row.location, fields, name))
            read(row.location, fields)

        is_empty = True
        for row in tables.file_or_folder_rows(path, names, names):
            read_or_skip(functools.partial(read_row, row), self._skipped)
            is_empty = False
        if is_empty:
            raise UserError(f"{path} has no rows: add examples, or pass another file")

    def _add(self, location: str, row: Mapping[str, Any]) -> None:
        """Counts a row of the training table."""
        score = self._score_of(location, row)
        self._score_sum, self._score_squares = self._score_sum + score, self._score_squares + score * score
        self._labels.update(self._labels_of(location, row))
        if len(self._labels) > _MAX_LABELS:
            raise UserError(
                f"column '{self._label_column}' has more than {_MAX_LABELS} different values by {location}: pass "
                "--score for numbers, or another column"
            )
        self._count += 1
        self._measure(row)
        if len(self._sample) < _SAMPLE_ROWS:
            self._sample.append(self._texts(row))

    def _check(self, train: str, location: str, row: Mapping[str, Any]) -> None:
        """Checks a row of the validation table; raises `BadRow` if it has a label that no row of `train` has."""
        self._score_of(location, row)
        for label in self._labels_of(location, row):
            if label not in self._labels:
                raise BadRow(
                    f"{location} has {row_fields.brief(label)} in '{self._label_column}', which no row of {train} has: "
                    "fix or remove this row, or add examples of it to the training table"
                )
        self._measure(row)

    def _measure(self, row: Mapping[str, Any]) -> None:
        """Updates the number of choices, and whether a question may have no answer."""
        if self._kind == "choice":
            choices = tables.cell_value(row[self._columns.choices])
            self._num_choices = max(self._num_choices, len(choices) if isinstance(choices, list) else 0)
        elif self._kind == "span":
            answers = tables.cell_value(row[self._columns.answer])
            texts = answers.get("text") if isinstance(answers, Mapping) else answers
            self._can_be_empty |= not texts

    @property
    def _label_column(self) -> str:
        return self._columns.label or self._columns.labels or self._columns.tags

    def _labels_of(self, location: str, row: Mapping[str, Any]) -> list[str]:
        """Returns the names of the labels of a row; empty if the kind of the form has no such names."""
        if self._kind not in ("classes", "labels", "tags"):
            return []
        column = self._label_column
        content = row[column]
        values = [content] if self._kind == "classes" else tables.cell_value(content)
        if self._kind == "labels" and not isinstance(values, list):
            values = re.split("[,;|]", content) if isinstance(content, str) else [] if content is None else [content]
        if not isinstance(values, list):
            raise BadRow(f"{location} has {row_fields.brief(content)} in '{column}': expected a list of labels")
        if self._kind == "labels":
            stripped = [value.strip() if isinstance(value, str) else value for value in values]
            values = [value for value in stripped if value != ""]
        for value in values:
            if value is None or value == "" or isinstance(value, list | Mapping):
                raise BadRow(f"{location} has {row_fields.brief(value)} in '{column}': expected a label")
        return [value if isinstance(value, str) else json.dumps(value) for value in values]

    def _score_of(self, location: str, row: Mapping[str, Any]) -> float:
        """Returns the score of a row; 0 if the rows have no scores."""
        return float(row_fields.number(location, row, self._columns.score)) if self._kind == "score" else 0.0

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
          UserError: there are fewer than two labels or choices, the labels look like scores, or every row has a
            different class.
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

    def report(self, train: str) -> list[str]:
        """Returns lines to print: the most frequent labels of the table `train` with counts, and the skipped rows."""
        counts = self._labels.most_common(_MAX_SHOWN)
        shown = [f"{label if label == label.strip() else repr(label)} {count:,}" for label, count in counts]
        if more := len(self._labels) - len(counts):
            shown.append(f"{more} more")
        lines = [f"labels of {train}: {', '.join(shown)}"] if shown else []
        return lines + ([self._skipped.report(train)] if self._skipped and self._skipped.bad else [])

    def warn(self, train: str) -> None:
        """Warns of labels of the table `train` that may be the same, and of scores that a new head learns slowly."""
        self._warn_of_similar_labels(train)
        self._warn_of_scale(train)

    def _warn_of_similar_labels(self, train: str) -> None:
        """Warns if labels of the table `train` differ only in case or in white space."""
        groups: dict[str, list[str]] = {}
        for label in self._labels:
            groups.setdefault(" ".join(label.split()).casefold(), []).append(label)
        if similar := [labels for labels in groups.values() if len(labels) > 1]:
            names = ", ".join(map(repr, similar[0]))
            warnings.warn(
                f"labels of {train} differ only in case or white space, such as {names}: correct the table if they "
                "mean the same",
                stacklevel=4,
            )

    def _warn_of_scale(self, train: str) -> None:
        """Warns if the mean or the standard deviation of the scores in the table `train` is large.

        The outputs of a new head are of order 1.
        """
        mean = self._score_sum / max(self._count, 1)
        deviation = math.sqrt(max(self._score_squares / max(self._count, 1) - mean**2, 0.0))
        if max(abs(mean), deviation) > _MAX_SCALE:
            warnings.warn(
                f"column '{self._columns.score}' of {train} has mean {mean:.4g} and standard deviation "
                f"{deviation:.4g}: scale the scores to about 0 to 1 for faster learning",
                stacklevel=4,
            )

    def objective_settings(self, length: int) -> str:
        """Returns the arguments of the objective that depend on the rows and their length, as Python code."""
        if self._kind == "labels":
            return f"num_labels={len(self._labels)}"
        if self._kind == "choice":
            return f"num_choices={self._num_choices}"
        settings = ["unanswerable=True"] if self._can_be_empty else []
        if self._kind == "span" and length < _SPAN_LENGTH:
            settings += [f"stride={length // 3}", f"question_length={length // 4}"]
        return ", ".join(settings)

    def length(self, pretrained: Pretrained) -> int:
        """Returns the length of rows.

        At this length, 99% of the sampled rows are not truncated. However, the length does not exceed the limit of the
        model or, without such a limit, 512 tokens.
        """
        vocabulary = model_text.vocabulary(pretrained)
        sizes = [sum(len(vocabulary.encode(text)) for text in texts) for texts in self._sample]
        # Pairs have at most four special tokens.
        longest = int(np.quantile(sizes, _SHARE_WHOLE, method="higher")) + 4
        rounded = math.ceil(longest / _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
        return min(rounded, pretrained.max_length or _DEFAULT_MAX)

    def validation_interval(self) -> int:
        """Returns the number of steps between validations: half an epoch, but at least 1 and at most 100 steps."""
        return max(1, min(100, self._count // _BATCH_SIZE // 2))


def _is_fraction(label: str) -> bool:
    """Whether a label is a number that is not an integer."""
    try:
        return not float(label).is_integer()
    except ValueError:
        return False


def _label_order(label: str) -> tuple[Any, ...]:
    """Returns a key that sorts labels: first `O`, then numbers by value, then all other labels by name.

    Tags such as `B-PER` are sorted by the type after the hyphen, with B before I for the same type.
    """
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
    """Returns the kind of a model's family, or "" if the model has no family."""
    try:
        return families.family_of(families.published(pretrained.model)[0], pretrained.family).kind
    except UserError:
        return ""
