"""Metrics of labelled examples, computed from the outputs of a head for the rows of a split.

`common.metrics` declares their units and directions.

classes   accuracy, matthews; of two classes f1, that of the second
score     pearson, spearman, mse; the correlations of constant scores are 0
tags      token_accuracy, of words; precision, recall and f1 of entities, and strict_… of those of IOB2
span      exact_match and f1 of answers, each against the best of the right ones
choice    accuracy
"""

import collections
import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax import objectives
from plm_jax.data.labelled import spans, tags
from plm_jax.data.layouts.labelled import LabelledRows

Outputs = Mapping[int, np.ndarray] | Sequence[np.ndarray]
Figures = dict[str, float]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def of_outputs(rows: LabelledRows, outputs: Outputs, labels: Sequence[str] = ()) -> Figures:
    """The figures of all rows.

    Args:
      outputs: of row i what the head gives: [C] of classes, [1], [L, C] of tags, [L, 2] of begin and end, [choices].
      labels: names of the classes or tags.
    """
    return _OF_FORMS[rows.objective.form](rows, outputs, labels)


def names(objective: objectives.LabelledObjective, labels: Sequence[str] = ()) -> list[str]:
    """What `of_outputs` gives for an objective."""
    entities = ["precision", "recall", "f1"]
    found = {
        "classes": ["accuracy", "matthews", *(["f1"] if len(labels) == 2 else [])],
        "score": ["pearson", "spearman", "mse"],
        "tags": ["token_accuracy", *(f"{mode}{of}" for mode in ("", "strict_") for of in entities)],
        "span": ["exact_match", "f1"],
        "choice": ["accuracy"],
    }[objective.form]
    return found if objective.form != "tags" or tags.has_entities(labels) else found[:1]


def accuracy(truth: Sequence[int] | np.ndarray, told: Sequence[int] | np.ndarray) -> float:
    """Returns the share of correct predictions."""
    return float(np.mean(np.asarray(truth) == np.asarray(told)))


def f1(truth: Sequence[int] | np.ndarray, told: Sequence[int] | np.ndarray) -> float:
    """F1 of class 1; 0 where it is neither there nor told."""
    is_true, is_told = np.asarray(truth) == 1, np.asarray(told) == 1
    number = int(is_true.sum() + is_told.sum())
    return 2 * float((is_true & is_told).sum()) / number if number else 0.0


def matthews(truth: Sequence[int] | np.ndarray, told: Sequence[int] | np.ndarray) -> float:
    """Matthews's correlation, of any number of classes (Gorodkin 2004); 0 where either is constant."""
    classes = np.union1d(truth, told)
    ours, theirs = (np.asarray(of)[:, None] == classes for of in (truth, told))
    return pearson(ours.astype(np.float64), theirs.astype(np.float64))


def pearson(truth: Sequence[float] | np.ndarray, told: Sequence[float] | np.ndarray) -> float:
    """Pearson's correlation; 0 where either is constant, of which there is none."""
    ours, theirs = (np.asarray(of, np.float64) - np.mean(of, axis=0, dtype=np.float64) for of in (truth, told))
    scale = math.sqrt((ours**2).sum()) * math.sqrt((theirs**2).sum())
    constant = any(np.ptp(of, axis=0).max() == 0 for of in (np.asarray(truth), np.asarray(told)))
    return 0.0 if constant or scale == 0 else float((ours * theirs).sum() / scale)


def spearman(truth: Sequence[float] | np.ndarray, told: Sequence[float] | np.ndarray) -> float:
    """Pearson's correlation of ranks, equals at their mean."""
    return pearson(_ranks(truth), _ranks(told))


def _ranks(values: Sequence[float] | np.ndarray) -> np.ndarray:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


def exact_match(right: Sequence[str], told: str) -> bool:
    """Whether an answer is one of the right ones by SQuAD's normalisation; without any, whether it is empty."""
    return any(answer_words(answer) == answer_words(told) for answer in right or [""])


def answer_f1(right: Sequence[str], told: str) -> float:
    """F1 of an answer's words against the best of the right ones, 0 to 1; of empty and empty it is 1."""
    return max(word_f1(answer_words(answer), answer_words(told)) for answer in right or [""])


