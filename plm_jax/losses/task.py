"""What fine-tuning minimises: the loss of a task's head, and beside it that of a language model."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError, nearest
from plm_jax.losses import vocabulary
from plm_jax.losses.cross_entropy import own_and_largest_other
from plm_jax.losses.loss import Loss
from plm_jax.models import task_heads
from plm_jax.models.heads import TASK


@dataclass(frozen=True)
class TaskLoss(Loss):
    """The loss of the model's head "task", a term called as that head's kind, by what rows are labelled with.

    `classes` and `choice`: cross-entropy with `label` int32 [B]. `score`: squared error from `score` float32 [B].
    `tags`: cross-entropy with `tags` int32 [B, L] where these are at least 0, in the mean over such tokens. `span`:
    half of the cross-entropy of `span_starts` and of `span_ends` int32 [B] over all places of a row, padding too, as in
    BERT. All but the tags' are means over rows; those of padding alone do not count.

    Attributes:
      lm_coefficient: of a further term, `lm`, GPT-1's λ: the cross-entropy of `targets` under `target_weights`, both of
        the shape of `tokens`, in the mean over a text's targets, then over texts (Radford et al. 2018 §3.2).
    """

    kind: ClassVar[str] = "task"
    lm_coefficient: ranges.Scale = 0.0

    @property
    def heads(self) -> tuple[str, ...]:
        """The vocabulary's only for its own term."""
        return (TASK, "vocabulary") if self.lm_coefficient else (TASK,)

    @property
    def coefficients(self):
        """The task's is 1."""
        return {"lm": self.lm_coefficient}

    def weights(self, model, batch):
        """Rows, or tokens with a tag; texts with a target."""
        head = _head(model)
        found = {head.kind: _counted(model, head, batch).sum()}
        if self.lm_coefficient:
            found["lm"] = jnp.sum(batch["target_weights"].sum(-1) > 0, dtype=jnp.float32)
        return found

    @override
    def __call__(self, model, params, batch, rngs, carry):
        """`accuracy` is the share of right classes, tags and choices, and of spans right at both ends."""
        head = _head(model)
        output, features = task_heads.output(model, params, batch, vocabulary.dropout_keys(rngs))
        each, right = LOSSES[head.kind](self, output, batch)
        counted = _counted(model, head, batch)
        terms = {head.kind: jnp.sum(jnp.where(counted > 0, each, 0.0))}
        metrics = {head.kind: {} if right is None else {"accuracy": jnp.sum(right * counted)}}
        if self.lm_coefficient:
            terms["lm"] = self._language_model(model, params, features, batch)
        return terms, metrics, carry

    def _language_model(self, model, params, features, batch):
        flat = {name: batch[name].reshape(features.shape[:2]) for name in ("targets", "target_weights")}
        targets = flat["target_weights"].sum(-1, keepdims=True)
        flat["target_weights"] = flat["target_weights"] / jnp.maximum(targets, 1e-9)
        return vocabulary.sums(self, *vocabulary.head(model, params, features), flat)[0]

    def cross_entropy(self, logits, labels):
        """Of logits [..., C] with labels int32 [...], and whether the label's logit is above all others."""
        own, other = own_and_largest_other(logits, labels)
        log_z = jax.nn.logsumexp(logits, axis=-1)
        smoothed = self.label_smoothing * (own - logits.mean(-1))
        return log_z - own + self.z_loss * log_z**2 + smoothed, own > other


def _classes(loss, output, batch):
    return loss.cross_entropy(output, batch["label"])


def _score(loss, output, batch):
    return (output[:, 0] - batch["score"]) ** 2, None


def _tags(loss, output, batch):
    return loss.cross_entropy(output, batch["tags"])


def _span(loss, output, batch):
    (start, starts_right), (end, ends_right) = (
        loss.cross_entropy(output[..., side], batch[name]) for side, name in enumerate(("span_starts", "span_ends"))
    )
    return (start + end) / 2, starts_right & ends_right


# By the kinds of heads: the loss, an output and a batch → each item's loss, and whether it is right (None: no such).
LOSSES = {"classes": _classes, "score": _score, "tags": _tags, "span": _span, "choice": _classes}


def _head(model):
    head = model.model.named_heads[TASK]
    if head.kind not in LOSSES:
        raise UserError(f"loss 'task' knows no head of kind '{head.kind}': {nearest(head.kind, LOSSES)}")
    return head


def _counted(model, head, batch):
    """Float32, 1 for the rows [B] or tokens [B, L] that count."""
    mask = batch["decoder_mask" if model.model.has_decoder else "mask"]
    if head.kind == "tags":
        return ((mask > 0) & (batch["tags"] >= 0)).astype(jnp.float32)
    return (mask.reshape(len(mask), -1).max(1) > 0).astype(jnp.float32)
