"""From the sums of a loss to its means: in training, in validation and in evaluation."""

import functools
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from plm_jax.losses.loss import Batch, Loss, Metrics, Terms


class LossSums(NamedTuple):
    """A tree of sums over batches: of a loss's terms, of its metrics, and what divides those of each term."""

    terms: Terms
    metrics: Metrics
    weights: dict[str, jax.Array]


def sums(loss: Loss, model: Any, params: Any, batch: Batch, carry: Any) -> tuple[LossSums, Any]:
    """Those of a whole batch outside of training, and what is carried on."""
    terms, metrics, carry = loss(model, params, batch, None, carry)
    return LossSums(terms, metrics, loss.weights(model, batch)), carry


def unit(weights: Mapping[str, jax.Array]) -> jax.Array:
    """What `in_units` leaves to divide by: the weight of the first term."""
    return _divisor(next(iter(weights.values())))


def _divisor(weight):
    """1 where nothing is counted."""
    return weight + (weight == 0)


def in_units(loss: Loss, terms: Terms, weights: Mapping[str, jax.Array]) -> jax.Array:
    """What is minimised times `unit(weights)`, of the terms of a part of a batch and the weights of the whole.

    So the gradients of the first term, mostly the only one, are those of its sum: in bfloat16, too, no factor is
    rounded into them, and all are divided once, in float32.
    """
    first = next(iter(weights))
    scaled = {name: value * loss.coefficients.get(name, 1.0) for name, value in terms.items()}
    ratios = {name: 1.0 if name == first else unit(weights) / _divisor(weights[name]) for name in terms}
    return functools.reduce(operator.add, (scaled[name] * ratios[name] for name in terms))


def means(loss: Loss, found: LossSums) -> dict[str, Any]:
    """`loss`, what is minimised; where it has several terms each term's mean by NAME_loss; the metrics' means.

    An empty weight makes a mean of 0.
    """
    divisors = {name: _divisor(weight) for name, weight in found.weights.items()}
    terms = {name: value / divisors[name] for name, value in found.terms.items()}
    made = {"loss": sum(loss.coefficients.get(name, 1.0) * value for name, value in terms.items())}
    if len(terms) > 1:
        made |= {f"{name}_loss": value for name, value in terms.items()}
    return made | {key: value / divisors[name] for name, own in found.metrics.items() for key, value in own.items()}


def add(total: LossSums | None, found: LossSums) -> LossSums:
    """Sums over batches, numbers in double precision, with those of one more; None: there were none."""
    found = jax.tree.map(float, found)
    return found if total is None else jax.tree.map(operator.add, total, found)


def of_total(loss: Loss, total: LossSums | None) -> dict[str, float]:
    """The `means` of sums over batches; nothing of a term for which they count nothing."""
    if total is None or not any(total.weights.values()):
        return {}
    counted = [name for name, weight in total.weights.items() if weight]
    terms = {name: total.terms[name] for name in counted if name in total.terms}
    metrics = {name: total.metrics[name] for name in counted if name in total.metrics}
    return means(loss, LossSums(terms, metrics, {name: total.weights[name] for name in counted}))
