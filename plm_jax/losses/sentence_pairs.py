"""Classification of sentence pairs."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from plm_jax.losses.cross_entropy import target_and_largest_other
from plm_jax.losses.loss import Term


@dataclass(frozen=True)
class SentencePairsLoss(Term):
    """Cross-entropy of a head's classes of each row with `pair_label` (Devlin et al. 2019 §3.1; Lan et al. 2020 §3.1).

    The mean is over rows, without rows of padding.
    """

    kind: ClassVar[str] = "pair"
    reads: ClassVar[tuple[str, ...]] = ("pair_label",)

    @override
    def weight(self, model, batch):
        return _real(batch).sum()

    @override
    def __call__(self, loss, model, params, features, batch):
        logits = model.apply({"params": params}, features, self.head, method="head_output")
        label_logits, largest_others = target_and_largest_other(logits, batch["pair_label"])
        nll, real = jax.nn.logsumexp(logits, axis=-1) - label_logits, _real(batch)
        return jnp.sum(nll * real), {"pair_accuracy": jnp.sum((label_logits > largest_others) * real)}


def _real(batch):
    """Returns 1 for each row that has a token, 0 for a row of padding, float32 [B]."""
    return batch["mask"].astype(jnp.float32).max(1)
