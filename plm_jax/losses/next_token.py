"""Losses of predicting the next tokens or masked tokens of a row, plus the terms of the model's other heads."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from typing_extensions import override

from plm_jax.losses import vocabulary
from plm_jax.losses.loss import Loss, num_targets, terms_of


@dataclass(frozen=True)
class NextTokenLoss(Loss):
    """Cross-entropy of `targets` at each position of a row.

    The row is `decoder_tokens` for an encoder-decoder, and otherwise `tokens`. The terms of the model's other heads are
    added if the batch has their arrays.
    """

    kind: ClassVar[str] = "next_token"
    heads: ClassVar[tuple[str, ...]] = ("vocabulary",)

    @override
    def weights(self, model, batch):
        return {self.kind: num_targets(batch)} | {
            term.kind: term.weight(model, batch) for term in terms_of(model, batch)
        }

    @override
    def __call__(self, model, params, batch, rngs, carry):
        features = vocabulary.features_of(model, params, batch, rngs)
        return *self.of_features(model, params, features, batch), carry

    def of_features(self, model, params, features, batch):
        """Returns a pair: the sums of the terms, and the sums of the metrics.

        Args:
          features: features of the model, [B, L, D].
        """
        head = vocabulary.head(model, params, self.predicting(features, batch))
        sums = {self.kind: vocabulary.sums(self, *head, batch)}
        sums |= {term.kind: term(self, model, params, features, batch) for term in terms_of(model, batch)}
        losses, metrics = ({name: pair[i] for name, pair in sums.items()} for i in range(2))
        return losses, metrics

    def predicting(self, features, batch):
        """Selects the features that predict targets, [B, L, D] → [B, T, D]; by default, returns all features."""
        return features

    def real_tokens(self, batch):
        """Returns a mask of the tokens that count in a mean over tokens, float32 [B, L].

        In this class, these are the positions with a target.
        """
        return (batch["target_weights"] > 0).astype(jnp.float32)


@dataclass(frozen=True)
class MaskedLMLoss(NextTokenLoss):
    """Cross-entropy of `targets` at `target_positions`; otherwise like `NextTokenLoss`."""

    kind: ClassVar[str] = "masked_lm"

    @override
    def predicting(self, features, batch):
        return vocabulary.at_targets(features, batch)

    @override
    def real_tokens(self, batch):
        tokens = batch["tokens"]
        return batch["mask"].astype(jnp.float32) if "mask" in batch else jnp.ones(tokens.shape, jnp.float32)
