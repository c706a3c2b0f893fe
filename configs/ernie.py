"""ERNIE of Baidu (Sun et al. 2019, 2020), BERT with masks over words, phrases and entities: 100M to 336M parameters.

    python -m plm_jax pretrain --config=configs/ernie.py:1.0-base-zh --workdir=runs/ernie-base

Published (§3 of both papers; branch release/r2.0 of PaddlePaddle/ERNIE, script/zh_task/pretrain.sh): BERT's layers
(1.0: with ReLU and 513 positions; 2.0: with 4 token types); each unit of text is predicted with probability 15 %, and
each of its tokens is then replaced by the mask in 80 %, by a random token in 10 %; units are tokens first, then
phrases, then entities; pairs of segments; batches of 8,192 tokens, 1,000,000 steps, Adam at 1e-4 with 5,000 steps of
warm-up. 1.0 read 173e6 sentences of Wikipedia, encyclopedias, news and forums.

The three sources have the same text, the last two with a segmenter, and the mixture of each phase selects one of them.
Lists of phrases and entities were not released: write a module `segmenters` with the functions `phrases` and
`entities`, which split a text into units and single words. The shares of the stages were not published either; here
they are thirds. Left out are dialogues (1.0) and, of the seven tasks of 2.0, all except masks and pairs. In the
original code, the bias of the norm of the head starts at 1.

Store your documents as JSON Lines ({"text": …}) at `data.sources.*.path`, and the vocabulary of
nghuyong/ernie-1.0-base-zh (2.0: google-bert/bert-base-uncased; vocab.txt) at `vocabulary.spec`, or change these fields.
"""

from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run


class Size(NamedTuple):
    """Dimensions and settings of a version."""

    layers: int
    width: int
    heads: int
    vocab_size: int = 30522
    token_types: int = 4
    length: int = 512
    activation: str = "gelu_exact"


SIZES = {
    "1.0-base-zh": Size(12, 768, 12, vocab_size=18000, token_types=2, length=513, activation="relu"),
    "2.0-base-en": Size(12, 768, 12),
    "2.0-large-en": Size(24, 1024, 16),
}
# size: (parameters of `ErnieForPreTraining`, parameters as usually cited)
PUBLISHED = {
    "1.0-base-zh": (100_477_778, "100M"),
    "2.0-base-en": (110_107_964, "110M"),
    "2.0-large-en": (336_228_156, "340M"),
}
SOURCE = "Sun et al. 2019; Sun et al. 2020"
VOCABULARIES = {
    18000: config.VocabularyConfig(
        spec="wordpiece:../vocabularies/ernie-zh/vocab.txt", pad=0, cls=1, sep=2, mask=3, unk=17963
    ),
    30522: config.VocabularyConfig(
        spec="wordpiece:../vocabularies/bert-uncased/vocab.txt", pad=0, unk=100, cls=101, sep=102, mask=103
    ),
}
UNITS = ("tokens", "phrases", "entities")


def model(
    layers: int,
    width: int,
    heads: int,
    vocab_size: int,
    token_types: int = 4,
    length: int = 512,
    activation: str = "gelu_exact",
    dropout: float = 0.1,
):
    """Returns an ERNIE, with its heads for masked tokens and pairs."""
    return models.EncoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width, token_types=token_types, norm=True),
        attention=models.AttentionConfig(
            heads=heads, head_dim=width // heads, position=models.LearnedPositions(length=length)
        ),
        feed_forward=models.FeedForwardConfig(width=4 * width, activation=activation),
        norm=models.NormConfig(epsilon=1e-12, placement="post"),
        stack=models.StackConfig(layers=layers),
        head=models.VocabularyHead(transform=activation, bias=True),
        pooler=models.Pooler(),
        dropout=models.DropoutConfig(embedding=dropout, attention=dropout, residual=dropout),
        initializer=models.InitializerConfig(std=0.02, truncated=True),
    )


def get_config(size: str = "1.0-base-zh"):
    """Returns the run of one of SIZES."""
    of = config.choose(SIZES, size)
    stages = (config.PhaseConfig(until=(i + 1) / 3, mixture={unit: 1.0}) for i, unit in enumerate(UNITS))
    run = published_run(
        evaluate_every=10_000,
        model=model(*of),
        objective=objectives.MaskedLM(independent=True, whole_words=1),
        vocabulary=VOCABULARIES[of.vocab_size],
        data=config.DataConfig(
            cache_dir="../.cache/ernie" + ("-zh" if size.endswith("zh") else "-en"),
            sources={unit: config.TextTable(path="../corpus/*.jsonl.gz") for unit in UNITS},
            segmenters={unit: f"segmenters:{unit}" for unit in UNITS[1:]},
            layout=config.SentencePairs(),
            length=512,
        ),
        optimizer=config.AdamWConfig(weight_decay=0.01, clip_norm=1.0),
        schedule=config.LinearSchedule(learning_rate=1e-4, warmup_steps=5000, decay_counts_warmup=True),
        train=config.TrainConfig(steps=1_000_000, batch_size=16, phases=tuple(stages)),
    )
    return config.to_config_dict(run)
