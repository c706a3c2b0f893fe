"""What a loss is: named terms, each a sum over the batch with a weight that divides it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax

from plm_jax.common import ranges
from plm_jax.common.errors import UserError, nearest
from plm_jax.common.roles import Role
from plm_jax.losses.cross_entropy import LOGITS_AT_ONCE

Batch = Mapping[str, jax.Array]
# By the names of terms: their sums; by those of terms and then of metrics, the metrics' sums.
Terms = dict[str, jax.Array]
Metrics = dict[str, dict[str, jax.Array]]


@dataclass(frozen=True)
class Loss(Role):
    """A pure function `(model, params, batch, rngs, carry) → (terms, metrics, carry)`, what is minimised.

    What is minimised is the sum over the terms of coefficient × sum / weight. Sums, so that microbatches, batches and
    hosts add up; weights are functions of the batch alone, so that those of a whole batch are known before its parts
    are. Metrics are sums, too, each beside the term whose weight divides it.

    Attributes:
      samples: whether it draws in training, with a key `sample`.
      heads: which of a model's `named_heads` it needs, besides those that add terms.
      z_loss: factor of log(Z)² per token (Chowdhery et al. 2022 §5).
      label_smoothing: share of a target's mass spread evenly over the vocabulary.
      logits_at_once: how many of a vocabulary each device holds, about.
    """

    samples: ClassVar[bool] = False
    heads: ClassVar[tuple[str, ...]] = ()
    z_loss: ranges.Scale = 0.0
    label_smoothing: ranges.ShareBelowOne = 0.0
    logits_at_once: Annotated[int, ranges.Range(1, 2**40)] = LOGITS_AT_ONCE

    @property
    def coefficients(self) -> dict[str, float]:
        """Those of the terms; 1 for one that is left out."""
        return {}

    def weights(self, model: Any, batch: Batch) -> dict[str, jax.Array]:
        """By the names of the terms what divides their sums, float32 []: how many are counted in a batch.

        Rows that fill a batch up are zeros throughout, and are not to count.

        Args:
          model: the module, of which the settings alone may be asked.
          batch: a whole one.
        """
        raise NotImplementedError

    def __call__(
        self, model: Any, params: Any, batch: Batch, rngs: Mapping[str, jax.Array] | None, carry: Any
    ) -> tuple[Terms, Metrics, Any]:
        """The sums of a batch or a part of one.

        Args:
          model: the Linen module.
          params: its parameters.
          batch: arrays [B, …].
          rngs: keys `dropout` and `sample`, of which one that is not there is not used; None outside of training.
          carry: a tree of arrays [B, …], a state that each row takes on to the next batch; mostly empty.

        Returns:
          The terms' sums, float32 []; the metrics'; what is carried on.
        """
        raise NotImplementedError

    def decisions(self, model: Any, params: Any, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array, jax.Array]]:
        """Of each of its terms that tells yes from no, of which an evaluation draws the ROC curve: scores, above 0 for
        yes; whether it is so, bool; which of them count, bool; all of a shape. By default there is none.
        """
        return {}


@dataclass(frozen=True)
class Term(Role):
    """A term that a head of a model adds to the losses of the features that it is applied to.

    Its `kind`, which heads name as their `loss`, is its name among the terms.

    Attributes:
      reads: what of a batch it is told by; where a batch lacks some of it, there is no such term.
      head: which of the model's `named_heads` it is of.
    """

    reads: ClassVar[tuple[str, ...]]
    head: str

    def weight(self, model: Any, batch: Batch) -> jax.Array:
        """As one of `Loss.weights`."""
        raise NotImplementedError

    def __call__(
        self, loss: Loss, model: Any, params: Any, features: jax.Array, batch: Batch
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Its sum and its metrics' sums, of the model's features [B, L, D]; `loss` is the one that it is added to."""
        raise NotImplementedError


def terms_of(model: Any, batch: Batch) -> list[Term]:
    """Those of the heads of a module that a batch tells them.

    Raises:
      UserError: a head names a loss that is not there, or two name the same term.
    """
    found = {}
    for name, head in model.model.named_heads.items():
        if head.loss in Term.choices:
            term = Term.choices[head.loss](name)
            other = found.setdefault(term.kind, term)
            if other is not term:
                raise UserError(f"heads '{other.head}' and '{name}' both have the loss '{term.kind}': leave one out")
        elif head.loss is not None and head.loss not in Loss.choices:
            raise UserError(
                f"there is no loss '{head.loss}', which head '{name}' names: {nearest(head.loss, Term.choices)}"
            )
    return [term for term in found.values() if set(term.reads) <= batch.keys()]


def untrained_heads(loss: Loss, model: Any, batch: Batch) -> list[str]:
    """Which of a module's heads name a loss or term that is none of this loss on such batches, arrays or shapes."""
    terms = jax.eval_shape(lambda batch: loss.weights(model, batch), batch)
    known = {None, loss.kind, *terms}
    return [name for name, head in model.model.named_heads.items() if head.loss not in known]


def num_targets(batch: Batch) -> jax.Array:
    """The weight of a mean over targets."""
    return batch["target_weights"].sum()
