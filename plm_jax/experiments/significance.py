"""Significance tests of the rows of a table against a reference row, from the results with each seed.

Each row is tested against the reference by Welch's t-test, and the tests of a table are corrected by Holm's method. If
no row truly differs, a table shows a significant difference with a probability of at most 5 %. Two further variances
make tests with three seeds conservative:

- Test set: all seeds are evaluated on the same test set. The mean over n rows of numbers in [low, high] has a variance
  of at most (mean - low)(high - mean) / n, which is the binomial variance for accuracies. This bound is added to the
  variance of each run. Both runs are tested on the same rows, so the variance of their difference is smaller than the
  sum of the variances.
- Spread of the table: three seeds may agree by chance, and discrete values often do. The variance of a row is at least
  the upper quartile of the variances of all rows. Runs that have diverged do not count.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

# Largest probability that a table without true differences has a verdict; 1 - LEVEL is the confidence of an interval.
LEVEL = 0.05


class Sample(NamedTuple):
    """Results of one run.

    Attributes:
      values: value of the metric with each seed.
      test_variance: variance of a value over test sets of the same size; None if it is unknown.
    """

    values: Sequence[float]
    test_variance: float | None = None


class MeanDifference(NamedTuple):
    """Difference of means with its 95 % interval. The limits are None with too few seeds or without any spread."""

    mean: float
    low: float | None = None
    high: float | None = None


def bounded_variance(mean: float, limits: tuple[float, float], rows: float) -> float:
    """Returns the largest possible variance of a mean over `rows` independent numbers between two limits.

    Two numbers, one at each limit, are added (Agresti and Caffo 2000). The variance of a perfect score is therefore
    above 0.
    """
    low, high = limits
    share = (rows * (mean - low) / (high - low) + 1) / (rows + 2)
    return (high - low) ** 2 * share * (1 - share) / (rows + 2)


def difference(values: Sample, reference: Sample | None = None, target: float = 0.0) -> MeanDifference:
    """Returns the difference between the mean of a sample and the mean of a reference, with Welch's interval.

    Without a reference, `target` is subtracted from the mean.
    """
    samples = [values] if reference is None else [values, reference]
    mean = statistics.fmean(values.values) - (target if reference is None else statistics.fmean(reference.values))
    if any(len(sample.values) < 2 for sample in samples):
        return MeanDifference(mean)
    seeds = [_variance(sample.values) / len(sample.values) for sample in samples]
    error, freedom = _error(seeds, samples)
    if not error:
        return MeanDifference(mean)
    width = float(special.stdtrit(freedom, 1 - LEVEL / 2)) * error
    return MeanDifference(mean, mean - width, mean + width)


def p_values(reference: Sample, rows: Sequence[Sample]) -> list[float | None]:
    """Returns the two-sided p-value of each row against the reference, or None for a row that cannot be tested.

    A row cannot be tested with fewer than two seeds, without any spread over seeds or test rows, or if a value is NaN.
    """
    counted = [sample for sample in (reference, *rows) if len(sample.values) > 1]
    variances = [_variance(sample.values) for sample in counted]
    spreads = [variance for variance in variances if math.isfinite(variance)]
    min_variance = float(np.quantile(spreads, 0.75)) if spreads else 0.0
    tests: list[float | None] = []
    for row in rows:
        pair = (row, reference)
        if any(len(sample.values) < 2 for sample in pair):
            tests.append(None)
            continue
        seeds = [max(_variance(sample.values), min_variance) / len(sample.values) for sample in pair]
        error, freedom = _error(seeds, pair)
        gain = abs(statistics.fmean(row.values) - statistics.fmean(reference.values))
        value = 2 * float(special.stdtr(freedom, -gain / error)) if error else math.nan
        tests.append(None if math.isnan(value) else value)  # A diverged run is not tested.
    return tests


def holm(values: Sequence[float | None], level: float = LEVEL) -> list[bool]:
    """Returns whether Holm's step-down method rejects each hypothesis.

    Args:
      values: p-value of each hypothesis, or None without a test.
      level: largest probability of rejecting at least one true hypothesis.
    """
    order = sorted((value, i) for i, value in enumerate(values) if value is not None)
    rejected = [False] * len(values)
    for rank, (value, i) in enumerate(order):
        if value > level / (len(order) - rank):
            break
        rejected[i] = True
    return rejected


def _variance(values: Sequence[float]) -> float:
    """Returns the sample variance: exactly 0 for equal values, and NaN if a value is NaN."""
    return 0.0 if all(value == values[0] for value in values) else float(np.var(values, ddof=1))


def _error(seeds: Sequence[float], samples: Sequence[Sample]) -> tuple[float, float]:
    """Returns the standard error of a difference and its degrees of freedom (Welch and Satterthwaite).

    The variance of the test set is treated as known.

    Args:
      seeds: for each sample, the variance of its mean over seeds.
    """
    total = sum(seeds) + sum(sample.test_variance or 0.0 for sample in samples)
    if not total:
        return 0.0, math.inf
    uncertain = sum(
        (variance / total) ** 2 / (len(sample.values) - 1) for variance, sample in zip(seeds, samples, strict=True)
    )
    return math.sqrt(total), 1 / uncertain if uncertain else math.inf
