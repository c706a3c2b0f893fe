"""Prediction of some tokens of a row."""

from dataclasses import dataclass
from typing import ClassVar

from plm_jax.losses.features import at_targets
from plm_jax.losses.next_token import NextTokenLoss


@dataclass(frozen=True)
class MaskedLMLoss(NextTokenLoss):
    """As `NextTokenLoss`, at `target_positions` alone."""

    kind: ClassVar[str] = "masked_lm"

    def predicting(self, features, batch):
        """Those at `target_positions`."""
        return at_targets(features, batch)
