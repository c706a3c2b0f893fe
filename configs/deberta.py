"""DeBERTa (He et al. 2021, 2023): v1 base 139M to xlarge 759M, v2 887M and 1.57B, v3 71M to 435M and multilingual.

    python -m plm_jax pretrain --config=configs/deberta.py:v3-base --workdir=runs/deberta-v3-base

Published: post-norm layers with disentangled attention, whose scores also depend on distances, and absolute positions
only in the decoder of masked tokens. v1 has GPT-2's vocabulary of bytes and a table of 512 distances in each direction;
v2 and v3 have 128,000 SentencePiece pieces, 256 logarithmic buckets of distances, and the projections of the contents
for the distances; v2 adds a convolution. v1 and v2 predict masked n-grams of up to three words. v3 detects tokens that
a generator with half as many layers replaced; it shares its embeddings without sharing their gradients, and is updated
after the generator on its samples. microsoft/DeBERTa, experiments/language_model: rows of 512 tokens of concatenated
text, batch 256, 1,000,000 steps (xsmall: 64 rows), a learning rate of 1e-4 (xsmall: 3e-4), 10,000 steps of warm-up,
Adam without bias correction. The papers report larger batches: 2,048 rows at 2e-4 for v1, and for v3 8,192 rows,
500,000 steps at 6e-4 (large: 3e-4) and b2 0.98. v1 was trained on 78 GB of text with 96 V100s for 20 days (large).

The loss of v3's discriminator is multiplied by 10, as in the code; the paper reports 50. With its own optimizer, only
Adam's epsilon and the clipped norm depend on this factor. `v3-base-coupled` minimizes the sum of both losses instead.

Wikipedia comes from TensorFlow Datasets. Store the other corpora (`corpora.MIXTURES["deberta"]` for v1, those of
RoBERTa for v2 and v3) as JSON Lines ({"text": …}) at the paths in `data.sources`, and the vocabulary at
`vocabulary.spec` (vocab.json and merges.txt of microsoft/deberta-base, spm.model of microsoft/deberta-v3-base), or
change these fields. For the multilingual model, which was trained on CC100 and has mT5's vocabulary, store documents of
your languages at `data.sources.text.path`.
"""

from typing import Any, NamedTuple

from plm_jax import config, losses, models, objectives
from plm_jax.configs import published_run
from plm_jax.data.sources import corpora


class Size(NamedTuple):
    """Dimensions and recipe; `version` is 1, 2 or 3."""

    version: int
    layers: int
    width: int
    heads: int
    vocab_size: int = 128_100
    batch_size: int = 256
    learning_rate: float = 1e-4
    decoupled: bool = True


BPE, MULTILINGUAL = 50_265, 251_000
SIZES = {
    "v3-base": Size(3, 12, 768, 12),
    "v3-base-coupled": Size(3, 12, 768, 12, decoupled=False),
    "v3-xsmall": Size(3, 12, 384, 6, batch_size=64, learning_rate=3e-4),
    "v3-small": Size(3, 6, 768, 12),
    "v3-large": Size(3, 24, 1024, 16),
    "mdeberta-v3-base": Size(3, 12, 768, 12, vocab_size=MULTILINGUAL),
    "base": Size(1, 12, 768, 12, BPE),
    "large": Size(1, 24, 1024, 16, BPE),
    "xlarge": Size(1, 48, 1024, 16, BPE),
    "v2-xlarge": Size(2, 24, 1536, 24),
    "v2-xxlarge": Size(2, 48, 1536, 24),
}
# size: (parameters of the original implementation, parameters as usually cited). Those of v3 include the generator, but
# not the discriminator's unused table of 512 absolute positions.
PUBLISHED = {
    "v3-base": (326_842_213, "184M"),
    "v3-base-coupled": (326_842_213, "184M"),
    "v3-xsmall": (131_339_749, "71M"),
    "v3-small": (263_051_365, "141M"),
    "v3-large": (719_626_341, "434M"),
    "mdeberta-v3-base": (515_739_513, "278M"),
    "base": (139_637_337, "139M"),
    "large": (406_789_209, "406M"),
    "xlarge": (759_430_233, "759M"),
    "v2-xlarge": (887_871_588, "887M"),
    "v2-xxlarge": (1_567_828_068, "1.57B"),
}
SOURCE = "He et al. 2021, 2023"
LENGTH = 512
# Parameters of the update of the generator: it has its own, and the embeddings of both.
GENERATOR = (r"generator/.*", r"(token|token_type|position)_embedding")


