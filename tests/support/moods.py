"""An easy task, and tiny models to fine-tune for it.

This is a config file for `finetune --config=…/moods.py`. `write` copies it and writes its data and models.
"""

import dataclasses
import functools
import json
import pathlib
import random
import shutil

import flax.linen as nn
import jax

from plm_jax import config, models, objectives
from plm_jax.hub.pretrained import Pretrained
from plm_jax.models import registry
from plm_jax.runs import checkpoint_formats
from tests.support import tiny

LABELS = ("bad", "good")
RUN = config.Run(
    model=models.FromCheckpointConfig(dropout=0.1),
    objective=objectives.Classification(),
    vocabulary=config.VocabularyConfig(),
    data=config.DataConfig(
        cache_dir="cache",
        length=40,
        layout=config.LabeledLayout(),
        sources={"mood": config.LabeledTable("mood.jsonl", config.ClassForm(LABELS), "held_out.jsonl")},
    ),
    optimizer=config.AdamWConfig(epsilon=1e-6, weight_decay=0.01),
    schedule=config.LinearSchedule(3e-3, warmup_fraction=0.2),
    train=config.TrainConfig(epochs=4.0, batch_size=8, log_every=1),
    checkpoint=config.CheckpointConfig(save_every=2),
    evaluation=config.EvaluationConfig(every=1, select="mood/loss"),
)


def get_config(size: str = "classes"):
    """Returns the config of the run."""
    del size
    return config.to_config_dict(RUN)


def rows(number: int, seed: int) -> list[dict]:
    """Returns examples with a text, a label (good or bad), a score, and tags of words that are colors."""
    rng, examples = random.Random(seed), []
    for _ in range(number):
        good, color = rng.random() < 0.5, rng.choice(["red", "blue"])
        words = ["the", color, "one", "was", "fine" if good else "dull", str(rng.randrange(100))]
        tags = ["B-C" if word == color else "O" for word in words]
        label = {"label": LABELS[good], "score": 2.0 * good - 0.5, "tokens": words, "tags": tags}
        examples.append({"text": " ".join(words)} | label)
    return examples


def write(folder: pathlib.Path) -> None:
    """Writes the config file, its rows and the models `encoder` and `decoder` to a folder."""
    shutil.copy(__file__, folder / "moods.py")
    for name, number, seed in (("mood", 48, 0), ("held_out", 20, 1)):
        lines = (json.dumps(row) + "\n" for row in rows(number, seed))
        (folder / f"{name}.jsonl").write_text("".join(lines))
    for name, model in (("encoder", tiny.BERT), ("decoder", tiny.MODEL)):
        checkpoint_formats.save(str(folder / name), pretrained(model), "plm_jax")


@functools.cache
def pretrained(model: models.TransformerConfig, seed: int = 0, vocab_size: int = 272) -> Pretrained:
    """Returns a model with random weights over bytes and up to eight special tokens."""
    model = dataclasses.replace(model, embedding=dataclasses.replace(model.embedding, vocab_size=vocab_size))
    params = nn.unbox(registry.init_params(registry.build(model), jax.random.key(seed)))
    names = ("eos", "pad", "cls", "sep") if model.kind == "encoder" else ("eos", "pad", "bos")
    ids = {f"{name}_token_id": 256 + number for number, name in enumerate(names)}
    return Pretrained(model, params, ids, "bytes")
