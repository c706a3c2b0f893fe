"""Labeled data sets for ablations of fine-tuning: their form, their split, and a baseline without a neural network.

Rows are split by hashes, into files in `.cache/finetune` of the working directory. Rows that must not be on both sides
share a key: the same text, or the same pair of choices in QuaRTz, whose twin questions have the other answer.
"""

import functools
import hashlib
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import plm_jax
from plm_jax import config, objectives
from plm_jax.common.errors import UserError
from plm_jax.configs.tasks import entities, inference, sentiment
from plm_jax.data.labeled import metrics, tags
from plm_jax.data.sources import tables
from plm_jax.data.sources.corpus import Record
from plm_jax.evaluation import word_baselines
from plm_jax.experiments.comparison import Baselines

FOLDER = ".cache/finetune"
# Wheel with the questions about populations. It has whole abstracts, which may not be copied into this package.
EVALS = "evals-3.0.1.post1-py3-none-any.whl"
# Names of most persons and organizations in the loan agreements.
ROLES = ("Borrower", "Lender", "Bank")
_SPANS = "evals/registry/data/population_span_extraction/samples.jsonl"

Row = dict[str, Any]


@dataclass(frozen=True)
class LabeledSet:
    """A labeled set.

    Attributes:
      read: reads the rows.
      key: returns the key of a row; rows with the same key are on the same side of the split.
      metric: metric that compares models.
      length: number of tokens in a row.
      baseline: computes the metric of a predictor without a network, fitted to the training records.
      fits_epochs: number of epochs after which a model should fit a few rows.
      is_tested: whether a row may be in the test split; the same for all rows with the same key.
    """

    read: Callable[[], Iterator[Row]]
    form: config.Form
    objective: objectives.LabeledObjective
    key: Callable[[Row], Any]
    metric: str
    length: int
    baseline: Callable[[list[Record], list[Record]], float]
    fits_epochs: float = 40.0
    is_tested: Callable[[Row], bool] = lambda row: True


def vendored(name: str) -> Callable[[], Iterator[Row]]:
    """Returns a function that reads the rows of a corpus that comes with the package."""
    path = os.path.join(os.path.dirname(plm_jax.__file__), "data/corpora", name)
    return lambda: (row for _, row in tables.read_rows(path))


def _has_no_role(row: Row) -> bool:
    """Whether a row has none of ROLES, which a table of words would find."""
    return not set(ROLES) & set(row["tokens"])


def _questions() -> Iterator[Row]:
    """Reads the questions of the evals package from its wheel in FOLDER."""
    wheel = os.path.join(FOLDER, EVALS)
    if not os.path.exists(wheel):
        raise UserError(f"there is no {wheel}: run `pip download --no-deps --dest {FOLDER} evals==3.0.1.post1`")
    for line in zipfile.ZipFile(wheel).read(_SPANS).decode("utf-8").splitlines():
        row = json.loads(line)
        context, spans = row["input"][-1]["content"], row["ideal"].partition("spans: ")[2]
        starts = [(text, context.find(text)) for text in spans.strip()[1:-1].split("', '")]
        answers = [{"text": text, "start": start} for text, start in starts if start >= 0]
        yield {"question": "Which population was studied?", "context": context, "answers": answers}


def _accuracy(predict):
    def reached(train, test):
        return metrics.accuracy([record.values["label"] for record in test], predict(train, test))

    return reached


def _pearson(train, test):
    return metrics.pearson([record.values["score"] for record in test], word_baselines.scores(train, test))


def _entities(train, test):
    names = entities.LABELS
    both = [record.values["tags"] for record in test], word_baselines.tags(train, test)
    truth, predicted = ([[names[tag] for tag in row] for row in side] for side in both)
    return tags.scores(truth, predicted)["f1"]


def _populations(train, test):
    """Predicts from a word for people to the end of the clause, the best of a few such rules on the training rows."""
    del train
    people = "patients|women|men|children|subjects|adults|participants|individuals|volunteers|people|infants"
    pattern = re.compile(rf"\b(?:{people})\b[^.;]*", re.IGNORECASE)
    scores = []
    for record in test:
        right = [
            record.text[begin:end]
            for begin, end in zip(record.values["answer_begins"], record.values["answer_ends"], strict=True)
        ]
        match = pattern.search(record.text)
        scores.append(metrics.answer_f1(right, match[0] if match else ""))
    return float(np.mean(scores))


