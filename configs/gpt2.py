"""GPT-2 (Radford et al. 2019): small 124M, medium 355M, large 774M, xl 1558M parameters.

    python -m plm_jax pretrain --config=configs/gpt2.py:small --workdir=runs/gpt2-small

Published: vocabulary of 50,257 byte-level BPE tokens, context 1,024, batch 512, pre-norm, 40 GB of WebText. The
learning rate was not published; the one here, with its warm-up, cosine decay and weight decay, is GPT-3's for the
same size (Brown et al. 2020, table 2.1 and appendix B), if it has one: small 6e-4, medium 3e-4, large 2.5e-4,
xl 2e-4. 300,000 steps are 157e9 tokens.

WebText was not released. Store your own documents as JSON Lines ({"text": …}) at `data.sources.webtext.path`, or change
this field: --config.data.sources.webtext.path='/corpus/*.jsonl.gz'.
"""

import dataclasses
from typing import Literal, NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run
from plm_jax.data.sources import corpora


class Size(NamedTuple):
    """Dimensions, the peak of the rate; `remat` is what the backward pass recomputes, `gather` as in `MeshConfig`."""

    layers: int
    width: int
    heads: int
    learning_rate: float
    remat: str = "none"
    microbatches: int = 1
    gather: Literal["layer", "step"] = "layer"


# With this `remat` and `microbatches`, the published batch fits 16 chips of TPU v5e. With more memory, set
# model.remat=none and train.microbatches=1. `plm_jax plan` reports what another size or slice needs.
SIZES = {
    "small": Size(layers=12, width=768, heads=12, learning_rate=6e-4),
    "medium": Size(layers=24, width=1024, heads=16, learning_rate=3e-4),
    "large": Size(layers=36, width=1280, heads=20, learning_rate=2.5e-4),
    "xl": Size(layers=48, width=1600, heads=25, learning_rate=2e-4, remat="dots", microbatches=8, gather="step"),
}
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "small": (124_439_808, "124M"),
    "medium": (354_823_168, "355M"),
    "large": (774_030_080, "774M"),
    "xl": (1_557_611_200, "1.5B"),
}
SOURCE = "Radford et al. 2019"


def model(layers: int, width: int, heads: int, vocab_size: int = 50257, length: int = 1024, dropout: float = 0.1):
    """Returns a GPT-2 model."""
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width),
        attention=models.AttentionConfig(
            heads=heads,
            head_dim=width // heads,
            position=models.LearnedPositions(length=length, init_std=0.01),
        ),
        feed_forward=models.FeedForwardConfig(width=4 * width, activation="gelu_tanh"),
        norm=models.NormConfig(epsilon=1e-5),
        stack=models.StackConfig(layers=layers),
        dropout=models.DropoutConfig(embedding=dropout, attention=dropout, residual=dropout),
        initializer=models.InitializerConfig(std=0.02, shrink_residual=True),
    )


def get_config(size: str = "small"):
    """Returns the run of one of SIZES."""
    of = config.choose(SIZES, size)
    run = published_run(
        model=dataclasses.replace(model(of.layers, of.width, of.heads), remat=of.remat),
        objective=objectives.Causal(),
        vocabulary=config.VocabularyConfig(
            spec="bpe:package:data/gpt2/vocab.json,package:data/gpt2/merges.txt", eos=50256
        ),
        data=config.DataConfig(
            cache_dir="../.cache/gpt2",
            **corpora.mixture("gpt2"),
            length=1024,
        ),
        optimizer=config.AdamWConfig(b1=0.9, b2=0.95, epsilon=1e-8, weight_decay=0.1, clip_norm=1.0),
        schedule=config.CosineSchedule(learning_rate=of.learning_rate, warmup_steps=2000, final_fraction=0.1),
        train=config.TrainConfig(steps=300_000, batch_size=512, microbatches=of.microbatches),
        mesh=config.MeshConfig(data=1, fsdp=-1, gather=of.gather),
    )
    return config.to_config_dict(run)
