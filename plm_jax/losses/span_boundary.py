"""Prediction of spans from their boundaries."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from plm_jax.losses import vocabulary
from plm_jax.losses.loss import Term


@dataclass(frozen=True)
class SpanBoundaryLoss(Term):
    """Cross-entropy of each target, predicted from the two boundaries of its span (SpanBERT, Joshi et al. 2020 §3.2).

    A target is left out if its index in the span is not below the head's setting `positions`. The mean is over the
    remaining targets.
    """

    kind: ClassVar[str] = "boundary"
    reads: ClassVar[tuple[str, ...]] = ("target_left", "target_right", "target_offsets")

    @override
    def weight(self, model, batch):
        return self._counted(model, batch).sum()

    @override
    def __call__(self, loss, model, params, features, batch):
        inputs = (batch[name] for name in self.reads)
        features, matrix, bias = model.apply({"params": params}, features, *inputs, method="boundary_head")
        boundary_loss, metrics = vocabulary.sums(
            loss, features, matrix, bias, {**batch, "target_weights": self._counted(model, batch)}
        )
        return boundary_loss, {"boundary_accuracy": metrics["accuracy"]}

    def _counted(self, model, batch):
        """Returns the weights of the targets [B, T], with 0 for targets that are left out."""
        return batch["target_weights"] * (batch["target_offsets"] < model.model.named_heads[self.head].positions)