def answer_words(text: str) -> list[str]:
    """The words of an answer by SQuAD's normalisation: in lower case, without punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def word_f1(right: list[str], told: list[str]) -> float:
    """F1 of words, 0 to 1; of none against none it is 1."""
    if not right or not told:
        return float(right == told)
    same = (collections.Counter(right) & collections.Counter(told)).total()
    return 2 * same / (len(right) + len(told))


def _column(rows: LabelledRows, name: str) -> list[Any]:
    return [rows.values(name, rows.document(item)) for item in range(rows.num_rows)]


def _told(rows: LabelledRows, outputs: Outputs) -> np.ndarray:
    return np.array([np.argmax(outputs[item]) for item in range(rows.num_rows)])


def _classes(rows: LabelledRows, outputs: Outputs, labels: Sequence[str]) -> Figures:
    truth, told = np.array(_column(rows, "label")), _told(rows, outputs)
    found = {"accuracy": accuracy(truth, told), "matthews": matthews(truth, told)}
    return found | ({"f1": f1(truth, told)} if len(labels) == 2 else {})


def _score(rows: LabelledRows, outputs: Outputs, labels: Sequence[str]) -> Figures:
    truth = np.array(_column(rows, "score"), np.float64)
    told = np.array([float(outputs[item][0]) for item in range(rows.num_rows)])
    return {
        "pearson": pearson(truth, told),
        "spearman": spearman(truth, told),
        "mse": float(np.mean((truth - told) ** 2)),
    }


def tags_of(rows: LabelledRows, item: int, output: np.ndarray, labels: Sequence[str]) -> list[str]:
    """The tag told of each word of a row's example; of a word that the row does not hold it is `O`, or the first."""
    missing = "O" if "O" in labels else labels[0]
    places = rows.word_positions(rows.document(item)).tolist()
    return [labels[int(np.argmax(output[place]))] if place >= 0 else missing for place in places]


def _tags(rows: LabelledRows, outputs: Outputs, labels: Sequence[str]) -> Figures:
    truth = [[labels[int(tag)] for tag in of] for of in _column(rows, "tags")]
    told = [tags_of(rows, item, outputs[item], labels) for item in range(rows.num_rows)]
    pairs = [pair for both in zip(truth, told, strict=True) for pair in zip(*both, strict=True)]
    token_accuracy = {"token_accuracy": float(np.mean([target == predicted for target, predicted in pairs]))}
    if not tags.has_entities(labels):
        return token_accuracy
    strict = tags.scores(truth, told, strict=True)
    return token_accuracy | tags.scores(truth, told) | {f"strict_{name}": value for name, value in strict.items()}


def answers(rows: LabelledRows, outputs: Outputs) -> list[spans.Answer]:
    """What is told of each example, from the scores of all its windows."""
    settings = rows.objective
    assert isinstance(settings, objectives.SpanExtraction)
    found = []
    for document in range(rows.num_documents):
        parts = [rows.window(item) for item in rows.rows_of(document)]
        most = spans.most_context([(part.first, part.size) for part in parts])
        windows = [
            _window(rows, document, part, np.asarray(outputs[item]), own)
            for item, part, own in zip(rows.rows_of(document), parts, most, strict=True)
        ]
        rules = settings.n_best, settings.answer_length, settings.unanswerable, settings.null_threshold
        found.append(spans.answer(rows.context(document), windows, *rules))
    return found


def _window(
    rows: LabelledRows, document: int, part: objectives.ContextWindow, output: np.ndarray, own: np.ndarray
) -> spans.AnswerWindow:
    """A row of an example as `spans` takes it; `own` [part.size]: where it has more context than any other."""
    at, inside = slice(part.place, part.place + part.size), slice(part.first, part.first + part.size)
    begins, stops = np.full((2, rows.length), -1)
    begins[at], stops[at] = (of[inside] for of in rows.context_offsets(document))
    may_start = np.zeros(rows.length, np.bool_)
    may_start[at] = own
    return spans.AnswerWindow(output[:, 0], output[:, 1], begins, stops, may_start)


def right_answers(rows: LabelledRows, document: int) -> list[str]:
    """The texts of an example's answers."""
    context = rows.context(document)
    pair = (rows.values(name, document).tolist() for name in ("answer_begins", "answer_ends"))
    return [context[begin:stop] for begin, stop in zip(*pair, strict=True)]


def _span(rows: LabelledRows, outputs: Outputs, labels: Sequence[str]) -> Figures:
    told = answers(rows, outputs)
    both = [(right_answers(rows, document), found.text) for document, found in enumerate(told)]
    return {
        "exact_match": float(np.mean([exact_match(*pair) for pair in both])),
        "f1": float(np.mean([answer_f1(*pair) for pair in both])),
    }


def _choice(rows: LabelledRows, outputs: Outputs, labels: Sequence[str]) -> Figures:
    return {"accuracy": accuracy(np.array(_column(rows, "label")), _told(rows, outputs))}


_OF_FORMS: dict[str, Callable[[LabelledRows, Outputs, Sequence[str]], Figures]] = {
    "classes": _classes,
    "score": _score,
    "tags": _tags,
    "span": _span,
    "choice": _choice,
}
