"""ELECTRA (Clark et al. 2020): discriminators small 14M, base 110M, large 335M parameters.

    python -m plm_jax pretrain --config=configs/electra.py:base --workdir=runs/electra-base

Published (appendix A, table 6; google-research/electra): BERT's layers with the exact GELU and its uncased vocabulary,
embeddings of width 128 in small; a generator with the same number of layers, a quarter (base: a third) of the width and
the same embeddings; the loss is that of the generator's masked tokens plus 50 times that of the discriminator. Small:
rows of 128 tokens, batch 128, 1,000,000 steps, 4 days on one V100; base: 512, 256, 766,000, 4 days on 16 TPU v3; both
on BERT's corpus; large: 512, 2,048, 400,000, a quarter of the tokens masked, on XLNet's 33e9 tokens, which are replaced
by BERT's corpus here. The checkpoints on Hugging Face were trained longer: 4,000,000 steps (small, whose generator has
the same width as the discriminator), 1,000,000 and 1,750,000. Expect a GLUE score of 79.9 (small) and 85.1 (base) on
the dev sets.

Rows follow build_pretraining_dataset.py: two segments of sentences of one document, without a label; one row in twenty
is shorter. Exports to Hugging Face contain the discriminator.

Wikipedia comes from TensorFlow Datasets. Store books as JSON Lines ({"text": …}) at `data.sources.books.path`, and the
vocabulary of google-bert/bert-base-uncased (vocab.txt) at `vocabulary.spec`, or change these fields.
"""

from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run
from plm_jax.data.sources import corpora


class Size(NamedTuple):
    """Dimensions of the discriminator, the embeddings and the generator."""

    layers: int
    width: int
    embedding_size: int
    generator_width: int


SIZES = {
    "small": Size(layers=12, width=256, embedding_size=128, generator_width=64),
    "base": Size(layers=12, width=768, embedding_size=768, generator_width=256),
    "large": Size(layers=24, width=1024, embedding_size=1024, generator_width=256),
}


class Recipe(NamedTuple):
    """Training recipe of a size; `rate` is the share of masked tokens, `length` the row length."""

    rate: float
    length: int
    batch_size: int
    steps: int
    learning_rate: float


RECIPES = {
    "small": Recipe(rate=0.15, length=128, batch_size=128, steps=1_000_000, learning_rate=5e-4),
    "base": Recipe(rate=0.15, length=512, batch_size=256, steps=766_000, learning_rate=2e-4),
    "large": Recipe(rate=0.25, length=512, batch_size=2048, steps=400_000, learning_rate=2e-4),
}
HEAD_DIM = 64
# size: (parameters of discriminator and generator with shared embeddings, the discriminator as usually cited)
PUBLISHED = {
    "small": (14_196_219, "14M"),
    "base": (119_386_427, "110M"),
    "large": (354_655_291, "335M"),
}
SOURCE = "Clark et al. 2020"


def model(
    layers: int,
    width: int,
    embedding_size: int,
    generator_width: int,
    vocab_size: int = 30522,
    length: int = 512,
    dropout: float = 0.1,
    head_dim: int = HEAD_DIM,
):
    """Returns an ELECTRA pair; the widths are multiples of `head_dim`."""
    return models.ElectraConfig(
        embedding=models.EmbeddingConfig(
            vocab_size=vocab_size,
            width=width,
            token_types=2,
            norm=True,
            embedding_size=None if embedding_size == width else embedding_size,
        ),
        attention=models.AttentionConfig(
            heads=width // head_dim, head_dim=head_dim, position=models.LearnedPositions(length=length)
        ),
        feed_forward=models.FeedForwardConfig(width=4 * width, activation="gelu_exact"),
        norm=models.NormConfig(epsilon=1e-12, placement="post"),
        stack=models.StackConfig(layers=layers),
        generator=models.GeneratorConfig(
            width=generator_width,
            heads=generator_width // head_dim,
            head_dim=head_dim,
            feed_forward=4 * generator_width,
            layers=layers,
        ),
        dropout=models.DropoutConfig(embedding=dropout, attention=dropout, residual=dropout),
        initializer=models.InitializerConfig(std=0.02, truncated=True),
    )


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    of, recipe = config.choose(SIZES, size), RECIPES[size]
    run = published_run(
        evaluate_every=10_000,
        model=model(*of),
        objective=objectives.ReplacedToken(rate=recipe.rate),
        vocabulary=config.VocabularyConfig(
            spec="wordpiece:../vocabularies/bert-uncased/vocab.txt", pad=0, unk=100, cls=101, sep=102, mask=103
        ),
        data=config.DataConfig(
            cache_dir="../.cache/electra",
            **corpora.mixture("bert"),
            layout=config.Segments(),
            length=recipe.length,
        ),
        optimizer=config.AdamWConfig(epsilon=1e-6, weight_decay=0.01, bias_correction=False, clip_norm=1.0),
        schedule=config.LinearSchedule(
            learning_rate=recipe.learning_rate, warmup_steps=10_000, decay_counts_warmup=True
        ),
        train=config.TrainConfig(steps=recipe.steps, batch_size=recipe.batch_size),
    )
    return config.to_config_dict(run)
