"""RoBERTa (Liu et al. 2019): base 125M, large 355M parameters.

    python -m plm_jax pretrain --config=configs/roberta.py:base --workdir=runs/roberta-base

Published (§5, appendix tables 9 and 10): BERT's layers with the exact GELU, vocabulary of 50,265 byte-level BPE tokens
(GPT-2's and five more), only masked tokens with dynamic masks, rows of full sentences of up to 512 tokens that may
cross document boundaries (`</s>` is between documents and at the end of a row, never between sentences), batch 8,000,
500,000 steps, Adam with b2 0.98 and without clipping, on 160 GB of text; 100,000 of the steps took about a day on 1,024
V100s. fairseq's recipe for fewer GPUs is a batch of 2,048 for 125,000 steps at 5e-4 after 10,000 steps of warm-up. Its
table of positions has two more rows than there are positions, and padding has no position; weight decay also applies to
biases and norms.

The batch here is 8,192, a power of two. There is one token type, as in the files of Hugging Face; fairseq has none.

Wikipedia comes from TensorFlow Datasets. Store the other four corpora (`corpora.MIXTURES["roberta"]`) as JSON Lines
({"text": …}) at the paths in `data.sources`, and the vocabulary of FacebookAI/roberta-base (vocab.json, merges.txt) at
`vocabulary.spec`, or change these fields.
"""

from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run
from plm_jax.data.sources import corpora


class Size(NamedTuple):
    """Dimensions, the peak of the rate, and its warm-up."""

    layers: int
    width: int
    heads: int
    learning_rate: float
    warmup_steps: int


SIZES = {
    "base": Size(layers=12, width=768, heads=12, learning_rate=6e-4, warmup_steps=24_000),
    "large": Size(layers=24, width=1024, heads=16, learning_rate=4e-4, warmup_steps=30_000),
}
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "base": (124_697_433, "125M"),
    "large": (355_412_057, "355M"),
}
SOURCE = "Liu et al. 2019"
OPTIMIZER = config.AdamWConfig(
    b1=0.9, b2=0.98, epsilon=1e-6, weight_decay=0.01, decay_norms_and_biases=True, clip_norm=0.0
)


def model(layers: int, width: int, heads: int, vocab_size: int = 50265, length: int = 512, dropout: float = 0.1):
    """Returns a RoBERTa model, with its head for masked tokens."""
    position = models.LearnedPositions(length=length, offset=2, skips_padding=True)
    return models.EncoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width, token_types=1, norm=True),
        attention=models.AttentionConfig(heads=heads, head_dim=width // heads, position=position),
        feed_forward=models.FeedForwardConfig(width=4 * width, activation="gelu_exact"),
        norm=models.NormConfig(epsilon=1e-5, placement="post"),
        stack=models.StackConfig(layers=layers),
        head=models.VocabularyHead(transform="gelu_exact", bias=True),
        dropout=models.DropoutConfig(embedding=dropout, attention=dropout, residual=dropout),
        initializer=models.InitializerConfig(std=0.02),
    )


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    of = config.choose(SIZES, size)
    run = published_run(
        model=model(of.layers, of.width, of.heads),
        objective=objectives.MaskedLM(),
        vocabulary=config.VocabularyConfig(
            spec="bpe:../vocabularies/roberta/vocab.json,../vocabularies/roberta/merges.txt",
            bos=0,
            pad=1,
            eos=2,
            unk=3,
            mask=50264,
        ),
        data=config.DataConfig(
            cache_dir="../.cache/roberta",
            **corpora.mixture("roberta"),
            layout=config.FullSentences(),
            length=512,
        ),
        optimizer=OPTIMIZER,
        schedule=config.LinearSchedule(learning_rate=of.learning_rate, warmup_steps=of.warmup_steps),
        train=config.TrainConfig(steps=500_000, batch_size=8192),
    )
    return config.to_config_dict(run)
