"""Two predictions of each word: from the words before it, and from the words after it."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.losses import vocabulary
from plm_jax.losses.loss import Loss, num_targets
from plm_jax.losses.sampled_softmax import sampled_softmax


@dataclass(frozen=True)
class BidirectionalLMLoss(Loss):
    """Cross-entropy of `targets` [B, 2, L], averaged over the targets of both directions.

    `carry` is the state of the LSTMs. The state is an input of each batch, and gradients do not flow into earlier
    batches.

    Attributes:
      negative_samples: number of words drawn for `sampled_softmax` in training; 0 uses the full softmax. With a sampled
        softmax, training reports no metrics.
    """

    kind: ClassVar[str] = "bidirectional_lm"
    heads: ClassVar[tuple[str, ...]] = ("vocabulary",)
    negative_samples: ranges.LengthOrZero = 0

    @property
    def samples(self) -> bool:
        """Whether training uses a sampled softmax."""
        return self.negative_samples > 0

    @override
    def weights(self, model, batch):
        return {"bidirectional_lm": num_targets(batch)}

    @override
    def __call__(self, model, params, batch, rngs, carry):
        keys = vocabulary.dropout_keys(rngs)
        features, carry = model.apply(
            {"params": params}, batch["characters"], carry, deterministic=not keys, rngs=keys, method="streams"
        )
        rows = len(features)
        flat = {name: batch[name].reshape(rows, -1) for name in ("targets", "target_weights")}
        features = features.reshape(rows, -1, features.shape[-1])
        if rngs is None or not self.samples:
            loss, metrics = vocabulary.sums(self, *vocabulary.head(model, params, features), flat)
        else:
            matrix, bias = model.apply({"params": params}, method="unembedding")
            targets, weights, key = flat["targets"], flat["target_weights"], rngs["sample"]
            loss, metrics = sampled_softmax(features, matrix, bias, targets, weights, key, self.negative_samples), {}
        return {"bidirectional_lm": loss}, {"bidirectional_lm": metrics}, carry
