"""The Transformer (Vaswani et al. 2017): base 63M, big 214M parameters (published: 65M, 213M).

    python -m plm_jax pretrain --config=configs/transformer.py:base --workdir=runs/transformer-base

Published: translation of WMT 2014 with 37,000 byte pairs that both languages share, about 25,000 source and 25,000
target tokens a batch, base 100,000 steps, big 300,000; Adam at width^-0.5 · min(step^-0.5, step · 4000^-1.5), labels
smoothed by 0.1, dropout of 0.1 (big: 0.3) after the embeddings and each sub-layer. Base took 8 P100 GPUs 12 hours.

The original was trained on pairs of sentences. Here input and target are made from plain text: BART's denoising (text
infilling, permuted sentences) replaces translation, since its two sides also have about equal lengths. Positions are
interleaved sines and cosines, as in the paper. As in the paper's formulas, attention has no biases and the feed-forward
has. The paper does not state the initialization: here the standard deviation is width^-0.5, and Glorot's for attention.
A unigram model of SentencePiece, which `prepare` trains, replaces the byte pairs.

Store your documents as JSON Lines ({"text": …}) at `data.sources.text.path`, or change this field.
"""

from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run


class Size(NamedTuple):
    """Dimensions, number of layers per stack, and recipe."""

    layers: int
    width: int
    heads: int
    feed_forward: int
    dropout: float
    steps: int


SIZES = {
    "base": Size(layers=6, width=512, heads=8, feed_forward=2048, dropout=0.1, steps=100_000),
    "big": Size(layers=6, width=1024, heads=16, feed_forward=4096, dropout=0.3, steps=300_000),
}
VOCAB_SIZE = 37_000
# size: parameters counted by hand, as they are usually said
PUBLISHED = {
    "base": (63_045_632, "65M"),
    "big": (214_171_648, "213M"),
}
SOURCE = "Vaswani et al. 2017"


def model(layers: int, width: int, heads: int, feed_forward: int, dropout: float, vocab_size: int = VOCAB_SIZE):
    """Returns a Transformer model."""
    return models.EncoderDecoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width, scale_by_width=True),
        attention=models.AttentionConfig(
            heads=heads, head_dim=width // heads, position=models.SinusoidalPositions(), bias=False
        ),
        feed_forward=models.FeedForwardConfig(width=feed_forward, activation="relu"),
        norm=models.NormConfig(epsilon=1e-6, placement="post"),
        stack=models.StackConfig(layers=layers),
        decoder_stack=models.StackConfig(layers=layers),
        dropout=models.DropoutConfig(embedding=dropout, residual=dropout),
        initializer=models.InitializerConfig(std=width**-0.5),
    )


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    of = config.choose(SIZES, size)
    run = published_run(
        evaluate_every=1000,
        model=model(of.layers, of.width, of.heads, of.feed_forward, of.dropout),
        objective=objectives.Denoising(),
        vocabulary=config.VocabularyConfig(
            spec="sentencepiece:../.cache/transformer/text.model",
            train_size=VOCAB_SIZE,
            pad=0,
            eos=1,
            unk=2,
            bos=3,
            mask=4,
        ),
        data=config.DataConfig(
            cache_dir="../.cache/transformer",
            sources={"text": config.TextTable(path="../corpus/*.jsonl.gz")},
            length=128,
        ),
        optimizer=config.AdamWConfig(b1=0.9, b2=0.98, epsilon=1e-9, clip_norm=0.0),
        schedule=config.RsqrtWarmupSchedule(learning_rate=of.width**-0.5, warmup_steps=4000),
        train=config.TrainConfig(steps=of.steps, batch_size=192, label_smoothing=0.1),
    )
    return config.to_config_dict(run)
