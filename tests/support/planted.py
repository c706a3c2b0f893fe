"""A run whose loss is NaN for a batch with a marked text, and spikes for a batch with another marked text.

This is a config file. `write` copies it and writes its corpus.
"""

import dataclasses
import json
import pathlib
import shutil

import jax.numpy as jnp
import numpy as np

from plm_jax import config, losses, objectives
from tests.support import tiny

# Bytes in the texts, which are also token ids.
LOST, SPIKE = 1, 2
# Numbers of the marked texts.
TEXTS = {LOST: 17, SPIKE: 31}


@dataclasses.dataclass(frozen=True)
class PlantedLoss(losses.NextTokenLoss):
    """Loss of the next tokens, multiplied by a factor that depends on the marks among the tokens."""

    kind = "planted"

    def __call__(self, model, params, batch, rngs, carry):
        terms, metrics, carry = super().__call__(model, params, batch, rngs, carry)
        has_lost, has_spike = ((batch["tokens"] == mark).any() for mark in (LOST, SPIKE))
        factor = jnp.where(has_lost, jnp.nan, jnp.where(has_spike, 50.0, 1.0))
        return {name: value * factor for name, value in terms.items()}, metrics, carry


@dataclasses.dataclass(frozen=True)
class Planted(objectives.Causal):
    """Prediction of the next tokens with `PlantedLoss`."""

    kind = "planted"
    loss = "planted"


def write(folder: pathlib.Path) -> None:
    """Copies this file to a folder and writes its corpus there."""
    shutil.copy(__file__, folder)
    rng = np.random.default_rng(0)
    with open(folder / "planted.jsonl", "w", encoding="utf-8") as file:
        for number in range(60):
            words = rng.choice(tiny.TEXT.split(), rng.integers(8, 40)).tolist()
            words[4:4] = [chr(mark) for mark, at in TEXTS.items() if at == number]
            file.write(json.dumps({"text": " ".join(words)}) + "\n")


def get_config():
    """Returns the config of the run."""
    run, source = tiny.PLAIN, config.TextTable("planted.jsonl")
    data = dataclasses.replace(run.data, sources={"a": source}, mixture={}, cache_dir="cache_planted")
    incidents = config.IncidentsConfig(spikes="skip", window=6)
    train = dataclasses.replace(run.train, steps=30, log_every=1, incidents=incidents)
    checkpoint = config.CheckpointConfig(save_every=5, keep_last=9)
    changed = {"data": data, "train": train, "checkpoint": checkpoint, "objective": Planted()}
    return config.to_config_dict(dataclasses.replace(run, **changed))
