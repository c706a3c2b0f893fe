"""Tests of the rows of a page against its reference, by their results with each seed.

A row is tested against the reference by Welch's t-test, and the tests of a page are corrected by Holm's method, so that
with nothing true at most one page in twenty shows a difference. Two more variances make a test with three seeds
careful:

- The test set. It is a sample, too, and one that all seeds share. A mean over n rows of numbers in [low, high] has at
  most the variance (mean - low)(high - mean) / n; of accuracies that is the binomial one. It is added to each side.
  Both sides read the same rows, so the sum is more than the difference varies.
- The spread of the page. Three seeds may agree by chance, and discrete values often do. The variance of a row counts
  at least the upper quartile of the variances of all rows of the page.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

# Probability that a page on which nothing is true has a verdict; 1 - LEVEL is the confidence of an interval.
LEVEL = 0.05


class Sample(NamedTuple):
    """Results of one run.

    Attributes:
      values: the metric with each seed.
      test_variance: the variance of a value over test sets of this size; None: unknown.
    """

    values: Sequence[float]
    test_variance: float | None = None


class Difference(NamedTuple):
    """A difference of means with its 95 % interval; None: too few seeds, or no spread that could be measured."""

    mean: float
    low: float | None = None
    high: float | None = None


def bounded_variance(mean: float, limits: tuple[float, float], rows: float) -> float:
    """Returns the greatest variance of a mean over `rows` independent numbers between two limits.

    The mean is drawn to the middle by two rows, one at each limit (Agresti and Caffo 2000): a perfect score on 40 rows
    is no proof of perfection.
    """
    low, high = limits
    share = (rows * (mean - low) / (high - low) + 1) / (rows + 2)
    return (high - low) ** 2 * share * (1 - share) / (rows + 2)


def difference(values: Sample, reference: Sample | None = None, target: float = 0.0) -> Difference:
    """Returns how far the mean of a sample is from that of a reference, or from `target`, with Welch's interval."""
    samples = [values] if reference is None else [values, reference]
    mean = statistics.fmean(values.values) - (target if reference is None else statistics.fmean(reference.values))
    if any(len(sample.values) < 2 for sample in samples):
        return Difference(mean)
    seeds = [_variance(sample.values) / len(sample.values) for sample in samples]
    error, freedom = _error(seeds, samples)
    if not error:
        return Difference(mean)
    width = float(special.stdtrit(freedom, 1 - LEVEL / 2)) * error
    return Difference(mean, mean - width, mean + width)


def p_values(reference: Sample, rows: Sequence[Sample]) -> list[float | None]:
    """Returns the two-sided p-value of each row against the reference; None: it cannot be tested.

    That is so with fewer than two seeds, where neither seeds nor test rows show any spread, and where a value is no
    number.
    """
    counted = [sample for sample in (reference, *rows) if len(sample.values) > 1]
    spreads = [_variance(sample.values) for sample in counted]
    least = float(np.quantile(spreads, 0.75)) if spreads else 0.0
    tests: list[float | None] = []
    for row in rows:
        pair = (row, reference)
        if any(len(sample.values) < 2 for sample in pair):
            tests.append(None)
            continue
        seeds = [max(_variance(sample.values), least) / len(sample.values) for sample in pair]
        error, freedom = _error(seeds, pair)
        gain = abs(statistics.fmean(row.values) - statistics.fmean(reference.values))
        value = 2 * float(special.stdtr(freedom, -gain / error)) if error else math.nan
        tests.append(None if math.isnan(value) else value)  # A diverged run has no test.
    return tests


def holm(values: Sequence[float | None], level: float = LEVEL) -> list[bool]:
    """Returns which hypotheses Holm's step-down method rejects; None is no test, and is not counted."""
    order = sorted((i for i, value in enumerate(values) if value is not None), key=lambda i: values[i])
    rejected = [False] * len(values)
    for rank, i in enumerate(order):
        if values[i] > level / (len(order) - rank):
            break
        rejected[i] = True
    return rejected


def _variance(values: Sequence[float]) -> float:
    """The sample variance, exactly 0 of equal values."""
    return float(np.var(values, ddof=1)) if min(values) < max(values) else 0.0


def _error(seeds: Sequence[float], samples: Sequence[Sample]) -> tuple[float, float]:
    """Returns the standard error of a difference and its degrees of freedom (Welch and Satterthwaite).

    The variance of the test set counts as known.

    Args:
      seeds: the variance of each sample's mean over its seeds.
    """
    total = sum(seeds) + sum(sample.test_variance or 0.0 for sample in samples)
    if not total:
        return 0.0, math.inf
    uncertain = sum((v / total) ** 2 / (len(of.values) - 1) for v, of in zip(seeds, samples, strict=True))
    return math.sqrt(total), 1 / uncertain if uncertain else math.inf
