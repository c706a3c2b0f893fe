"""Prediction of each next token or of some tokens of a row, and what other heads tell of the same features."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from plm_jax.losses import vocabulary
from plm_jax.losses.loss import Loss, num_targets, terms_of


@dataclass(frozen=True)
class NextTokenLoss(Loss):
    """Cross-entropy at each of `tokens`, of `decoder_tokens` where there are some, with `targets`.

    The terms of the model's other heads are added, as far as the batch tells them.
    """

    kind: ClassVar[str] = "next_token"
    heads: ClassVar[tuple[str, ...]] = ("vocabulary",)

    def weights(self, model, batch):
        """Targets, and what the other terms count."""
        return {self.kind: num_targets(batch)} | {
            term.kind: term.weight(model, batch) for term in terms_of(model, batch)
        }

    @override
    def __call__(self, model, params, batch, rngs, carry):
        features = vocabulary.features_of(model, params, batch, rngs)
        head = vocabulary.head(model, params, self.predicting(features, batch))
        found = {self.kind: vocabulary.sums(self, *head, batch)}
        found |= {term.kind: term(self, model, params, features, batch) for term in terms_of(model, batch)}
        return {name: loss for name, (loss, _) in found.items()}, {name: own for name, (_, own) in found.items()}, carry

    def predicting(self, features, batch):
        """Of features [B, L, D] those that targets are predicted from, [B, T, D]."""
        return features


@dataclass(frozen=True)
class MaskedLMLoss(NextTokenLoss):
    """As `NextTokenLoss`, at `target_positions` alone."""

    kind: ClassVar[str] = "masked_lm"

    def predicting(self, features, batch):
        """Those at `target_positions`."""
        return vocabulary.at_targets(features, batch)
