"""GLM (Du et al. 2022): base 109M, large and roberta-large 335M and 355M, 2b 1.9e9, 10b 9.9e9 parameters.

    python -m plm_jax pretrain --config=configs/glm.py:base --workdir=runs/glm-base

Published: the paper, and the scripts of each size in THUDM/GLM (config/ds_block_*.sh, config_block_*.json and
ds_blockta_large.sh): texts of 512 tokens, Adam with decoupled weight decay, a cosine that ends before the run does.
base and large have BERT's sizes, data and vocabulary, with 1,024 rows per batch (16 on each of 64 GPUs); roberta-large
has RoBERTa's 8,192 rows, and 250,000 steps of a cosine over 300,000, which ends at a rate of 3.66e-5. These three fill
short spans only; 2b and 10b also fill sentences and long blanks. The scripts do not state the number of GPUs of 2b (32
rows each) and 10b (21); it is assumed to be 64.

A row of 592 has a text of 512 tokens and room for 40 blanks, see `objectives.BlankInfilling`. roberta-large has GPT-2's
ids here, not RoBERTa's order of the same vocabulary. Ids of special tokens are those of data_utils/tokenization.py.

For base and large, Wikipedia comes from TensorFlow Datasets. Store books as JSON Lines ({"text": …}) at
`data.sources.books.path`, and the vocabulary of google-bert/bert-base-uncased (vocab.txt) at `vocabulary.spec`, or
change these fields. For the other sizes, store documents at `data.sources.text.path`.
"""

import dataclasses
from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run
from plm_jax.data.sources import corpora


class Size(NamedTuple):
    """Dimensions; `length` are the positions."""

    layers: int
    width: int
    heads: int
    vocab_size: int
    length: int


SIZES = {
    "base": Size(layers=12, width=768, heads=12, vocab_size=30_592, length=512),
    "large": Size(layers=24, width=1024, heads=16, vocab_size=30_592, length=512),
    "roberta-large": Size(layers=24, width=1024, heads=16, vocab_size=50_304, length=512),
    "2b": Size(layers=36, width=2048, heads=32, vocab_size=50_304, length=1024),
    "10b": Size(layers=48, width=4096, heads=64, vocab_size=50_304, length=1024),
}


class Recipe(NamedTuple):
    """Training recipe of a size; `tensor` is the number of devices that share the heads and widths."""

    batch_size: int
    steps: int
    learning_rate: float
    warmup_steps: int
    decay_steps: int
    final_fraction: float
    weight_decay: float
    remat: str = "none"
    microbatches: int = 1
    tensor: int = 1


_BASE = Recipe(
    batch_size=1024,
    steps=150_000,
    learning_rate=4e-4,
    warmup_steps=6000,
    decay_steps=120_000,
    final_fraction=0.05,
    weight_decay=0.1,
)
_2B = Recipe(
    batch_size=32 * 64,
    steps=250_000,
    learning_rate=1e-4,
    warmup_steps=7000,
    decay_steps=175_000,
    final_fraction=0.1,
    weight_decay=0.1,
    remat="full",
    microbatches=2,
)
# With enough memory, set model.remat=none and train.microbatches=1. `plm_jax plan` reports what other sizes and slices
# need.
RECIPES = {
    "base": _BASE,
    "large": _BASE._replace(steps=200_000, learning_rate=2e-4, warmup_steps=8000, decay_steps=160_000),
    "roberta-large": Recipe(
        batch_size=8192,
        steps=250_000,
        learning_rate=4e-4,
        warmup_steps=30_000,
        decay_steps=300_000,
        final_fraction=0.01,
        weight_decay=0.01,
        remat="dots",
        microbatches=8,
    ),
    "2b": _2B,
    "10b": _2B._replace(batch_size=21 * 64, microbatches=1, tensor=4),
}
OBJECTIVES = {
    "2b": objectives.BlankInfilling(sentence_rate=0.3, document_rate=0.3, block_mask_rate=0.1, short_probability=0.02),
    "10b": objectives.BlankInfilling(sentence_rate=0.3, document_rate=0.2, block_mask_rate=0.1, short_probability=0.02),
}
OWN_TEXT = {"sources": {"text": config.TextTable(path="../corpus/*.jsonl.gz")}}
BERT = config.VocabularyConfig(
    spec="wordpiece:../vocabularies/bert-uncased/vocab.txt",
    added=2,
    **{"pad": 0, "eos": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103, "sop": 30_522, "eop": 30_523},
)
GPT2 = config.VocabularyConfig(
    spec="bpe:package:data/gpt2/vocab.json,package:data/gpt2/merges.txt",
    added=9,
    **{"pad": 50_256, "eos": 50_256, "sop": 50_257, "eop": 50_258, "cls": 50_259, "mask": 50_260},
    **{"sep": 50_261, "unk": 50_262, "gmask": 50_263, "smask": 50_264, "dblock": 50_265},
)
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "base": (109_338_624, "110M"),
    "large": (334_688_256, "335M"),
    "roberta-large": (354_873_344, "335M"),
    "2b": (1_920_122_880, "2B"),
    "10b": (9_880_682_496, "10B"),
}
SOURCE = "Du et al. 2022"


def model(layers: int, width: int, heads: int, vocab_size: int, length: int, dropout: float = 0.1):
    """Returns a GLM model."""
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width),
        attention=models.AttentionConfig(
            heads=heads, head_dim=width // heads, position=models.BlockPositions(length=length)
        ),
        feed_forward=models.FeedForwardConfig(width=4 * width, activation="gelu_tanh"),
        norm=models.NormConfig(epsilon=1e-5),
        stack=models.StackConfig(layers=layers),
        dropout=models.DropoutConfig(embedding=dropout, attention=dropout, residual=dropout),
        initializer=models.InitializerConfig(std=0.02, shrink_residual=True),
    )


def get_config(size: str = "base"):
    """Returns the run of one of SIZES."""
    of, recipe = config.choose(SIZES, size), RECIPES[size]
    bert, large = size in ("base", "large"), size in OBJECTIVES
    run = published_run(
        model=dataclasses.replace(model(*of), remat=recipe.remat),
        objective=OBJECTIVES.get(size, objectives.BlankInfilling()),
        vocabulary=BERT if bert else GPT2,
        data=config.DataConfig(
            cache_dir="../.cache/glm" + ("-bert" if bert else "-gpt2"),
            **(corpora.mixture("bert") if bert else OWN_TEXT),
            length=592,
        ),
        optimizer=config.AdamWConfig(
            b1=0.9,
            b2=0.95 if large else 0.98,
            epsilon=1e-8 if large else 1e-6,
            weight_decay=recipe.weight_decay,
            clip_norm=1.0,
        ),
        schedule=config.CosineSchedule(
            learning_rate=recipe.learning_rate,
            warmup_steps=recipe.warmup_steps,
            decay_steps=recipe.decay_steps,
            final_fraction=recipe.final_fraction,
        ),
        train=config.TrainConfig(steps=recipe.steps, batch_size=recipe.batch_size, microbatches=recipe.microbatches),
        mesh=config.MeshConfig(data=1, fsdp=-1, tensor=recipe.tensor),
    )
    return config.to_config_dict(run)
