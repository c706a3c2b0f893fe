"""Metrics of labeled examples, computed from the outputs of a head for the rows of a split.

`common.metrics` declares their units and directions.

classes   accuracy, matthews; with two classes, also f1 of the second class
labels    f1_micro, over all examples and labels; f1_macro, mean over labels; accuracy, examples with all labels correct
score     pearson, spearman, mse; the correlations of constant scores are 0
tags      token_accuracy, over words; if the tags mark entities, also precision, recall and f1 of entities, and the same
          with the prefix strict_ for strict IOB2
span      exact_match and f1 of answers, each compared with the closest correct answer
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
from plm_jax.data.labeled import spans, tags
from plm_jax.data.layouts.labeled import LabeledRows

Outputs = Mapping[int, np.ndarray] | Sequence[np.ndarray]
Figures = dict[str, float]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def compute_metrics(rows: LabeledRows, outputs: Outputs, labels: Sequence[str] = ()) -> Figures:
    """Returns the metrics of all rows, by name.

    Args:
      outputs: output of the head for each row: [C] for classes and labels, [1] for scores, [L, C] for tags, [L, 2] for
        starts and ends of answers, [choices] for choices.
      labels: names of the classes or tags. Tags need them. For classes, f1 is computed only if there are two of them.
    """
    return _METRICS[rows.objective.form](rows, outputs, labels)


def names(objective: objectives.LabeledObjective, labels: Sequence[str] = ()) -> list[str]:
    """Returns the names of the metrics that `compute_metrics` returns for an objective and `labels`."""
    entity_metrics = ["precision", "recall", "f1"]
    names = {
        "classes": ["accuracy", "matthews", *(["f1"] if len(labels) == 2 else [])],
        "labels": ["f1_micro", "f1_macro", "accuracy"],
        "score": ["pearson", "spearman", "mse"],
        "tags": ["token_accuracy", *(f"{mode}{name}" for mode in ("", "strict_") for name in entity_metrics)],
        "span": ["exact_match", "f1"],
        "choice": ["accuracy"],
    }[objective.form]
    return names if objective.form != "tags" or tags.has_entities(labels) else names[:1]


def accuracy(truth: Sequence[int] | np.ndarray, predicted: Sequence[int] | np.ndarray) -> float:
    """Returns the share of predictions that equal the truth; NaN without examples."""
    return float(np.mean(np.asarray(truth) == np.asarray(predicted)))


def f1(truth: Sequence[int] | np.ndarray, predicted: Sequence[int] | np.ndarray) -> float:
    """Returns the F1 of class 1, or 0 if class 1 is neither true nor predicted for any example."""
    is_true, is_predicted = np.asarray(truth) == 1, np.asarray(predicted) == 1
    number = int(is_true.sum() + is_predicted.sum())
    return 2 * float((is_true & is_predicted).sum()) / number if number else 0.0


def matthews(truth: Sequence[int] | np.ndarray, predicted: Sequence[int] | np.ndarray) -> float:
    """Returns the Matthews correlation of any number of classes (Gorodkin 2004).

    The result is 0 if the true or the predicted classes are all the same.
    """
    classes = np.union1d(truth, predicted)
    x, y = (np.asarray(values)[:, None] == classes for values in (truth, predicted))
    return pearson(x.astype(np.float64), y.astype(np.float64))


def pearson(truth: Sequence[float] | np.ndarray, predicted: Sequence[float] | np.ndarray) -> float:
    """Returns Pearson's correlation, or 0 if it is undefined because the true or the predicted values are constant."""
    x, y = (np.asarray(values, np.float64) - np.mean(values, axis=0, dtype=np.float64) for values in (truth, predicted))
    scale = math.sqrt((x**2).sum()) * math.sqrt((y**2).sum())
    constant = any(np.ptp(values, axis=0).max() == 0 for values in (np.asarray(truth), np.asarray(predicted)))
    return 0.0 if constant or scale == 0 else float((x * y).sum() / scale)


