"""BART (Lewis et al. 2020): base 139M, large 406M parameters.

    python -m plm_jax pretrain --config=configs/bart.py:large --workdir=runs/bart-large

Published: 500,000 steps with a batch of 8,000 on RoBERTa's 160 GB of text (Liu et al. 2019), GPT-2's byte-level BPE,
30 % of the text infilled in spans of 3 on average, all sentences permuted, no dropout in the last 10 %. The paper does
not state the optimizer, its rates and the length of rows: they are RoBERTa's for the same size (Adam, 512 tokens). The
exact GELU, the 1,024 positions, weight decay on biases and norms, and rows of full sentences of one document
(`complete_doc`) follow the released code (facebookresearch/fairseq, models/bart). With
data.layout.cross_documents=True, rows continue in the next document (`complete`); the layout `blocks` fills rows and
cuts sentences.

Wikipedia comes from TensorFlow Datasets. Store the other four corpora (`corpora.MIXTURES["roberta"]`) as JSON Lines
({"text": …}) at the paths in `data.sources`, and the vocabulary of facebook/bart-base (vocab.json, merges.txt) at
`vocabulary.spec`, or change these fields.
"""

import dataclasses
from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run
from plm_jax.data.sources import corpora


class Size(NamedTuple):
    """Dimensions, of each stack its layers; the peak of the rate, and its warm-up."""

    layers: int
    width: int
    heads: int
    learning_rate: float
    warmup_steps: int


SIZES = {
    "base": Size(layers=6, width=768, heads=12, learning_rate=6e-4, warmup_steps=24_000),
    "large": Size(layers=12, width=1024, heads=16, learning_rate=4e-4, warmup_steps=30_000),
}
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "base": (139_420_416, "140M"),
    "large": (406_291_456, "400M"),
}
SOURCE = "Lewis et al. 2020"


def model(layers: int, width: int, heads: int, vocab_size: int = 50265, length: int = 1024, dropout: float = 0.1):
    """Returns a BART model."""
    return models.EncoderDecoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width, norm=True),
        attention=models.AttentionConfig(
            heads=heads, head_dim=width // heads, position=models.LearnedPositions(length=length, offset=2)
        ),
        feed_forward=models.FeedForwardConfig(width=4 * width, activation="gelu_exact"),
        norm=models.NormConfig(epsilon=1e-5, placement="post"),
        stack=models.StackConfig(layers=layers),
        decoder_stack=models.StackConfig(layers=layers),
        dropout=models.DropoutConfig(embedding=dropout, residual=dropout),
        initializer=models.InitializerConfig(std=0.02),
    )


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    of = config.choose(SIZES, size)
    run = published_run(
        model=dataclasses.replace(model(of.layers, of.width, of.heads), remat="dots"),
        objective=objectives.Denoising(),
        vocabulary=config.VocabularyConfig(
            spec="bpe:../vocabularies/bart/vocab.json,../vocabularies/bart/merges.txt",
            bos=0,
            pad=1,
            eos=2,
            unk=3,
            mask=50264,
        ),
        data=config.DataConfig(
            cache_dir="../.cache/bart",
            **corpora.mixture("roberta"),
            layout=config.FullSentences(cross_documents=False),
            length=512,
        ),
        optimizer=config.AdamWConfig(
            b1=0.9, b2=0.98, epsilon=1e-6, weight_decay=0.01, decay_norms_and_biases=True, clip_norm=0.0
        ),
        schedule=config.LinearSchedule(learning_rate=of.learning_rate, warmup_steps=of.warmup_steps),
        train=config.TrainConfig(
            steps=500_000,
            batch_size=8000,
            microbatches=5,  # As `remat`: so they fit; where memory is ample, 1 and none.
            phases=(config.PhaseConfig(until=0.9), config.PhaseConfig(until=1.0, dropout=0.0)),
        ),
    )
    return config.to_config_dict(run)