REVIEWS = vendored("movie_sentiment.jsonl.gz")
SETS = {
    "sentiment": LabeledSet(
        REVIEWS,
        config.ClassForm(sentiment.LABELS, text="sentence", label="sentiment"),
        objectives.Classification(),
        key=lambda row: row["sentence"],
        metric="accuracy",
        length=64,
        baseline=_accuracy(word_baselines.classes),
    ),
    "scores": LabeledSet(
        REVIEWS,
        config.ScoreForm(text="sentence", score="score"),
        objectives.Regression(),
        key=lambda row: row["sentence"],
        metric="pearson",
        length=64,
        baseline=_pearson,
    ),
    "inference": LabeledSet(
        vendored("corr2cause_nli.jsonl.gz"),
        config.ClassForm(inference.LABELS, text="premise", pair="hypothesis"),
        objectives.Classification(),
        key=lambda row: (row["premise"], row["hypothesis"]),
        metric="accuracy",
        length=256,
        baseline=_accuracy(word_baselines.classes),
    ),
    "entities": LabeledSet(
        vendored("finance_ner.jsonl.gz"),
        config.TagForm(entities.LABELS),
        objectives.Tagging(),
        key=lambda row: tuple(row["tokens"]),
        metric="f1",
        length=128,
        baseline=_entities,
    ),
    "names": LabeledSet(
        vendored("finance_ner.jsonl.gz"),
        config.TagForm(entities.LABELS),
        objectives.Tagging(),
        key=lambda row: tuple(row["tokens"]),
        metric="f1",
        length=96,
        baseline=_entities,
        is_tested=_has_no_role,
    ),
    "choices": LabeledSet(
        vendored("quartz.jsonl.gz"),
        config.ChoiceForm(2, label="answer"),
        objectives.MultipleChoice(),
        key=lambda row: sorted(row["choices"]),
        metric="accuracy",
        length=64,
        baseline=_accuracy(word_baselines.choices),
    ),
    "reading": LabeledSet(
        _questions,
        config.AnswerForm(),
        # With a small vocabulary an answer, often a whole clause, has up to 115 tokens.
        objectives.SpanExtraction(question_length=16, stride=64, answer_length=128),
        key=lambda row: row["context"],
        metric="f1",
        length=256,
        baseline=_populations,
        fits_epochs=20.0,  # Each abstract makes about four windows.
    ),
}


def is_there(name: str) -> bool:
    """Whether the rows of a set can be read: those of another package have to be downloaded first."""
    try:
        next(iter(SETS[name].read()))
    except UserError as error:
        print(f"note: {name} is left out: {error}", file=sys.stderr)
        return False
    return True


@functools.cache
def source(name: str, train: int, test: int, fits: bool = False) -> config.LabeledTable:
    """Writes a set's rows to files and returns their source.

    Args:
      name: name in SETS.
      train: largest number of training rows.
      test: number of test rows, at most a fifth of all.
      fits: whether the shortest rows are both the training and the test rows, which only shows that a form is learned.
    """
    of = SETS[name]
    rows = sorted(of.read(), key=lambda row: (not of.is_tested(row), _digest(of, row)))
    stop = min(test, len(rows) // 5)
    while stop < len(rows) and of.key(rows[stop]) == of.key(rows[stop - 1]):
        stop += 1
    if fits:
        shortest = sorted(rows, key=lambda row: len(json.dumps(row)))[:train]
        parts = {"train": shortest, "test": shortest}
    else:
        parts = {"train": sorted(rows[stop:], key=lambda row: _digest(of, row))[:train], "test": rows[:stop]}
    paths = []
    for part, chosen in parts.items():
        paths.append(os.path.abspath(os.path.join(FOLDER, f"{name}-{train}-{part}{'-fits' * fits}.jsonl")))
        os.makedirs(os.path.dirname(paths[-1]), exist_ok=True)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen)
        with open(paths[-1], "w", encoding="utf-8") as file:
            file.write(text)
    return config.LabeledTable(paths[0], of.form, validation=paths[1])


def _digest(of: LabeledSet, row: Row) -> bytes:
    return hashlib.sha256(repr(of.key(row)).encode("utf-8")).digest()


def without_network(name: str, train: int, test: int) -> float:
    """Returns the metric of the set's predictor without a network on the same split."""
    opened = source(name, train, test).open(name)
    fitted, tested = (list(opened.read(split, (0, 1))) for split in ("train", "validation"))
    return SETS[name].baseline(fitted, tested)


def run_on(name: str, train: int, test: int, checkpoint: str, cache: str, fits: bool = False) -> dict[str, Any]:
    """Returns the changes that tune a checkpoint on a set.

    Args:
      name: name in SETS.
      train: largest number of training rows.
      test: number of test rows.
      checkpoint: run or directory whose weights the run starts from.
      cache: folder of the cache in `.cache/finetune`.
      fits: as in `source`.
    """
    chosen = SETS[name]
    return {
        "objective": chosen.objective,
        "data.sources": {name: source(name, train, test, fits)},
        "data.cache_dir": f"../../.cache/finetune/{cache}",
        "data.length": chosen.length,
        "train.init_from": checkpoint,
        "schedule.learning_rate": 1e-3,
        "checkpoint.save_every": 10_000,
        "evaluation": config.EvaluationConfig(batch_size=64),
    }


def baselines_of(name: str, train: int, test: int, **others: str) -> Baselines:
    """Returns the baselines of run `name`: a trivial predictor, one without a network, and `others`."""
    metric = SETS[name].metric
    baselines = {"trivial": f"{name}/trivial_{metric}", "no network": without_network(name, train, test)}
    return Baselines(name, f"{name}/{metric}", baselines | {key.replace("_", " "): run for key, run in others.items()})
