"""The runs that the tests train: 2 layers, 32 wide, bytes; a config file whose paths are beside where it is copied."""

import dataclasses
import json
import pathlib
import shutil

import numpy as np

from plm_jax import config, objectives
from plm_jax.models import settings

MODEL = settings.Decoder(
    embedding=settings.Embedding(vocab_size=264, width=32),
    attention=settings.Attention(heads=4, head_dim=8, position=settings.LearnedPositions(length=64)),
    feed_forward=settings.FeedForward(width=64),
    stack=settings.Stack(layers=2),
)

# An epoch of the two sources is some hundred rows.
PLAIN = config.Run(
    model=MODEL,
    objective=objectives.Causal(),
    data=config.Data(
        cache_dir="cache",
        length=32,
        sources={"a": config.JsonLines("a.jsonl"), "b": config.JsonLines("b.jsonl")},
        validation_fraction=0.1,
        window_tokens=512,
    ),
    vocabulary=config.Vocabulary(spec="bytes", eos=256),
    optimizer=config.AdamW(weight_decay=0.1),
    schedule=config.Schedule("constant", 1e-3),
    train=config.Train(steps=6, batch_size=8, seed=1, log_every=1),
    checkpoint=config.Checkpoint(save_every=3),
)

# All at once: dropout, a mixture, two microbatches, an epoch's end, a phase's end (of length, batch and dropout).
EVERYTHING = dataclasses.replace(
    PLAIN,
    model=dataclasses.replace(MODEL, dropout=settings.Dropout(0.1, 0.1, 0.1)),
    data=dataclasses.replace(PLAIN.data, mixture={"a": 2.0, "b": 1.0}),
    schedule=config.Schedule("cosine", 1e-3, warmup_steps=4),
    train=dataclasses.replace(
        PLAIN.train,
        steps=24,
        microbatches=2,
        batch_size=16,
        phases=(config.Phase(until=0.5, length=16), config.Phase(until=1.0)),
    ),
    checkpoint=config.Checkpoint(save_every=4, keep_last=9),
    evaluation=config.Evaluation(every=10, batch_size=8),
)

RUNS = {
    "plain": PLAIN,
    "dropout": dataclasses.replace(PLAIN, model=EVERYTHING.model),
    "everything": EVERYTHING,
    "separate": dataclasses.replace(
        EVERYTHING, data=dataclasses.replace(EVERYTHING.data, layout=config.Blocks(attend_across_documents=False))
    ),
}

TEXT = "the of and a to in is was that it for on as with his they at be this from sea whale ship captain"


def write(folder: pathlib.Path) -> None:
    """Puts this file and the corpora that it names into a folder."""
    shutil.copy(__file__, folder)
    for seed, (name, documents) in enumerate({"a": 40, "b": 20}.items()):
        rng = np.random.default_rng(seed)
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for _ in range(documents):
                file.write(json.dumps({"text": " ".join(rng.choice(TEXT.split(), rng.integers(3, 41))) + "."}) + "\n")


def get_config(name: str = "plain"):
    """One of RUNS."""
    return config.to_config_dict(config.choose(RUNS, name))
