"""Trivial baselines that a model has to beat: predictors that look at no input."""

from collections.abc import Collection

import numpy as np

# By metric what such a predictor gets: the metric with its figure, or the figure. A discriminator's accuracy is not
# here: it says that a token is replaced only where it is more than half sure, which with one token in seven replaced
# asks for more than telling them apart; that is what the area under its ROC curve measures.
_PREDICTORS = {
    "real_loss": "unigram_loss",
    "pair_accuracy": "pair_constant_accuracy",
    "discriminator_auc": 0.5,
    "accuracy": "chance",
}


def predictor(metric: str, found: Collection[str]) -> str | float | None:
    """What a predictor gets that looks at no input: a metric among those `found`, or a figure; None: there is none."""
    of_answers = (f"{prefix}_{metric}" for prefix in ("most_frequent", "trivial"))
    return next((name for name in of_answers if name in found), _PREDICTORS.get(metric))


def constant_accuracy(share: float) -> float:
    """The accuracy of always saying the more frequent of two labels, of which one has this share."""
    return max(share, 1.0 - share)


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """The area under the ROC curve: the chance of a positive to score above a negative, ties counted half.

    Args:
      scores: [n], such as logits.
      positive: bool [n]; some are, some are not.
    """
    values, at = np.unique(scores, return_inverse=True)
    positives, negatives = (np.bincount(at[positive == which], minlength=len(values)) for which in (True, False))
    below = negatives.cumsum() - negatives
    return float(positives @ (below + negatives / 2) / (positives.sum() * negatives.sum(dtype=np.float64)))