def spearman(truth: Sequence[float] | np.ndarray, predicted: Sequence[float] | np.ndarray) -> float:
    """Returns Spearman's rank correlation, or 0 if the true or the predicted values are constant.

    Equal values have their mean rank.
    """
    return pearson(_ranks(truth), _ranks(predicted))


def _ranks(values: Sequence[float] | np.ndarray) -> np.ndarray:
    _, indices, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[indices]


def exact_match(right: Sequence[str], predicted: str) -> bool:
    """Whether an answer has the same `answer_words` as a correct answer; without correct answers, "" is correct."""
    return any(answer_words(answer) == answer_words(predicted) for answer in right or [""])


def answer_f1(right: Sequence[str], predicted: str) -> float:
    """Returns the F1 of words, 0 to 1, between an answer and the closest correct answer.

    Without correct answers, "" is correct. The F1 of two answers without words is 1.
    """
    return max(word_f1(answer_words(answer), answer_words(predicted)) for answer in right or [""])


def answer_words(text: str) -> list[str]:
    """Returns the words of an answer after SQuAD's normalization: in lower case, without punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def word_f1(right: list[str], predicted: list[str]) -> float:
    """Returns the F1 of words, 0 to 1. It is 1 if both lists are empty, and 0 if one of them is."""
    if not right or not predicted:
        return float(right == predicted)
    same = (collections.Counter(right) & collections.Counter(predicted)).total()
    return 2 * same / (len(right) + len(predicted))


def _column(rows: LabeledRows, name: str) -> list[Any]:
    return [rows.values(name, rows.document(item)) for item in range(rows.num_rows)]


def _predicted_classes(rows: LabeledRows, outputs: Outputs) -> np.ndarray:
    return np.array([np.argmax(outputs[item]) for item in range(rows.num_rows)])


def _classes(rows: LabeledRows, outputs: Outputs, labels: Sequence[str]) -> Figures:
    truth, predicted = np.array(_column(rows, "label")), _predicted_classes(rows, outputs)
    figures = {"accuracy": accuracy(truth, predicted), "matthews": matthews(truth, predicted)}
    return figures | ({"f1": f1(truth, predicted)} if len(labels) == 2 else {})


def _multi_hot(ids: Sequence[np.ndarray], number: int) -> np.ndarray:
    """Returns whether each example has each label, bool [examples, labels]."""
    table = np.zeros((len(ids), number), np.bool_)
    for row, each in zip(table, ids, strict=True):
        row[each] = True
    return table


def _labels(rows: LabeledRows, outputs: Outputs, labels: Sequence[str]) -> Figures:
    predicted = np.stack([np.asarray(outputs[item]) > 0 for item in range(rows.num_rows)])
    truth = _multi_hot(_column(rows, "labels"), predicted.shape[1])
    return {
        "f1_micro": f1(truth.ravel(), predicted.ravel()),
        "f1_macro": float(np.mean([f1(*columns) for columns in zip(truth.T, predicted.T, strict=True)])),
        "accuracy": float(np.mean((truth == predicted).all(1))),
    }


def _score(rows: LabeledRows, outputs: Outputs, labels: Sequence[str]) -> Figures:
    truth = np.array(_column(rows, "score"), np.float64)
    predicted = np.array([float(outputs[item][0]) for item in range(rows.num_rows)])
    return {
        "pearson": pearson(truth, predicted),
        "spearman": spearman(truth, predicted),
        "mse": float(np.mean((truth - predicted) ** 2)),
    }


def predict_tags(rows: LabeledRows, item: int, output: np.ndarray, labels: Sequence[str]) -> list[str]:
    """Returns the predicted tag of each word of a row's example.

    Words that did not fit in the row get the tag `O`, or the first label if `O` is not a label.

    Args:
      item: index of the row.
      output: output of the head for the row, [L, C].
      labels: names of the tags.
    """
    missing = "O" if "O" in labels else labels[0]
    positions = rows.word_positions(rows.document(item)).tolist()
    return [labels[int(np.argmax(output[position]))] if position >= 0 else missing for position in positions]


def _tags(rows: LabeledRows, outputs: Outputs, labels: Sequence[str]) -> Figures:
    truth = [[labels[int(tag)] for tag in ids] for ids in _column(rows, "tags")]
    predicted = [predict_tags(rows, item, outputs[item], labels) for item in range(rows.num_rows)]
    pairs = [pair for both in zip(truth, predicted, strict=True) for pair in zip(*both, strict=True)]
    token_accuracy = {"token_accuracy": float(np.mean([target == prediction for target, prediction in pairs]))}
    if not tags.has_entities(labels):
        return token_accuracy
    strict = tags.scores(truth, predicted, strict=True)
    return token_accuracy | tags.scores(truth, predicted) | {f"strict_{name}": value for name, value in strict.items()}


def answers(rows: LabeledRows, outputs: Outputs) -> list[spans.Answer]:
    """Returns the predicted answer of each example, from the outputs of the rows with the windows of its context."""
    settings = rows.objective
    assert isinstance(settings, objectives.SpanExtraction)
    predictions = []
    for document in range(rows.num_documents):
        windows = answer_windows(rows, outputs, document)
        rules = settings.n_best, settings.answer_length, settings.unanswerable, settings.null_threshold
        predictions.append(spans.answer(rows.context(document), windows, *rules))
    return predictions


def answer_windows(rows: LabeledRows, outputs: Outputs, document: int) -> list[spans.AnswerWindow]:
    """Returns the windows of an example's context, one per row, with the scores of their tokens."""
    parts = [rows.window(item) for item in rows.rows_of(document)]
    most = spans.most_context([(part.first, part.size) for part in parts])
    return [
        _window(rows, document, part, np.asarray(outputs[item]), has_most)
        for item, part, has_most in zip(rows.rows_of(document), parts, most, strict=True)
    ]


