"""What a model has to beat: predictors that look at no input."""

import numpy as np

# By metric what a predictor gets that looks at no input: the metric with its figure, or the figure.
PREDICTORS = {
    "real_loss": "unigram_loss",
    "pair_accuracy": "pair_constant_accuracy",
    "discriminator_accuracy": "discriminator_constant_accuracy",
    "discriminator_auc": 0.5,
}

# Scores are counted in bins of 2**-10, those beyond ±32 in the last ones.
_BINS, _LARGEST = 2**16, 32.0


def constant_accuracy(share: float) -> float:
    """The accuracy of always saying the more frequent of two labels, of which one has this share."""
    return max(share, 1.0 - share)


def score_counts(scores: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """How many scores fall into each bin, int64 [2, bins]: of the negative ones and of the positive ones.

    Counts of several batches add up, and take the same memory however many there are.

    Args:
      scores: float [n], such as logits.
      positive: bool [n].
    """
    bins = np.clip((scores.astype(np.float64) + _LARGEST) * (_BINS / (2 * _LARGEST)), 0, _BINS - 1).astype(np.int64)
    return np.bincount(bins + _BINS * positive, minlength=2 * _BINS).reshape(2, _BINS)


def auc(counts: np.ndarray) -> float:
    """The area under the ROC curve: the chance of a positive to score above a negative, ties counted half.

    Args:
      counts: [2, bins], as `score_counts` gives, both rows not empty; what shares a bin is a tie.
    """
    negative, positive = counts.astype(np.float64)
    below = np.cumsum(negative) - negative
    return float(positive @ (below + negative / 2) / (negative.sum() * positive.sum()))
