"""Labelled sets that ablations of fine-tuning read: their form, their split, and what is reached without a network.

Rows are split by hashes, into files in `.cache/finetune` of the folder where the user stands. Rows that must not be on
both sides have one key: the same text, the same pair of choices of QuaRTz, whose twin questions have the other answer.
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
from plm_jax.data.labelled import metrics, tags
from plm_jax.data.sources import files
from plm_jax.data.sources.corpus import Record
from plm_jax.evaluation import word_baselines

FOLDER = ".cache/finetune"
# The wheel of the package that the questions about populations are of: whole abstracts, which may not be copied.
EVALS = "evals-3.0.1.post1-py3-none-any.whl"
# What most persons and organisations of the loan agreements are called.
ROLES = ("Borrower", "Lender", "Bank")
_SPANS = "evals/registry/data/population_span_extraction/samples.jsonl"

Row = dict[str, Any]


@dataclass(frozen=True)
class LabelledSet:
    """A labelled set.

    Attributes:
      read: its rows.
      key: of a row; rows of one key are on one side.
      metric: by which models are compared.
      length: tokens that its rows should have.
      baseline: what a predictor without a network reaches of the metric, fitted to training records.
      note: what a figure of it can show.
      fits_epochs: how often few of its rows are read until a model should know them.
      is_tested: whether a row may be tested on; those of one key are all alike.
    """

    read: Callable[[], Iterator[Row]]
    form: config.Form
    objective: objectives.LabelledObjective
    key: Callable[[Row], Any]
    metric: str
    length: int
    baseline: Callable[[list[Record], list[Record]], float]
    note: str = ""
    fits_epochs: float = 40.0
    is_tested: Callable[[Row], bool] = lambda row: True


def vendored(name: str) -> Callable[[], Iterator[Row]]:
    """What reads the rows of a corpus that comes with the package."""
    path = os.path.join(os.path.dirname(plm_jax.__file__), "data/corpora", name)
    return lambda: (row for _, row in files.json_rows(path))


def _has_no_role(row: Row) -> bool:
    """Whether a row has none of ROLES, which a look-up finds."""
    return not set(ROLES) & set(row["tokens"])


def _questions() -> Iterator[Row]:
    """The questions of the evals package, out of its wheel in FOLDER."""
    wheel = os.path.join(FOLDER, EVALS)
    if not os.path.exists(wheel):
        raise UserError(f"there is no {wheel}: run `pip download --no-deps --dest {FOLDER} evals==3.0.1.post1`")
    for line in zipfile.ZipFile(wheel).read(_SPANS).decode("utf-8").splitlines():
        row = json.loads(line)
        context, told = row["input"][-1]["content"], row["ideal"].partition("spans: ")[2]
        found = [(text, context.find(text)) for text in told.strip()[1:-1].split("', '")]
        answers = [{"text": text, "start": start} for text, start in found if start >= 0]
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
    truth, told = ([[names[tag] for tag in of] for of in side] for side in both)
    return tags.scores(truth, told)["f1"]


def _populations(train, test):
    """From a word for people on to the end of the clause: the best of a few such rules on the training rows."""
    del train
    people = "patients|women|men|children|subjects|adults|participants|individuals|volunteers|people|infants"
    pattern = re.compile(rf"\b(?:{people})\b[^.;]*", re.IGNORECASE)
    found = []
    for record in test:
        right = [
            record.text[begin:end]
            for begin, end in zip(record.values["answer_begins"], record.values["answer_ends"], strict=True)
        ]
        match = pattern.search(record.text)
        found.append(metrics.answer_f1(right, match[0] if match else ""))
    return float(np.mean(found))


REVIEWS = vendored("movie_sentiment.jsonl.gz")
SETS = {
    "sentiment": LabelledSet(
        REVIEWS,
        config.ClassForm(sentiment.LABELS, text="sentence", label="sentiment"),
        objectives.Classification(),
        key=lambda row: row["sentence"],
        metric="accuracy",
        length=64,
        baseline=_accuracy(word_baselines.classes),
    ),
    "scores": LabelledSet(
        REVIEWS,
        config.ScoreForm(text="sentence", score="score"),
        objectives.Regression(),
        key=lambda row: row["sentence"],
        metric="pearson",
        length=64,
        baseline=_pearson,
    ),
    "inference": LabelledSet(
        vendored("corr2cause_nli.jsonl.gz"),
        config.ClassForm(inference.LABELS, text="premise", pair="hypothesis"),
        objectives.Classification(),
        key=lambda row: (row["premise"], row["hypothesis"]),
        metric="accuracy",
        length=256,
        baseline=_accuracy(word_baselines.classes),
        note="21 premises, which are on both sides",
    ),
    "entities": LabelledSet(
        vendored("finance_ner.jsonl.gz"),
        config.TagForm(entities.LABELS),
        objectives.Tagging(),
        key=lambda row: tuple(row["tokens"]),
        metric="f1",
        length=128,
        baseline=_entities,
        note="most persons are the word Borrower",
    ),
    "names": LabelledSet(
        vendored("finance_ner.jsonl.gz"),
        config.TagForm(entities.LABELS),
        objectives.Tagging(),
        key=lambda row: tuple(row["tokens"]),
        metric="f1",
        length=96,
        baseline=_entities,
        is_tested=_has_no_role,
    ),
    "choices": LabelledSet(
        vendored("quartz.jsonl.gz"),
        config.ChoiceForm(2, label="answer"),
        objectives.MultipleChoice(),
        key=lambda row: sorted(row["choices"]),
        metric="accuracy",
        length=64,
        baseline=_accuracy(word_baselines.choices),
        note="without the sentences that the questions are about",
    ),
    "reading": LabelledSet(
        _questions,
        config.AnswerForm(),
        # Of a small vocabulary an answer, often a whole clause, has up to 115 tokens.
        objectives.SpanExtraction(question_length=16, stride=64, answer_length=128),
        key=lambda row: row["context"],
        metric="f1",
        length=256,
        baseline=_populations,
        fits_epochs=20.0,  # Of each abstract there are some four windows.
    ),
}


def is_there(name: str) -> bool:
    """Whether the rows of a set can be read; those of another package are not there before they are fetched."""
    try:
        next(iter(SETS[name].read()))
    except UserError as error:
        print(f"note: {name} is left out: {error}", file=sys.stderr)
        return False
    return True


@functools.cache
def source(name: str, train: int, test: int, fits: bool = False) -> config.LabelledJsonLines:
    """A set's source, its rows in files: `test` of those for it, a fifth at most, at most `train` of the others.

    Args:
      fits: the shortest rows, on which it is tested, too: that shows that a form is learnt, and no more.
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
    return config.LabelledJsonLines(paths[0], of.form, validation=paths[1])


def _digest(of: LabelledSet, row: Row) -> bytes:
    return hashlib.sha256(repr(of.key(row)).encode("utf-8")).digest()


def without_network(name: str, train: int, test: int) -> float:
    """What the set's predictor without a network reaches on the same split."""
    opened = source(name, train, test).open(name)
    fitted, tested = (list(opened.read(split, (0, 1))) for split in ("train", "validation"))
    return SETS[name].baseline(fitted, tested)