def _window(
    rows: LabeledRows, document: int, part: objectives.ContextWindow, output: np.ndarray, has_most: np.ndarray
) -> spans.AnswerWindow:
    """Returns the window of a context that is in a row, with the scores of its tokens.

    Args:
      part: position of the window in the row and in the context.
      has_most: bool [part.size], whether each token has more context in this window than in any other.
    """
    in_row, in_context = slice(part.offset, part.offset + part.size), slice(part.first, part.first + part.size)
    begins, stops = np.full((2, rows.length), -1)
    begins[in_row], stops[in_row] = (offsets[in_context] for offsets in rows.context_offsets(document))
    may_start = np.zeros(rows.length, np.bool_)
    may_start[in_row] = has_most
    return spans.AnswerWindow(output[:, 0], output[:, 1], begins, stops, may_start, part.null)


def right_answers(rows: LabeledRows, document: int) -> list[str]:
    """Returns the texts of an example's correct answers; empty if it has no answer."""
    context = rows.context(document)
    pair = (rows.values(name, document).tolist() for name in ("answer_begins", "answer_ends"))
    return [context[begin:stop] for begin, stop in zip(*pair, strict=True)]


def _span(rows: LabeledRows, outputs: Outputs, labels: Sequence[str]) -> Figures:
    predictions = answers(rows, outputs)
    pairs = [(right_answers(rows, document), answer.text) for document, answer in enumerate(predictions)]
    return {
        "exact_match": float(np.mean([exact_match(*pair) for pair in pairs])),
        "f1": float(np.mean([answer_f1(*pair) for pair in pairs])),
    }


def _choice(rows: LabeledRows, outputs: Outputs, labels: Sequence[str]) -> Figures:
    return {"accuracy": accuracy(np.array(_column(rows, "label")), _predicted_classes(rows, outputs))}


_METRICS: dict[str, Callable[[LabeledRows, Outputs, Sequence[str]], Figures]] = {
    "classes": _classes,
    "labels": _labels,
    "score": _score,
    "tags": _tags,
    "span": _span,
    "choice": _choice,
}
