"""Means of a loss from its sums, in training, validation and evaluation."""

import functools
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from plm_jax.losses.loss import Batch, Loss, Metrics, Terms


class LossSums(NamedTuple):
    """Sums over batches: the terms of a loss, its metrics, and the weight of each term."""

    terms: Terms
    metrics: Metrics
    weights: dict[str, jax.Array]


def sums(loss: Loss, model: Any, params: Any, batch: Batch, carry: Any) -> tuple[LossSums, Any]:
    """Evaluates a whole batch outside of training; returns its sums and the carry for the next batch."""
    terms, metrics, carry = loss(model, params, batch, None, carry)
    return LossSums(terms, metrics, loss.weights(model, batch)), carry


def unit(weights: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the weight of the first term, or 1 if it is 0. Results of `in_units` must be divided by this number."""
    return _divisor(next(iter(weights.values())))


def _divisor(weight):
    return weight + (weight == 0)  # An empty term has the mean 0.


def in_units(loss: Loss, terms: Terms, weights: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the contribution of a microbatch to the loss, multiplied by `unit(weights)`.

    The first term, usually the only term, is multiplied only by its coefficient. If the coefficient is 1, the gradients
    of this term are those of a plain sum, so bfloat16 gradients have no rounding error from a factor. The caller
    divides the gradients by `unit(weights)` once, in float32.

    Args:
      terms: sums of the microbatch.
      weights: weights of the whole batch.
    """
    first = next(iter(weights))
    scaled = {name: value * loss.coefficients.get(name, 1.0) for name, value in terms.items()}
    ratios = {name: 1.0 if name == first else unit(weights) / _divisor(weights[name]) for name in terms}
    return functools.reduce(operator.add, (scaled[name] * ratios[name] for name in terms))


def means(loss: Loss, sums: LossSums) -> dict[str, Any]:
    """Returns a dict with `loss`, the value that is minimized, and the mean of each metric.

    With several terms, it also contains the mean of each term as NAME_loss. A term with weight 0 has the mean 0.
    """
    divisors = {name: _divisor(weight) for name, weight in sums.weights.items()}
    terms = {name: value / divisors[name] for name, value in sums.terms.items()}
    results = {"loss": sum(loss.coefficients.get(name, 1.0) * value for name, value in terms.items())}
    if len(terms) > 1:
        results |= {f"{name}_loss": value for name, value in terms.items()}
    return results | {key: value / divisors[name] for name, term in sums.metrics.items() for key, value in term.items()}


def add(total: LossSums | None, sums: LossSums) -> LossSums:
    """Adds the sums of a batch to a total, in double precision. A total of None counts as 0."""
    sums = jax.tree.map(float, sums)
    return sums if total is None else jax.tree.map(operator.add, total, sums)


def of_total(loss: Loss, total: LossSums | None) -> dict[str, float]:
    """Returns the result of `means` for the sums over several batches.

    Terms whose total weight is 0 are left out. If all weights are 0, or `total` is None, the dict is empty.
    """
    if total is None or not any(total.weights.values()):
        return {}
    counted = [name for name, weight in total.weights.items() if weight]
    terms = {name: total.terms[name] for name in counted if name in total.terms}
    metrics = {name: total.metrics[name] for name in counted if name in total.metrics}
    return means(loss, LossSums(terms, metrics, {name: total.weights[name] for name in counted}))
