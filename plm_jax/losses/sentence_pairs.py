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
    """Cross-entropy of a pair classifier, with targets `pair_label` (Devlin et al. 2019 §3.1; Lan et al. 2020 §3.1).

    Without packing, each row has one pair, and `pair_label` is [B]. With packing, each row has up to S pairs, and three
    arrays are [B, S]: `pair_label`; `pair_positions`, the position of the first token of each pair; and `pair_weights`,
    0 for unused slots. The mean is over pairs. Rows of padding and unused slots do not count.
    """

    kind: ClassVar[str] = "pair"
    reads: ClassVar[tuple[str, ...]] = ("pair_label",)

    @override
    def weight(self, model, batch):
        return _real(batch).sum()

    @override
    def __call__(self, loss, model, params, features, batch):
        if "pair_positions" in batch:
            features = jnp.take_along_axis(features, batch["pair_positions"][..., None], axis=1)
            features = features.reshape(-1, 1, features.shape[-1])
        logits = model.apply({"params": params}, features, self.head, method="head_output")
        label_logits, largest_others = target_and_largest_other(logits, batch["pair_label"].reshape(-1))
        nll, real = jax.nn.logsumexp(logits, axis=-1) - label_logits, _real(batch)
        return jnp.sum(nll * real), {"pair_accuracy": jnp.sum((label_logits > largest_others) * real)}


def _real(batch):
    """Returns the weight of each pair, float32 [pairs]: 0 for rows of padding and for unused slots, otherwise 1."""
    if "pair_weights" in batch:
        return batch["pair_weights"].reshape(-1)
    return batch["mask"].astype(jnp.float32).max(1)
