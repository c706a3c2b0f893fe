"""Prediction of spans from their boundaries."""

from dataclasses import dataclass
from typing import ClassVar

from plm_jax.losses import vocabulary
from plm_jax.losses.loss import Term


@dataclass(frozen=True)
class SpanBoundary(Term):
    """Cross-entropy of each target from its span's two ends, as far as SpanBERT's head counts (Joshi et al. 2020 §3.2).

    Its mean is over the targets that count.
    """

    kind: ClassVar[str] = "boundary"

    def applies(self, model, batch):
        """Targets that tell their spans, and the head."""
        return "target_offsets" in batch and _positions(model) > 0

    def weight(self, model, batch):
        """Targets near enough to their span's beginning."""
        return _counted(model, batch).sum()

    def __call__(self, loss, model, params, features, batch):
        """See `Term`."""
        spans = [batch[f"target_{name}"] for name in ("left", "right", "offsets")]
        head = model.apply({"params": params}, features, *spans, method="boundary_head")
        found, metrics = vocabulary.sums(loss, *head, batch | {"target_weights": _counted(model, batch)})
        return found, {"boundary_accuracy": metrics["accuracy"]}


def _counted(model, batch):
    return batch["target_weights"] * (batch["target_offsets"] < _positions(model))


def _positions(model) -> int:
    """How many tokens of a span the model's head predicts; 0: it has none."""
    return getattr(getattr(model.model, "span_boundary", None), "positions", 0)
