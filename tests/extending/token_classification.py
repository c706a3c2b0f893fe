"""A head of one's own, with its term of the loss: does a token begin a word? It is learnt beside the masked tokens."""

from dataclasses import dataclass, replace

import numpy as np
import optax

from plm_jax import config, losses, objectives
from plm_jax.common import metrics
from plm_jax.configs import demo
from plm_jax.models.heads import Head

metrics.declare("tag_accuracy", metrics.Metric(better="more", unit="fraction"))


@dataclass(frozen=True)
class TagHead(Head):
    """One of `classes` for each token, [B, L, D] → float32 [B, L, classes]."""

    kind = "word_beginnings"
    loss = "word_beginnings"
    classes: int = 2

    def compute(self, module, features):
        return module.dense("classifier", features, self.classes).astype("float32")


@dataclass(frozen=True)
class TagTerm(losses.Term):
    """Cross-entropy with the `tags` of a batch, int32 [B, L], over real tokens."""

    kind = "word_beginnings"
    reads = ("tags",)

    def weight(self, model, batch):
        return batch["mask"].sum().astype("float32")

    def __call__(self, loss, model, params, features, batch):
        logits, mask = model.apply({"params": params}, features, self.head, method="head_output"), batch["mask"]
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, batch["tags"])
        hits = logits.argmax(-1) == batch["tags"]
        return (nll * mask).sum(), {"tag_accuracy": (hits * mask).sum()}


@dataclass(frozen=True)
class TaggedMaskedLM(objectives.MaskedLM):
    """As `MaskedLM`; the tags say which tokens of the text begin words."""

    kind = "tagged_masked_lm"
    reads = ("word_starts",)

    def apply(self, example, special, rng):
        starts = np.isin(np.arange(len(example["tokens"])), example["word_starts"])
        return super().apply(example, special, rng) | {"tags": starts.astype(np.int32)}


def get_config():
    run = demo.bert()
    model = replace(run.model, heads=(("tags", TagHead()),))
    return config.to_config_dict(replace(run, model=model, objective=TaggedMaskedLM()))
