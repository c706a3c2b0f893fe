"""ALBERT (Lan et al. 2020): base 12M, large 18M, xlarge 59M, xxlarge 223M parameters; v2-base to v2-xxlarge the same.

    python -m plm_jax pretrain --config=configs/albert.py:v2-base --workdir=runs/albert-base

Published (§4.1 and google-research/albert): tables 128 wide, one block for all layers, vocabulary of 30,000 pieces of a
SentencePiece unigram model of text without case and accents, pairs of 512 tokens in their order or swapped, masked in
stretches of up to three words (marks, numbers and each piece with a letter that is not English are words, too), batch
4,096, 125,000 steps, LAMB at 1.76e-3 with 3,125 of warm-up, on BooksCorpus and English Wikipedia, 64 to 512 TPU v3.
Version 2 has no dropout, RoBERTa's and XLNet's corpora too, of which XLNet's are left out here, and 3,000,000 steps,
base 10,000,000; for its rates, which were not published, the first version's stand here. The source wrote forty copies
with fixed masks; here they are drawn anew (`--config.objective.duplicates=40`: forty).

The paper's table has 235M for xxlarge; its own settings make 223M. The first xxlarge that was released had 1,500,000
steps (`--config.train.steps=1500000`): by the paper without dropout from 1,000,000 on, by the repository unlike its
second version in nothing but steps. "gelu" in the released code is the tanh form.

Wikipedia comes from TensorFlow Datasets. Put the other corpora (`corpora.MIXTURES`), one JSON object {"text": …} a
line, where the paths in `data.sources` point, and the model of albert/albert-base-v2 (spiece.model) where
`vocabulary.spec` points, or set both.
"""

from plm_jax import config, models, objectives
from plm_jax.configs import Size, published_run
from plm_jax.data.sources import corpora

SIZES = {
    "base": Size(layers=12, width=768, heads=12),
    "large": Size(layers=24, width=1024, heads=16),
    "xlarge": Size(layers=24, width=2048, heads=16),
    "xxlarge": Size(layers=12, width=4096, heads=64),
}
V2 = "v2-"
STEPS = {"v2-base": 10_000_000, "v2-large": 3_000_000, "v2-xlarge": 3_000_000, "v2-xxlarge": 3_000_000}
# size: parameters counted from the original, as they are usually said
PUBLISHED = {
    "base": (11_813_810, "12M"),
    "large": (17_847_474, "18M"),
    "xlarge": (59_021_490, "60M"),
    "xxlarge": (223_158_450, "235M"),
    "v2-base": (11_813_810, "12M"),
    "v2-large": (17_847_474, "18M"),
    "v2-xlarge": (59_021_490, "60M"),
    "v2-xxlarge": (223_158_450, "235M"),
}
SOURCE = "Lan et al. 2020"


def model(layers: int, width: int, heads: int, vocab_size: int = 30000, length: int = 512, dropout: float = 0.0):
    """Returns an ALBERT model, with its heads for masked tokens and pairs."""
    return models.EncoderConfig(
        embedding=models.EmbeddingConfig(
            vocab_size=vocab_size, width=width, token_types=2, norm=True, embedding_size=128
        ),
        attention=models.AttentionConfig(
            heads=heads, head_dim=width // heads, position=models.LearnedPositions(length=length)
        ),
        feed_forward=models.FeedForwardConfig(width=4 * width, activation="gelu_tanh"),
        norm=models.NormConfig(epsilon=1e-12, placement="post"),
        stack=models.StackConfig(layers=layers, groups=1),
        head=models.VocabularyHead(transform="gelu_tanh", bias=True),
        pooler=models.Pooler(),
        dropout=models.DropoutConfig(embedding=dropout, attention=dropout, residual=dropout),
        initializer=models.InitializerConfig(std=0.02, truncated=True),
    )


def get_config(size: str = "base"):
    """Returns the run of one of SIZES; the prefix `v2-` selects the second version."""
    of = config.choose(SIZES | {V2 + name: of for name, of in SIZES.items()}, size)
    run = published_run(
        model=model(*of, dropout=0.0 if size.startswith(V2) else 0.1),
        objective=objectives.MaskedLM(max_predictions=20, whole_words=3),
        vocabulary=config.VocabularyConfig(
            spec="sentencepiece:../vocabularies/albert/spiece.model", lowercase=True, pad=0, unk=1, cls=2, sep=3, mask=4
        ),
        data=config.DataConfig(
            cache_dir="../.cache/albert",
            **corpora.mixture("roberta" if size.startswith(V2) else "bert"),
            layout=config.SentencePairs(task="sentence_order", duplicates=40),
            length=512,
        ),
        optimizer=config.LambConfig(),
        schedule=config.LinearSchedule(learning_rate=1.76e-3, warmup_steps=3125, decay_counts_warmup=True),
        train=config.TrainConfig(steps=STEPS.get(size, 125_000), batch_size=4096),
    )
    return config.to_config_dict(run)
