"""The loss of fine-tuning: the loss of a task's head, optionally plus a language modeling loss."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError, nearest
from plm_jax.losses import vocabulary
from plm_jax.losses.cross_entropy import target_and_largest_other
from plm_jax.losses.loss import Loss
from plm_jax.models import task_heads
from plm_jax.models.heads import TASK


@dataclass(frozen=True)
class TaskLoss(Loss):
    """The loss of the model's head "task". The name of the term is the `kind` of this head.

    - `classes`, `choice`: cross-entropy with `label`, int32 [B].
    - `labels`: mean of the binary cross-entropies with `labels`, float32 [B, C].
    - `score`: squared difference from `score`, float32 [B].
    - `tags`: cross-entropy with `tags`, int32 [B, L], averaged over tokens whose tag is at least 0.
    - `span`: mean of the cross-entropies with `span_starts` and with `span_ends`, both int32 [B]. Each softmax is over
      all positions of a row, including padding, as in BERT.

    Apart from `tags`, these terms are averaged over rows. Rows of padding do not count.

    Attributes:
      lm_coefficient: coefficient of the term `lm`, λ in GPT-1 (Radford et al. 2018 §3.2). The term is the cross-entropy
        of `targets`, weighted by `target_weights`; both arrays have the shape of `tokens`. The term is averaged first
        over the targets of each text and then over texts.
      class_weights: factor of the loss of each class; empty: 1 for every class.
    """

    kind: ClassVar[str] = "task"
    lm_coefficient: ranges.Scale = 0.0
    class_weights: tuple[ranges.Scale, ...] = ()

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the heads that the loss needs. The vocabulary head is only needed for the term `lm`."""
        return (TASK, "vocabulary") if self.lm_coefficient else (TASK,)

    @property
    @override
    def coefficients(self):
        return {"lm": self.lm_coefficient}

    @override
    def weights(self, model, batch):
        head = _head(model)
        weights = {head.kind: _counted(model, head, batch).sum()}
        if self.lm_coefficient:
            weights["lm"] = jnp.sum(batch["target_weights"].sum(-1) > 0, dtype=jnp.float32)
        return weights

    @override
    def __call__(self, model, params, batch, rngs, carry):
        """Returns the results of `Loss.__call__`.

        The metric `accuracy` is the number of correct predictions. For `labels`, it counts the texts whose labels are
        all correct. For `span`, it counts the spans whose start and end are both correct. A `score` has no such metric.
        """
        head = _head(model)
        output, features = task_heads.output(model, params, batch, vocabulary.dropout_keys(rngs))
        losses, correct = LOSSES[head.kind](self, output, batch)
        counted = _counted(model, head, batch)
        terms = {head.kind: jnp.sum(jnp.where(counted > 0, losses, 0.0))}
        metrics = {head.kind: {} if correct is None else {"accuracy": jnp.sum(correct * counted)}}
        if self.lm_coefficient:
            terms["lm"] = self._language_model(model, params, features, batch)
        return terms, metrics, carry

    def _language_model(self, model, params, features, batch):
        flat = {name: batch[name].reshape(features.shape[:2]) for name in ("targets", "target_weights")}
        targets = flat["target_weights"].sum(-1, keepdims=True)
        flat["target_weights"] = flat["target_weights"] / jnp.maximum(targets, 1e-9)
        return vocabulary.sums(self, *vocabulary.head(model, params, features), flat)[0]

    def cross_entropy(self, logits, labels):
        """Returns a pair: the losses, and whether the logit of each label is strictly the largest.

        Args:
          logits: [..., C].
          labels: int32 [...].
        """
        label_logits, largest_others = target_and_largest_other(logits, labels)
        log_z = jax.nn.logsumexp(logits, axis=-1)
        smoothed = self.label_smoothing * (label_logits - logits.mean(-1))
        return log_z - label_logits + self.z_loss * log_z**2 + smoothed, label_logits > largest_others


def _classes(loss, output, batch):
    losses, correct = loss.cross_entropy(output, batch["label"])
    if loss.class_weights:
        losses *= jnp.asarray(loss.class_weights, losses.dtype)[batch["label"]]
    return losses, correct


def _labels(loss, output, batch):
    targets = batch["labels"]
    smoothed = targets + loss.label_smoothing * (0.5 - targets)
    losses = jnp.logaddexp(0, output) - smoothed * output
    return losses.mean(-1), jnp.all((output > 0) == (targets > 0), axis=-1)


def _score(loss, output, batch):
    return (output[:, 0] - batch["score"]) ** 2, None


def _tags(loss, output, batch):
    return loss.cross_entropy(output, batch["tags"])


def _span(loss, output, batch):
    (start, starts_right), (end, ends_right) = (
        loss.cross_entropy(output[..., side], batch[name]) for side, name in enumerate(("span_starts", "span_ends"))
    )
    return (start + end) / 2, starts_right & ends_right


# Functions (loss, output, batch) → (losses, whether each prediction is correct, or None), by kind of the head.
LOSSES = {"classes": _classes, "labels": _labels, "score": _score, "tags": _tags, "span": _span, "choice": _classes}


def _head(model):
    head = model.model.named_heads[TASK]
    if head.kind not in LOSSES:
        raise UserError(f"loss 'task' does not support a head of kind '{head.kind}': {nearest(head.kind, LOSSES)}")
    return head


def _counted(model, head, batch):
    """Returns a mask of the rows [B] or, for `tags`, of the tokens [B, L] that count, float32."""
    mask = batch["decoder_mask" if model.model.has_decoder else "mask"]
    if head.kind == "tags":
        return ((mask > 0) & (batch["tags"] >= 0)).astype(jnp.float32)
    return (mask.reshape(len(mask), -1).max(1) > 0).astype(jnp.float32)