def model(
    version: int,
    layers: int,
    width: int,
    heads: int,
    vocab_size: int,
    length: int = LENGTH,
    buckets: int = 256,
    dropout: float = 0.1,
) -> models.EncoderConfig:
    """Returns a DeBERTa; that of version 3 is a discriminator with its generator."""
    if version > 1:
        position = models.Disentangled(length, buckets)
    else:
        position = models.Disentangled(length, buckets=0, shared=False, key_bias=False, norm=False)
    head = models.MaskDecoderHead(transform="gelu_exact", bias=True, positions=length)
    encoder: dict[str, Any] = {
        "embedding": models.EmbeddingConfig(vocab_size=vocab_size, width=width, norm=True),
        "attention": models.AttentionConfig(heads, width // heads, position, key_bias=version > 1),
        "feed_forward": models.FeedForwardConfig(width=4 * width, activation="gelu_exact"),
        "norm": models.NormConfig(epsilon=1e-7, placement="post"),
        "stack": models.StackConfig(layers=layers),
        "dropout": models.DropoutConfig(embedding=dropout, attention=dropout, residual=dropout),
        "initializer": models.InitializerConfig(std=0.02),
    }
    if version < 3:
        convolution = models.ConvolutionConfig() if version == 2 else None
        return models.EncoderConfig(**encoder, head=head, convolution=convolution)
    return models.ElectraConfig(
        **encoder,
        discriminator=models.Discriminator(adds_first=True),
        generator=models.GeneratorConfig(width, heads, width // heads, 4 * width, max(1, layers // 2), head),
        sharing="disentangled",
    )


def updates(optimizer: config.AdamWConfig) -> tuple[config.UpdateConfig, ...]:
    """Returns the updates of the generator and then of the discriminator, each with its own optimizer."""
    rest = rf"(?!({'|'.join(GENERATOR)})$).*"
    return (
        config.UpdateConfig("generator", losses.ReplacedTokenTerm("generator"), GENERATOR, optimizer),
        config.UpdateConfig("discriminator", losses.ReplacedTokenTerm("discriminator"), (rest,), optimizer),
    )


def vocabulary(of: Size) -> config.VocabularyConfig:
    """Returns the published vocabulary of a size."""
    ids: Any = {"pad": 0, "cls": 1, "sep": 2, "unk": 3}
    if of.version == 1:
        folder = "../vocabularies/deberta"
        return config.VocabularyConfig(spec=f"bpe:{folder}/vocab.json,{folder}/merges.txt", mask=50_264, **ids)
    name, mask = ("mdeberta-v3", 250_101) if of.vocab_size == MULTILINGUAL else ("deberta-v3", 128_000)
    # The mask is not in the file.
    return config.VocabularyConfig(spec=f"sentencepiece:../vocabularies/{name}/spm.model", mask=mask, added=1, **ids)


def corpus(of: Size) -> dict[str, Any]:
    """Returns the sources of a size, and their mixture, as fields of the data."""
    if of.vocab_size == MULTILINGUAL:
        return {"sources": {"text": config.TextTable(path="../corpus/*.jsonl.gz")}}
    return corpora.mixture("deberta" if of.version == 1 else "roberta")


def get_config(size: str = "v3-base"):
    """Returns the run of one of SIZES."""
    of = config.choose(SIZES, size)
    optimizer = config.AdamWConfig(epsilon=1e-6, weight_decay=0.01, bias_correction=False, clip_norm=1.0)
    if of.version == 3:
        objective = objectives.ReplacedToken(
            windows=True, max_predictions=80, mask_share=1.0, discriminator_weight=10.0
        )
    else:
        objective = objectives.MaskedLM(windows=True, max_predictions=96, whole_words=3)
    run = published_run(
        evaluate_every=10_000,
        model=model(of.version, of.layers, of.width, of.heads, of.vocab_size),
        objective=objective,
        vocabulary=vocabulary(of),
        data=config.DataConfig(
            cache_dir="../.cache/deberta", **corpus(of), layout=config.Blocks(frames=True), length=LENGTH
        ),
        optimizer=optimizer,
        schedule=config.LinearSchedule(learning_rate=of.learning_rate, warmup_steps=10_000),
        train=config.TrainConfig(
            steps=1_000_000,
            batch_size=of.batch_size,
            updates=updates(optimizer) if of.version == 3 and of.decoupled else (),
        ),
        mesh=config.MeshConfig(data=1, fsdp=-1, gather="step" if of.width <= 768 else "layer"),
    )
    return config.to_config_dict(run)
