"""Trivial baselines that a model has to beat: predictors that ignore the input."""

from collections.abc import Mapping

import numpy as np

from plm_jax.common import metrics as declarations

# Baseline of each metric: the name of another metric, or a constant. The accuracy of a discriminator is left out: a
# discriminator predicts "replaced" only where the probability exceeds one half. If one token in seven is replaced, it
# may rank replaced tokens above the others, which the area under the ROC curve measures, and still predict "replaced"
# nowhere.
_BASELINES = {
    "real_loss": "unigram_loss",
    "pair_accuracy": "pair_constant_accuracy",
    "discriminator_auc": 0.5,
    "accuracy": "chance",
}


def baseline_of(metrics: Mapping[str, float], name: str) -> str | float | None:
    """Finds the baseline of a metric: the result of a predictor that ignores the input.

    Args:
      metrics: metrics by names such as `SOURCE/accuracy`.
      name: name of the metric, such as `SOURCE/accuracy`.

    Returns:
      The name of the baseline in `metrics`; or the value of the baseline if it is a constant, such as 0 for a
      correlation; or None if no baseline is known.
    """
    metric = name.rpartition("/")[2]
    for group in declarations.groups(name):
        candidates = [f"{group}/{prefix}{metric}" for prefix in declarations.BASELINES]
        baseline = next((other for other in candidates if other in metrics), _BASELINES.get(metric))
        if isinstance(baseline, float) or baseline in metrics:
            return baseline
        if f"{group}/{baseline}" in metrics:
            return f"{group}/{baseline}"
    declared = declarations.declared(name)
    return 0.0 if declared is not None and declared.unit == "correlation" else None


def trivial_value(metrics: Mapping[str, float], name: str) -> float | None:
    """Returns the value of the baseline of a metric, or None if no baseline is known."""
    baseline = baseline_of(metrics, name)
    return metrics[baseline] if isinstance(baseline, str) else baseline


def constant_accuracy(share: float) -> float:
    """Returns the accuracy of always predicting the more frequent of two labels.

    Args:
      share: share of one of the two labels.
    """
    return max(share, 1.0 - share)


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Returns the area under the ROC curve.

    This is the probability that a positive item has a higher score than a negative item. Ties count half.

    Args:
      scores: scores such as logits, [n].
      positive: whether each item is positive, bool [n]; both values must occur.
    """
    values, at = np.unique(scores, return_inverse=True)
    positives, negatives = (np.bincount(at[positive == label], minlength=len(values)) for label in (True, False))
    below = negatives.cumsum() - negatives
    return float(positives @ (below + negatives / 2) / (positives.sum() * negatives.sum(dtype=np.float64)))
