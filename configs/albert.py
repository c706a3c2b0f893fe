"""ALBERT (Lan et al. 2020): base 12M, large 18M, xlarge 59M, xxlarge 223M parameters; v2-base to v2-xxlarge the same.

    python -m plm_jax pretrain --config=configs/albert.py:v2-base --workdir=runs/albert-base

Published (§4.1 and google-research/albert): embeddings of width 128, one block shared by all layers, a SentencePiece
unigram vocabulary of 30,000 pieces of lowercased text without accents, pairs of segments of 512 tokens in order or
swapped, masked spans of up to three words (punctuation marks, numbers and each piece with a letter that is not English
also count as words), batch 4,096, 125,000 steps, LAMB at 1.76e-3 with 3,125 steps of warm-up, on BooksCorpus and
English Wikipedia, 64 to 512 TPU v3. Version 2 has no dropout, adds RoBERTa's and XLNet's corpora (XLNet's are left out
here), and has 3,000,000 steps (base: 10,000,000); its learning rates were not published, so those of version 1 are
used. The original code wrote forty copies with fixed masks; here masks are drawn again each time, unless you set
`--config.objective.duplicates=40`.

The paper's table reports 235M parameters for xxlarge; its settings result in 223M. The first released xxlarge was
trained for 1,500,000 steps (`--config.train.steps=1500000`), without dropout from step 1,000,000 on according to the
paper; according to the repository it differs from version 2 only in the number of steps. "gelu" in the released code is
the tanh approximation.

Wikipedia comes from TensorFlow Datasets. Store the other corpora (`corpora.MIXTURES`) as JSON Lines ({"text": …}) at
the paths in `data.sources`, and spiece.model of albert/albert-base-v2 at `vocabulary.spec`, or change these fields.
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
# size: (parameters of the original implementation, parameters as usually cited)
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
