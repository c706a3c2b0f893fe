"""Classification of sentence pairs."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from typing_extensions import override

from plm_jax.losses.cross_entropy import own_and_largest_other
from plm_jax.losses.loss import Term


@dataclass(frozen=True)
class SentencePairsLoss(Term):
    """Cross-entropy of the pooled text's classes with `pair_label` (Devlin et al. 2019 §3.1; Lan et al. 2020 §3.1).

    Its mean is over rows; those of padding do not count.
    """

    kind: ClassVar[str] = "pair"
    reads: ClassVar[tuple[str, ...]] = ("pair_label",)

    def weight(self, model, batch):
        """Rows with a token."""
        return _real(batch).sum()

    @override
    def __call__(self, loss, model, params, features, batch):
        logits = model.apply({"params": params}, features, self.head, method="head_output")
        own, other = own_and_largest_other(logits, batch["pair_label"])
        nll, real = jax.nn.logsumexp(logits, axis=-1) - own, _real(batch)
        return jnp.sum(nll * real), {"pair_accuracy": jnp.sum((own > other) * real)}


def _real(batch):
    """Float32 [B]: 0 for a row of padding alone."""
    return batch["mask"].astype(jnp.float32).max(1)
