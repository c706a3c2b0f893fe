"""Prediction of tokens in a random order by a stream of queries (XLNet)."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from plm_jax.losses import vocabulary
from plm_jax.losses.loss import Loss, num_targets


@dataclass(frozen=True)
class PermutationLMLoss(Loss):
    """Cross-entropy of `targets`, which the queries at `target_positions` predict.

    `carry` is the memory of the layers. Gradients do not flow into earlier batches.
    """

    kind: ClassVar[str] = "permutation_lm"
    heads: ClassVar[tuple[str, ...]] = ("vocabulary",)

    @override
    def weights(self, model, batch):
        return {self.kind: num_targets(batch)}

    @override
    def __call__(self, model, params, batch, rngs, carry):
        keys, inputs = vocabulary.dropout_keys(rngs), model.model.read(batch)
        features, carry = model.apply(
            {"params": params}, carry, **inputs, deterministic=not keys, rngs=keys, method="streams"
        )
        loss, metrics = vocabulary.sums(self, *vocabulary.head(model, params, features), batch)
        return {self.kind: loss}, {self.kind: metrics}, carry
