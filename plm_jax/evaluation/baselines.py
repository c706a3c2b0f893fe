"""Trivial baselines that a model has to beat: predictors that look at no input."""

from collections.abc import Collection

import numpy as np

# Baseline of each metric: the name of another metric, or a constant. The accuracy of a discriminator is left out: a
# discriminator predicts "replaced" only where the probability exceeds one half. With one token in seven replaced, that
# takes more than ranking replaced tokens above the others, which the area under the ROC curve measures.
_BASELINES = {
    "real_loss": "unigram_loss",
    "pair_accuracy": "pair_constant_accuracy",
    "discriminator_auc": 0.5,
    "accuracy": "chance",
}


def trivial_baseline(metric: str, available: Collection[str]) -> str | float | None:
    """Returns the score of a predictor that ignores the input, to compare a metric with.

    Args:
      metric: name of the metric, without a prefix.
      available: names of the metrics that were computed.

    Returns:
      The name of an available metric, a constant, or None if no such baseline is known.
    """
    answer_baselines = (f"{prefix}_{metric}" for prefix in ("most_frequent", "trivial"))
    return next((name for name in answer_baselines if name in available), _BASELINES.get(metric))


def constant_accuracy(share: float) -> float:
    """Returns the accuracy of always predicting the more frequent of two labels, given the share of either label."""
    return max(share, 1.0 - share)


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Returns the area under the ROC curve: the probability that a positive scores above a negative. Ties count half.

    Args:
      scores: scores such as logits, [n].
      positive: whether each item is a positive, bool [n]; both values must occur.
    """
    values, at = np.unique(scores, return_inverse=True)
    positives, negatives = (np.bincount(at[positive == label], minlength=len(values)) for label in (True, False))
    below = negatives.cumsum() - negatives
    return float(positives @ (below + negatives / 2) / (positives.sum() * negatives.sum(dtype=np.float64)))
