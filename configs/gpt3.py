"""GPT-3 (Brown et al. 2020): 125m 125M to 175b 175e9 parameters.

    python -m plm_jax pretrain --config=configs/gpt3.py:1.3b --workdir=runs/gpt3-1.3b

Published (table 2.1 and appendix B): GPT-2's architecture and vocabulary with rows of 2,048 tokens, its layers
alternately dense and banded; 300e9 tokens, Adam (0.9, 0.95, 1e-8), weight decay 0.1, gradients clipped to 1; the
learning rate increases over 375e6 tokens and then decreases by a cosine to a tenth at 260e9 tokens; the batch grows
linearly from 32k tokens to the full one over the first 4e9 to 12e9 tokens, by size. In table 2.1, the heads of 1.3b (24
× 128) and the width of 13b (5,140) contradict the rest of their rows; here they are 16 × 128 and 5,120.

Not published, and chosen here: the width of the band, 256 keys, as in GPT-Neo; the number of tokens over which each
size increases its batch; the steps of this increase, which double the batch when the line reaches the next power of
two; no dropout. Batches are 0.5M = 256, 1M = 512, 2M = 1,024 and 3.2M = 1,536 rows. The first have 16 rows, which at
most 16 chips can share: use mesh.tensor for more chips, as 175b does for 1,024 chips, with separate meshes for the
first phases.

The filtered Common Crawl, WebText2 and the two corpora of books were not released. Store your own as JSON Lines
({"text": …}) at the paths in `data.sources`, or change these fields. Wikipedia comes from TensorFlow Datasets.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run
from plm_jax.data.sources import corpora

LENGTH, FIRST_ROWS = 2048, 16


class Size(NamedTuple):
    """Dimensions and recipe; after `ramp_tokens` tokens a batch has `batch_size` rows.

    `tensor` chips share heads and widths; `meshes` has other meshes for phases, by the rows of their batches.
    """

    layers: int
    width: int
    heads: int
    learning_rate: float
    batch_size: int
    ramp_tokens: float
    remat: str = "none"
    rows_at_once: int | None = None
    tensor: int = 1
    meshes: Mapping[int, dict[str, int]] = MappingProxyType({})


# For other sizes and slices `plm_jax plan` reports the memory with this `remat` and `rows_at_once`.
SIZES = {
    "125m": Size(12, 768, 12, learning_rate=6e-4, batch_size=256, ramp_tokens=4e9),
    "350m": Size(24, 1024, 16, learning_rate=3e-4, batch_size=256, ramp_tokens=4e9),
    "760m": Size(24, 1536, 16, learning_rate=2.5e-4, batch_size=256, ramp_tokens=4e9),
    "1.3b": Size(24, 2048, 16, learning_rate=2e-4, batch_size=512, ramp_tokens=6e9, remat="dots", rows_at_once=128),
    "2.7b": Size(32, 2560, 32, learning_rate=1.6e-4, batch_size=512, ramp_tokens=6e9, remat="dots", rows_at_once=128),
    "6.7b": Size(32, 4096, 32, learning_rate=1.2e-4, batch_size=1024, ramp_tokens=8e9, remat="full", rows_at_once=128),
    "13b": Size(40, 5120, 40, learning_rate=1e-4, batch_size=1024, ramp_tokens=10e9, remat="full", rows_at_once=128),
    "175b": Size(
        *(96, 12288, 96),
        learning_rate=0.6e-4,
        batch_size=1536,
        ramp_tokens=12e9,
        remat="dots",
        rows_at_once=512,
        tensor=4,
        meshes={16: {"tensor": 32, "context": 2}} | {rows: {"tensor": 1024 // rows} for rows in (32, 64, 128)},
    ),
}
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "125m": (125_226_240, "125M"),
    "350m": (355_871_744, "350M"),
    "760m": (760_300_032, "760M"),
    "1.3b": (1_315_723_264, "1.3B"),
    "2.7b": (2_651_553_280, "2.7B"),
    "6.7b": (6_658_404_352, "6.7B"),
    "13b": (12_853_386_240, "13B"),
    "175b": (174_604_259_328, "175B"),
}
SOURCE = "Brown et al. 2020"


def model(layers: int, width: int, heads: int, vocab_size: int = 50257, length: int = LENGTH, band: int = 256):
    """Returns a GPT-3 model; every second layer sees the last `band` tokens."""
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width),
        attention=models.AttentionConfig(
            heads=heads,
            head_dim=width // heads,
            position=models.LearnedPositions(length=length, init_std=0.01),
            windows=(0, band),
        ),
        feed_forward=models.FeedForwardConfig(width=4 * width, activation="gelu_tanh"),
        norm=models.NormConfig(epsilon=1e-5),
        stack=models.StackConfig(layers=layers),
        initializer=models.InitializerConfig(std=0.02, shrink_residual=True),
    )


def ramp(rows: int, tokens: float) -> list[tuple[int, float]]:
    """(rows of a batch, tokens after which they change) on the way to the full batch after `tokens`."""
    doublings = [FIRST_ROWS << n for n in range(rows.bit_length()) if FIRST_ROWS << n < rows]
    share = tokens / (rows - FIRST_ROWS)
    return [(few, share * (more - FIRST_ROWS)) for few, more in zip(doublings, [*doublings[1:], rows], strict=True)]


def steps_until(tokens: float, stages: list[tuple[int, float]]) -> int:
    """Returns the number of steps that read this number of tokens, in stages as returned by `ramp`."""
    steps, done = 0.0, 0.0
    for rows, end in stages:
        steps += max(min(tokens, end) - done, 0.0) / (rows * LENGTH)
        done = end
    return round(steps)


def get_config(size: str = "125m"):
    """Returns the run of one of SIZES."""
    of = config.choose(SIZES, size)
    rows, at_once = of.batch_size, of.rows_at_once or of.batch_size
    stages = [*ramp(rows, of.ramp_tokens), (rows, 300e9)]
    steps = steps_until(300e9, stages)
    phases = tuple(
        config.PhaseConfig(
            until=steps_until(end, stages) / steps,
            batch_size=few,
            microbatches=max(few // at_once, 1),
            mesh=of.meshes.get(few),
        )
        for few, end in stages
    )
    run = published_run(
        model=dataclasses.replace(model(of.layers, of.width, of.heads), remat=of.remat),
        objective=objectives.Causal(),
        vocabulary=config.VocabularyConfig(
            spec="bpe:package:data/gpt2/vocab.json,package:data/gpt2/merges.txt", eos=50256
        ),
        data=config.DataConfig(
            cache_dir="../.cache/gpt3",
            **corpora.mixture("gpt3"),
            length=LENGTH,
        ),
        optimizer=config.AdamWConfig(b1=0.9, b2=0.95, epsilon=1e-8, weight_decay=0.1, clip_norm=1.0),
        schedule=config.CosineSchedule(
            learning_rate=of.learning_rate,
            warmup_steps=steps_until(375e6, stages),
            decay_steps=steps_until(260e9, stages),
            final_fraction=0.1,
            by_tokens=True,
        ),
        train=config.TrainConfig(steps=steps, batch_size=rows, microbatches=rows // at_once, phases=phases),
        mesh=config.MeshConfig(data=1, fsdp=-1, tensor=of.tensor),
    )
    return config.to_config_dict(run)
