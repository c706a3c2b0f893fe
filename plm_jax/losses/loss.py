"""The interface of losses. A loss has named terms; each term is a sum over the batch, divided by a weight."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax

from plm_jax.common import ranges
from plm_jax.common.errors import UserError, nearest
from plm_jax.common.roles import Role
from plm_jax.losses.cross_entropy import LOGITS_AT_ONCE

Batch = Mapping[str, jax.Array]
# Module and parameters of a frozen second model that a loss reads.
Reference = tuple[Any, Any]
# Sums by the name of the term; sums of metrics by the names of the term and the metric.
Terms = dict[str, jax.Array]
Metrics = dict[str, dict[str, jax.Array]]


@dataclass(frozen=True)
class Loss(Role):
    """A training loss: a pure function `(model, params, batch, rngs, carry) → (terms, metrics, carry)`.

    Training minimizes coefficient × sum / weight, summed over all terms. Terms and metrics are returned as sums, which
    can be added over microbatches, batches and hosts. Each sum is then divided by the weight of its term. Weights
    depend on the batch but not on the parameters, so the weights of a whole batch are known before its microbatches are
    processed.

    Attributes:
      samples: whether the loss draws random samples in training, with the key `sample`.
      heads: names of the heads, among the model's `named_heads`, that the loss itself needs. Heads that only add a
        `Term` are not included.
      references: names of the `train.references` that the loss reads. If there are any, the loss is called with an
        argument `references`, a mapping from these names to (module, parameters).
      z_loss: coefficient of the term log(Z)² of each token (Chowdhery et al. 2022 §5).
      label_smoothing: share of a target's probability that is spread evenly over the vocabulary, or over the classes of
        a task.
      logits_at_once: approximate number of vocabulary logits that each device holds at a time.
    """

    samples: ClassVar[bool] = False
    heads: ClassVar[tuple[str, ...]] = ()
    references: ClassVar[tuple[str, ...]] = ()
    z_loss: ranges.Scale = 0.0
    label_smoothing: ranges.ShareBelowOne = 0.0
    logits_at_once: Annotated[int, ranges.Range(1, 2**40)] = LOGITS_AT_ONCE

    @property
    def coefficients(self) -> dict[str, float]:
        """Coefficients by name of the term. Terms that are not listed have the coefficient 1."""
        return {}

    def check_references(self, model: Any, references: Mapping[str, Any]) -> None:
        """Checks that references fit the trained model; by default, all do.

        Args:
          model: settings of the trained model.
          references: settings of each reference, by name.

        Raises:
          UserError: a reference does not fit the trained model.
        """

    def weights(self, model: Any, batch: Batch) -> dict[str, jax.Array]:
        """Returns a dict from each term to its weight, float32 [].

        The weight is the number of items in the batch over which the term is averaged. Rows of zeros, which fill up a
        batch, must not count.

        Args:
          model: the module; only its settings may be read.
          batch: a whole batch.
        """
        raise NotImplementedError

    def __call__(
        self, model: Any, params: Any, batch: Batch, rngs: Mapping[str, jax.Array] | None, carry: Any
    ) -> tuple[Terms, Metrics, Any]:
        """Returns the sums of a batch or a microbatch.

        Args:
          model: the Linen module.
          params: parameters of the module.
          batch: arrays [B, …].
          rngs: keys `dropout` and `sample`, if the model or the loss needs them. None outside of training.
          carry: a tree of arrays [B, …], the recurrent state of each row; empty for most models.

        Returns:
          Three results: the sums of the terms, float32 []; the sums of the metrics; and the carry for the next batch.
          If a step makes several updates (`train.updates`), the carry may also contain named arrays [B, …]. They are
          added to the batch of later updates.
        """
        raise NotImplementedError

    def scores(self, model: Any, params: Any, batch: Batch) -> dict[str, tuple[jax.Array, jax.Array, jax.Array]]:
        """Returns the scores of each binary term, from which evaluation computes ROC curves.

        Returns:
          A dict from the name of each binary term to three arrays of the same shape: scores, which are above 0 for a
          positive prediction; labels, bool; and whether each item counts, bool. By default, the dict is empty.
        """
        return {}


class LossWrapper(Role):
    """A wrapper of an objective's loss in training, such as distillation; validation uses the objective's own loss.

    Attributes:
      references: names of the `train.references` that the wrapped loss reads.
      needs_updates: whether the wrapped loss can only be used for one of several updates per step (`train.updates`).
    """

    references: ClassVar[tuple[str, ...]] = ()
    needs_updates: ClassVar[bool] = False

    def wrap(self, loss: Loss) -> Loss:
        """Returns the loss that training minimizes.

        Raises:
          UserError: the objective's loss is not supported.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Term(Role):
    """A term that a head of the model adds to a loss, computed from the same features as the loss.

    `kind` is the name of the term. A head whose field `loss` has the same value adds the term.

    Attributes:
      reads: names of the arrays that the term needs; batches that lack one of these arrays do not have this term.
      head: name of the term's head among the model's `named_heads`.
    """

    reads: ClassVar[tuple[str, ...]]
    head: str

    def weight(self, model: Any, batch: Batch) -> jax.Array:
        """Returns the weight of the term, as defined in `Loss.weights`."""
        raise NotImplementedError

    def __call__(
        self, loss: Loss, model: Any, params: Any, features: jax.Array, batch: Batch
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Returns a pair: the sum of the term, and the sums of its metrics.

        Args:
          loss: the loss that the term is added to.
          features: [B, L, D].
        """
        raise NotImplementedError


def terms_of(model: Any, batch: Batch) -> list[Term]:
    """Returns the terms that a module's heads add to the loss of a batch.

    Terms whose arrays are not in the batch are left out.

    Raises:
      UserError: a head names an unknown loss, or two heads name the same term.
    """
    terms = {}
    for name, head in model.model.named_heads.items():
        if head.loss in Term.choices:
            term = Term.choices[head.loss](name)
            other = terms.setdefault(term.kind, term)
            if other is not term:
                raise UserError(f"heads '{other.head}' and '{name}' both have the loss '{term.kind}': remove one")
        elif head.loss is not None and head.loss not in Loss.choices:
            raise UserError(f"head '{name}' has an unknown loss '{head.loss}': {nearest(head.loss, Term.choices)}")
    return [term for term in terms.values() if set(term.reads) <= batch.keys()]


def untrained_heads(loss: Loss, model: Any, batch: Batch) -> list[str]:
    """Returns the names of a module's heads that `loss` does not train on `batch`.

    Heads whose field `loss` is None are left out. The batch may consist of shapes instead of arrays.
    """
    terms = jax.eval_shape(lambda batch: loss.weights(model, batch), batch)
    known = {None, loss.kind, *terms}
    heads = model.model.named_heads.items()
    return [name for name, head in heads if head.loss not in known and name not in loss.heads]


def num_targets(batch: Batch) -> jax.Array:
    """Returns the sum of `target_weights`: the weight of a term that is averaged over targets."""
    return batch["target_weights"].sum()
