"""Training losses: pure functions `(model, params, batch, rngs, carry) → (terms, metrics, carry)`."""

import dataclasses
from typing import Any

from plm_jax.common import trees
from plm_jax.common.errors import UserError, nearest
from plm_jax.losses.bidirectional_lm import BidirectionalLMLoss
from plm_jax.losses.distillation import Distillation, DistillationLoss
from plm_jax.losses.loss import Loss, LossWrapper, Term
from plm_jax.losses.means import LossSums
from plm_jax.losses.next_token import MaskedLMLoss, NextTokenLoss
from plm_jax.losses.permutation_lm import PermutationLMLoss
from plm_jax.losses.replaced_token import ReplacedTokenLoss, ReplacedTokenTerm, ReplacedTokenTermLoss
from plm_jax.losses.sentence_pairs import SentencePairsLoss
from plm_jax.losses.span_boundary import SpanBoundaryLoss
from plm_jax.losses.task import TaskLoss

__all__ = [
    "BidirectionalLMLoss",
    "Distillation",
    "DistillationLoss",
    "Loss",
    "LossSums",
    "LossWrapper",
    "MaskedLMLoss",
    "NextTokenLoss",
    "PermutationLMLoss",
    "ReplacedTokenLoss",
    "ReplacedTokenTerm",
    "ReplacedTokenTermLoss",
    "SentencePairsLoss",
    "SpanBoundaryLoss",
    "TaskLoss",
    "Term",
    "get",
]


def get(kind: str, **settings: Any) -> Loss:
    """Returns the loss of a kind, for example `get("masked_lm", z_loss=1e-4)`.

    Raises:
      UserError: the kind or a setting is unknown, or a value is out of range.
    """
    if kind not in Loss.choices:
        raise UserError(f"there is no loss '{kind}': {nearest(kind, Loss.choices)}")
    loss = Loss.choices[kind]
    known = [field.name for field in dataclasses.fields(loss)]
    for setting in settings:
        if setting not in known:
            raise UserError(f"loss '{kind}' has no setting '{setting}': {nearest(setting, known)}")
    return trees.checked(loss(**settings), f"loss '{kind}'")
