"""Metrics of the suite, each `fn(targets, predictions)` → {name: value}, as in tasks of seqio.

Names and definitions come from `t5/evaluation/metrics.py` in google-research/text-to-text-transfer-transformer, with
two differences. Accuracy, exact match, F1 and correlations are fractions, not percentages (BLEU and ROUGE are points
from 0 to 100, as in T5). ROUGE is the mean over the summaries, not the median of bootstrapped means.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sacrebleu
import scipy.stats
import sklearn.metrics
from rouge_score import rouge_scorer

from plm_jax.data.labeled.metrics import answer_words, word_f1

Metric = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]

_ROUGE = ("rouge1", "rouge2", "rougeLsum")


def accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Returns the share of predictions equal to their targets."""
    return {"accuracy": float(sklearn.metrics.accuracy_score(targets, predictions))}


def matthews_corrcoef(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """Returns the Matthews correlation coefficient."""
    return {"matthews_corrcoef": float(sklearn.metrics.matthews_corrcoef(targets, predictions))}


def pearson_corrcoef(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Returns the Pearson correlation coefficient."""
    result: Any = scipy.stats.pearsonr(targets, predictions)
    return {"pearson_corrcoef": float(result.statistic)}


def spearman_corrcoef(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Returns Spearman's rank correlation."""
    result: Any = scipy.stats.spearmanr(targets, predictions)
    return {"spearman_corrcoef": float(result.statistic)}


def binary_f1(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """Returns the F1 of label 1; a prediction that is neither 0 nor 1 counts as wrong."""
    truth, predicted = np.asarray(targets), np.asarray(predictions)
    predicted = np.where(np.isin(predicted, (0, 1)), predicted, 1 - truth)
    return {"f1": float(sklearn.metrics.f1_score(truth, predicted))}


def mean_3class_f1(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """Returns the mean of three F1s, one for each of the labels 0, 1 and 2."""
    value = sklearn.metrics.f1_score(targets, predictions, labels=range(3), average="macro")
    return {"mean_3class_f1": float(value)}


def all_match(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Returns 1 as `exact_match` if all predictions equal their targets, else 0."""
    return {"exact_match": float(list(targets) == list(predictions))}


def on_values(metric: Metric) -> Metric:
    """Returns a metric that computes `metric` on the entry `value` of each target and prediction."""

    def compute(targets, predictions):
        return metric([target["value"] for target in targets], [prediction["value"] for prediction in predictions])

    return compute


def on_first_of_groups(metric: Metric) -> Metric:
    """Returns a metric that computes `metric` on the entry `value` of the first example of each group.

    The entry `group` of a target identifies its group.
    """

    def compute(targets, predictions):
        first = {}
        for pair in zip(targets, predictions, strict=True):
            first.setdefault(pair[0]["group"], pair)
        return on_values(metric)(*zip(*first.values(), strict=True))

    return compute


def mean_over_groups(metric: Metric) -> Metric:
    """Returns a metric that computes `metric` on the entries `value` of each group, and then the mean over the groups.

    The entry `group` of a target identifies its group.
    """

    def compute(targets, predictions):
        groups = collections.defaultdict(list)
        for pair in zip(targets, predictions, strict=True):
            groups[pair[0]["group"]].append(pair)
        results = [on_values(metric)(*zip(*pairs, strict=True)) for pairs in groups.values()]
        return {name: float(np.mean([values[name] for values in results])) for name in results[0]}

    return compute


def squad(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Returns the exact match `em` and the F1 of words `f1`, each for the closest correct answer.

    Answers are normalized as in SQuAD's script. Each target needs at least one correct answer. The F1 of two empty
    answers is 0, as in T5 and in the script of SQuAD 1.1. In the script of SQuAD 2.0 and in `data.labeled.metrics`,
    this F1 is 1.
    """
    exact, f1 = [], []
    for answers, prediction in zip(targets, predictions, strict=True):
        predicted, correct = answer_words(prediction), [answer_words(answer) for answer in answers]
        exact.append(predicted in correct)
        f1.append(max(word_f1(words, predicted) for words in correct) if predicted else 0.0)
    return {"em": float(np.mean(exact)), "f1": float(np.mean(f1))}


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns the F1 of ROUGE-1, ROUGE-2 and ROUGE-Lsum, from 0 to 100.

    For ROUGE-Lsum, sentences end at ` . ` or at a line break.
    """
    scorer = rouge_scorer.RougeScorer(_ROUGE)
    lines = ([text.replace(" . ", " .\n") for text in texts] for texts in (targets, predictions))
    scores = [scorer.score(target, prediction) for target, prediction in zip(*lines, strict=True)]
    return {name: 100 * float(np.mean([score[name].fmeasure for score in scores])) for name in _ROUGE}


def bleu(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns the SacreBLEU of the corpus, from 0 to 100, with the tokenization `intl`."""
    return {"bleu": sacrebleu.corpus_bleu(list(predictions), [list(targets)], tokenize="intl").score}
