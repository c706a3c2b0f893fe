"""T5 (Raffel et al. 2020) and T5 1.1: small 60M to 11b 11.3e9 parameters, 1.1-small 77M to 1.1-xxl 11.1e9.

    python -m plm_jax pretrain --config=configs/t5.py:1.1-base --workdir=runs/t5-1.1-base

Published: span corruption of C4 (745 GB of text) in rows of 512 tokens, 1,000,000 steps with a batch of 2,048, with
Adafactor at a rate of 1 / sqrt(max(step, 10,000)). 1.1 has a gated feed-forward, a separate output layer, and no
dropout in pretraining.

C4 in English comes from TensorFlow Datasets (`c4/en`, which must be downloaded and prepared there). Store T5's
SentencePiece model at `vocabulary.spec`, or change this field.
"""

import dataclasses
from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run
from plm_jax.data.sources import corpora


class Size(NamedTuple):
    """Dimensions; `layers` of each stack; `remat` is the recomputation in the backward pass."""

    layers: int
    width: int
    heads: int
    head_dim: int
    feed_forward: int
    remat: str = "none"
    microbatches: int = 1


# `remat` and `microbatches`: chosen for 64 chips of TPU v5p, 1.1-xxl's for 128; where memory is ample, set
# model.remat=none and train.microbatches=1. `plm_jax plan` says what a size needs on a slice.
SIZES = {
    "small": Size(layers=6, width=512, heads=8, head_dim=64, feed_forward=2048),
    "base": Size(layers=12, width=768, heads=12, head_dim=64, feed_forward=3072),
    "large": Size(layers=24, width=1024, heads=16, head_dim=64, feed_forward=4096),
    "3b": Size(layers=24, width=1024, heads=32, head_dim=128, feed_forward=16384),
    "11b": Size(layers=24, width=1024, heads=128, head_dim=128, feed_forward=65536, remat="full", microbatches=2),
    "1.1-small": Size(layers=8, width=512, heads=6, head_dim=64, feed_forward=1024),
    "1.1-base": Size(layers=12, width=768, heads=12, head_dim=64, feed_forward=2048),
    "1.1-large": Size(layers=24, width=1024, heads=16, head_dim=64, feed_forward=2816),
    "1.1-xl": Size(layers=24, width=2048, heads=32, head_dim=64, feed_forward=5120),
    "1.1-xxl": Size(layers=24, width=4096, heads=64, head_dim=64, feed_forward=10240, microbatches=4),
}
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "small": (60_506_624, "60M"),
    "base": (222_903_552, "220M"),
    "large": (737_668_096, "770M"),
    "3b": (2_851_598_336, "2.8B"),
    "11b": (11_307_321_344, "11B"),
    "1.1-small": (76_961_152, "77M"),
    "1.1-base": (247_577_856, "248M"),
    "1.1-large": (783_150_080, "783M"),
    "1.1-xl": (2_849_757_184, "3B"),
    "1.1-xxl": (11_135_332_352, "11B"),
}
SOURCE = "Raffel et al. 2020"


def model(
    layers: int,
    width: int,
    heads: int,
    head_dim: int,
    feed_forward: int,
    *,
    v1_1: bool,
    vocab_size: int = 32128,
    dropout: float | None = None,
):
    """Returns a T5 model; dropout is 0.1 by default, none in 1.1."""
    rate = (0.0 if v1_1 else 0.1) if dropout is None else dropout
    return models.EncoderDecoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width),
        attention=models.AttentionConfig(
            heads=heads, head_dim=head_dim, position=models.RelativeBias(), bias=False, score_scale=1.0
        ),
        feed_forward=models.FeedForwardConfig(
            width=feed_forward, activation="gelu_tanh" if v1_1 else "relu", gated=v1_1, bias=False
        ),
        norm=models.NormConfig(kind="rms", epsilon=1e-6),
        stack=models.StackConfig(layers=layers),
        decoder_stack=models.StackConfig(layers=layers),
        head=models.VocabularyHead(tied=not v1_1, scale_by_width=not v1_1),
        dropout=models.DropoutConfig(broadcast=True).all_at(rate),
        initializer=models.FanInConfig(),
    )


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    of = config.choose(SIZES, size)
    dimensions = (of.layers, of.width, of.heads, of.head_dim, of.feed_forward)
    run = published_run(
        evaluate_every=10_000,
        model=dataclasses.replace(model(*dimensions, v1_1=size.startswith("1.1")), remat=of.remat),
        objective=objectives.SpanCorruption(),
        vocabulary=config.VocabularyConfig(
            spec="sentencepiece:../vocabularies/t5/spiece.model", sentinels=100, pad=0, eos=1, unk=2
        ),
        data=config.DataConfig(
            cache_dir="../.cache/t5",
            **corpora.mixture("t5"),
            length=512,
        ),
        optimizer=config.AdafactorConfig(),
        schedule=config.RsqrtSchedule(learning_rate=1.0, warmup_steps=10_000),
        train=config.TrainConfig(steps=1_000_000, batch_size=2048, microbatches=of.microbatches, z_loss=1e-4),
    )
    return config.to_config_dict(run)
