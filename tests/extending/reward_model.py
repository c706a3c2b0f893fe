"""A reward model: scores of two answers to a prompt, trained so that the preferred answer scores higher by a margin."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import config, losses, models, objectives
from plm_jax.common import metrics
from plm_jax.configs import demo
from plm_jax.losses import vocabulary
from plm_jax.models import task_heads

metrics.declare("preferred", metrics.Metric(better="more", unit="fraction"))


@dataclass(frozen=True)
class Preferences(objectives.Objective):
    """Pairs of rows: the prompt with the chosen answer, and the prompt with the rejected one."""

    kind = "preference_pairs"
    architectures = ("encoder",)
    loss = "preference_pairs"
    inputs = ("record",)
    targets = "the preferred answer"
    rows_per_example = 2
    texts = ("prompt", "chosen", "rejected")
    numbers = ("margin",)
    task_head = "score"

    def apply(self, example, special, rng):
        """Returns the two rows of a record stacked [2, L], and its `margin` []."""
        row_format = objectives.RowFormat.of(special, has_types=True)
        rows = []
        for name in ("chosen", "rejected"):
            texts, room = (example["prompt"], example[name]), row_format.room(example["length"], num_texts=2)
            sizes = objectives.truncate_longest([len(text) for text in texts], room)
            texts = [text[:size] for text, size in zip(texts, sizes, strict=True)]
            rows.append(row_format.row(texts, example["length"]))
        return {key: np.stack([row[key] for row in rows]) for key in rows[0]} | {"margin": example["margin"]}


@dataclass(frozen=True)
class PreferenceLoss(losses.Loss):
    """-log σ(chosen score - rejected score - margin), averaged over records (Touvron et al. 2023, equation 2)."""

    kind = "preference_pairs"
    heads = ("task",)

    def weights(self, model, batch):
        return {"preference": (batch["mask"].max((1, 2)) > 0).sum().astype("float32")}

    def __call__(self, model, params, batch, rngs, carry):
        pairs = {key: value.reshape(-1, value.shape[-1]) for key, value in batch.items() if key != "margin"}
        scores, _ = task_heads.output(model, params, pairs, vocabulary.dropout_keys(rngs))
        chosen, rejected = scores.reshape(-1, 2).T
        is_real = batch["mask"].max((1, 2)) > 0
        nll = -jax.nn.log_sigmoid(chosen - rejected - batch["margin"])
        terms = {"preference": jnp.sum(nll * is_real)}
        return terms, {"preference": {"preferred": jnp.sum((chosen > rejected) & is_real)}}, carry


def get_config():
    """Returns a small BERT that learns from the pairs of preferences.jsonl."""
    run = demo.bert()
    source = config.RecordTable("preferences.jsonl", ("prompt", "chosen", "rejected"), ("margin",))
    embedding = replace(run.model.embedding, token_types=2)
    return config.to_config_dict(
        replace(
            run,
            model=replace(run.model, embedding=embedding, head=models.NoHead(), heads=(("task", models.ScoreHead()),)),
            objective=Preferences(),
            data=replace(run.data, sources={"sotu": source}, layout=config.Records()),
        )
    )
