"""mT5 (Xue et al. 2021), T5 1.1 for 101 languages: small 300M, base 582M, large 1.2e9, xl 3.7e9, xxl 12.9e9 parameters.

    python -m plm_jax pretrain --config=configs/mt5.py:base --workdir=runs/mt5-base

Published: span corruption of mC4 in rows of 1,024 tokens, 1,000,000 steps with a batch of 1,024, T5's rate of
1 / sqrt(max(step, 10,000)), no dropout; a language with |L| examples is drawn in proportion to |L|^0.3. The optimizer
and the z-loss are T5's (google-research/t5x).

Store your documents as JSON Lines ({"text": …}) at `data.sources.text.path`. For several languages, define a source for
each, as `corpora.sources("c4_multilingual:en", "c4_multilingual:sw", …)` does with TensorFlow Datasets, and its rate in
`data.mixture`. Store mT5's SentencePiece model, whose 250,100 pieces end with the sentinels, at `vocabulary.spec`, or
change this field.
"""

import dataclasses

from plm_jax import config, objectives
from plm_jax.configs import published_run, t5

# `remat` and `microbatches` as for T5 11b; with more memory, set model.remat=none and train.microbatches=1.
# `plm_jax plan` reports what another size or slice needs.
SIZES = {
    "small": t5.Size(layers=8, width=512, heads=6, head_dim=64, feed_forward=1024),
    "base": t5.Size(layers=12, width=768, heads=12, head_dim=64, feed_forward=2048),
    "large": t5.Size(layers=24, width=1024, heads=16, head_dim=64, feed_forward=2816),
    "xl": t5.Size(layers=24, width=2048, heads=32, head_dim=64, feed_forward=5120),
    "xxl": t5.Size(layers=24, width=4096, heads=64, head_dim=64, feed_forward=10240, remat="full", microbatches=2),
}
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "small": (300_176_768, "300M"),
    "base": (582_401_280, "580M"),
    "large": (1_229_581_312, "1.2B"),
    "xl": (3_742_619_648, "3.7B"),
    "xxl": (12_921_057_280, "13B"),
}
SOURCE = "Xue et al. 2021"


def model(*dimensions: int):
    """Returns an mT5 model: T5 1.1 with more tokens."""
    return t5.model(*dimensions, v1_1=True, vocab_size=250112)


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    of = config.choose(SIZES, size)
    run = published_run(
        evaluate_every=10_000,
        model=dataclasses.replace(model(of.layers, of.width, of.heads, of.head_dim, of.feed_forward), remat=of.remat),
        objective=objectives.SpanCorruption(),
        vocabulary=config.VocabularyConfig(
            spec="sentencepiece:../vocabularies/mt5/spiece.model", sentinels=100, pad=0, eos=1, unk=2
        ),
        data=config.DataConfig(
            cache_dir="../.cache/mt5",
            sources={"text": config.TextTable(path="../corpus/*.jsonl.gz")},
            length=1024,
        ),
        optimizer=config.AdafactorConfig(),
        schedule=config.RsqrtSchedule(learning_rate=1.0, warmup_steps=10_000),
        train=config.TrainConfig(steps=1_000_000, batch_size=1024, microbatches=of.microbatches, z_loss=1e-4),
    )
    return config.to_config_dict(run)
