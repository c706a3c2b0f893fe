"""The suite's metrics, each `fn(targets, predictions)` → {name: value}, as seqio's tasks take them.

Names and definitions are those of `t5/evaluation/metrics.py` of google-research/text-to-text-transfer-transformer. T5
reports per cent; here shares and correlations are fractions, and BLEU and ROUGE points from 0 to 100
(`common.metrics`). ROUGE is the mean over the summaries; T5 reports the median of bootstrapped means.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sacrebleu
import scipy.stats
import sklearn.metrics
from rouge_score import rouge_scorer

from plm_jax.data.labelled.metrics import answer_words, word_f1

Metric = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]

_ROUGE = ("rouge1", "rouge2", "rougeLsum")


def accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Share of predictions equal to their targets."""
    return {"accuracy": float(sklearn.metrics.accuracy_score(targets, predictions))}


def matthews_corrcoef(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """Matthews's correlation."""
    return {"matthews_corrcoef": float(sklearn.metrics.matthews_corrcoef(targets, predictions))}


def pearson_corrcoef(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Pearson's correlation."""
    found: Any = scipy.stats.pearsonr(targets, predictions)
    return {"pearson_corrcoef": float(found.statistic)}


def spearman_corrcoef(targets: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Spearman's rank correlation."""
    found: Any = scipy.stats.spearmanr(targets, predictions)
    return {"spearman_corrcoef": float(found.statistic)}


def binary_f1(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """F1 of label 1; a prediction that is neither 0 nor 1 counts as the wrong one."""
    truth, found = np.asarray(targets), np.asarray(predictions)
    found = np.where(np.isin(found, (0, 1)), found, 1 - truth)
    return {"f1": float(sklearn.metrics.f1_score(truth, found))}


def mean_3class_f1(targets: Sequence[int], predictions: Sequence[int]) -> dict[str, float]:
    """The mean of the F1 of labels 0, 1 and 2."""
    value = sklearn.metrics.f1_score(targets, predictions, labels=range(3), average="macro")
    return {"mean_3class_f1": float(value)}


def all_match(targets: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Returns 1 if all predictions are correct, else 0."""
    return {"exact_match": float(list(targets) == list(predictions))}


def of_values(metric: Metric) -> Metric:
    """`metric` of what postprocessors put under `value`."""

    def of(targets, predictions):
        return metric([target["value"] for target in targets], [found["value"] for found in predictions])

    return of


def once_a_group(metric: Metric) -> Metric:
    """`metric` of the values of each group's first example."""

    def once(targets, predictions):
        first = {}
        for pair in zip(targets, predictions, strict=True):
            first.setdefault(pair[0]["group"], pair)
        return of_values(metric)(*zip(*first.values(), strict=True))

    return once


def mean_of_groups(metric: Metric) -> Metric:
    """The mean over groups of `metric` of the values of each."""

    def mean(targets, predictions):
        groups = collections.defaultdict(list)
        for pair in zip(targets, predictions, strict=True):
            groups[pair[0]["group"]].append(pair)
        found = [of_values(metric)(*zip(*pairs, strict=True)) for pairs in groups.values()]
        return {name: float(np.mean([values[name] for values in found])) for name in found[0]}

    return mean


def squad(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Exact match and F1 of words, each against the best of the right answers; SQuAD's own normalisation.

    F1 of nothing against nothing is 0, as in SQuAD 1.1's own script and in T5; by that of 2.0 it is 1, see
    `data.labelled.metrics`.
    """
    exact, f1 = [], []
    for right, found in zip(targets, predictions, strict=True):
        words, wanted = answer_words(found), [answer_words(answer) for answer in right]
        exact.append(words in wanted)
        f1.append(max(word_f1(of, words) for of in wanted) if words else 0.0)
    return {"em": float(np.mean(exact)), "f1": float(np.mean(f1))}


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """F1 of ROUGE-1, ROUGE-2 and ROUGE-L, the last by sentences, which end at a lone full stop or a line's end."""
    scorer = rouge_scorer.RougeScorer(_ROUGE)
    lines = ([text.replace(" . ", " .\n") for text in texts] for texts in (targets, predictions))
    scores = [scorer.score(target, found) for target, found in zip(*lines, strict=True)]
    return {name: 100 * float(np.mean([score[name].fmeasure for score in scores])) for name in _ROUGE}


def bleu(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """SacreBLEU of the corpus, tokenised as `intl`."""
    return {"bleu": sacrebleu.corpus_bleu(list(predictions), [list(targets)], tokenize="intl").score}
