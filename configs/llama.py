"""LLaMA 1, 2, 3, 3.1 and 3.2, and TinyLlama: 1-7b 6.7e9 to 3.1-405b 406e9 parameters, tiny-1.1b 1.1e9.

    python -m plm_jax pretrain --config=configs/llama.py:2-7b --workdir=runs/llama-2-7b

Published (Touvron et al. 2023a, 2023b; Llama Team 2024, table 3 and §3.4.1): AdamW (0.9, 0.95), weight decay 0.1,
gradients clipped to 1, a warm-up of 2,000 steps and a cosine to a tenth of the peak. LLaMA 1: 4M tokens a step, rows of
2,048, 1.0e12 tokens (33b and 65b: 1.4e12); LLaMA 2: rows of 4,096, 2e12 tokens, an epsilon of 1e-5. LLaMA 3.1 405B: a
warm-up of 8,000 steps and a cosine to 8e-7 over 1,200,000; 4M tokens a step in rows of 4,096, from 252M tokens on 8M in
rows of 8,192, from 2.87e12 on 16M, 15.6e12 in all; no token sees another document. TinyLlama: 2M tokens a step, 3e12
in all, 4e-4 to 4e-5.

Not published, and chosen here: the initialization (0.02, as in Hugging Face); for the other sizes of 3 and 3.1 the
stages, which are 405B's over their 15e12 tokens; AdamW's constants in 3 and 3.1, which are LLaMA 2's, and its epsilon
in LLaMA 1, 1e-8. LLaMA 3.2 was pruned and distilled from 3.1-8b; here it is trained from scratch on 9e12 tokens at
8b's learning rate. Of the six stages of 3.1 with longer rows, only the last one is included, 3.1-8b-128k: rows of
131,072 tokens, a quarter of each on a chip (mesh.context), with the weights of 8b in `train.init_from`. It has a sixth
of the 800e9 tokens of all six (§3.4.2) and the final learning rate of 8b; its batch of 2M tokens is a guess. All sizes
of 3, 3.1 and 3.2 use 405B's cosine over 1,200,000 steps, within which they end: at a rate of 2.14e-6 (405b), 6.14e-6
(70b), 1.23e-5 (8b), 1.11e-4 (3.2-1b and 3.2-3b).

The format of rows was not published either: that a document begins with bos and ends with eos (in LLaMA 3,
begin_of_text and end_of_text) is inferred from Meta's loaders and tokenizers, which put bos before every text.

LLaMA 1 reads C4 from TensorFlow Datasets and the other six corpora from the paths in `data.sources`. The data of the
later versions was not published: store documents as JSON Lines ({"text": …}) at `data.sources.text.path`. Store Meta's
tokenizer.model at `vocabulary.spec`, or change this field. If LLaMA 3's file is missing, `prepare` trains a vocabulary
of the same kind and size.
"""

import dataclasses
from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run
from plm_jax.data.sources import corpora


class Size(NamedTuple):
    """Dimensions, peak learning rate, number of training tokens, number of devices that share the heads and widths,
    recomputation in the backward pass, and number of microbatches.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    learning_rate: float
    tokens: float
    tensor: int = 1
    remat: str = "full"
    microbatches: int = 1


# `remat` and `microbatches`: chosen for 64 chips of TPU v5p, so that 7B and 8B recompute little; for larger slices
# lower the microbatches. `plm_jax plan` reports the memory that a size needs on a slice.
_7B = Size(32, 4096, 32, 32, feed_forward=11008, learning_rate=3e-4, tokens=1.0e12, remat="none", microbatches=8)
_13B = Size(40, 5120, 40, 40, feed_forward=13824, learning_rate=3e-4, tokens=1.0e12)
_8B = Size(32, 4096, 32, 8, feed_forward=14336, learning_rate=3e-4, tokens=15e12, remat="dots", microbatches=16)
_70B = Size(80, 8192, 64, 8, feed_forward=28672, learning_rate=1.5e-4, tokens=15e12)
SIZES = {
    "1-7b": _7B,
    "1-13b": _13B,
    "1-33b": Size(60, 6656, 52, 52, feed_forward=17920, learning_rate=1.5e-4, tokens=1.4e12),
    "1-65b": Size(80, 8192, 64, 64, feed_forward=22016, learning_rate=1.5e-4, tokens=1.4e12),
    "2-7b": _7B._replace(tokens=2e12),
    "2-13b": _13B._replace(tokens=2e12),
    "2-34b": Size(48, 8192, 64, 8, feed_forward=22016, learning_rate=1.5e-4, tokens=2e12),
    "2-70b": _70B._replace(tokens=2e12),
    "3-8b": _8B,
    "3-70b": _70B,
    "3.1-8b": _8B,
    "3.1-70b": _70B,
    "3.1-405b": Size(126, 16384, 128, 8, feed_forward=53248, learning_rate=8e-5, tokens=15.6e12, tensor=4),
    "3.2-1b": Size(16, 2048, 32, 8, feed_forward=8192, learning_rate=3e-4, tokens=9e12, remat="none"),
    "3.2-3b": Size(28, 3072, 24, 8, feed_forward=8192, learning_rate=3e-4, tokens=9e12, remat="none"),
    "tiny-1.1b": Size(22, 2048, 32, 4, feed_forward=5632, learning_rate=4e-4, tokens=3e12, remat="none"),
}


class Version(NamedTuple):
    """Settings that the sizes of a version share; `length` is the row length."""

    vocab_size: int
    length: int
    position: models.Rotary


_LLAMA3 = Version(vocab_size=128_256, length=8192, position=models.Rotary(theta=500_000.0, length=8192))
_LONG = models.Rotary(500_000.0, scaling=models.RotaryScaling(), length=131_072)
VERSIONS = {
    "1": Version(vocab_size=32_000, length=2048, position=models.Rotary(length=2048)),
    "2": Version(vocab_size=32_000, length=4096, position=models.Rotary(length=4096)),
    "3": _LLAMA3,
    "3.1": _LLAMA3._replace(position=_LONG),
    "3.2": _LLAMA3._replace(position=dataclasses.replace(_LONG, scaling=models.RotaryScaling(factor=32.0))),
    "tiny": Version(vocab_size=32_000, length=2048, position=models.Rotary(length=2048)),
}
OWN_TEXT = {"sources": {"text": config.TextTable(path="../corpus/*.jsonl.gz")}}
FINER_NORM = ("1-7b", "1-13b", "1-33b")  # Their epsilon is 1e-6.
TIED = ("3.2-1b", "3.2-3b")
LONG = "-128k"


class Stage(NamedTuple):
    """A stage of LLaMA 3's training: batch size, row length, and total tokens at its end (None: those of the run)."""

    rows: int
    length: int
    until: float | None


STAGES = (
    Stage(rows=1024, length=4096, until=252e6),
    Stage(rows=1024, length=8192, until=2.87e12),
    Stage(rows=2048, length=8192, until=None),
)
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "1-7b": (6_738_415_616, "6.7B"),
    "1-13b": (13_015_864_320, "13.0B"),
    "1-33b": (32_528_943_616, "32.5B"),
    "1-65b": (65_285_660_672, "65.2B"),
    "2-7b": (6_738_415_616, "7B"),
    "2-13b": (13_015_864_320, "13B"),
    "2-34b": (33_743_970_304, "34B"),
    "2-70b": (68_976_648_192, "70B"),
    "3-8b": (8_030_261_248, "8B"),
    "3-70b": (70_553_706_496, "70B"),
    "3.1-8b": (8_030_261_248, "8B"),
    "3.1-8b-128k": (8_030_261_248, "8B"),
    "3.1-70b": (70_553_706_496, "70B"),
    "3.1-405b": (405_853_388_800, "405B"),
    "3.2-1b": (1_235_814_400, "1.23B"),
    "3.2-3b": (3_212_749_824, "3.21B"),
    "tiny-1.1b": (1_100_048_384, "1.1B"),
}
SOURCE = "Touvron et al. 2023; Llama Team 2024; Zhang et al. 2024"


def model(
    layers: int,
    width: int,
    heads: int,
    kv_heads: int,
    feed_forward: int,
    vocab_size: int = 32000,
    position: models.Rotary = VERSIONS["2"].position,
    epsilon: float = 1e-5,
    tied: bool = False,
):
    """Returns a LLaMA model."""
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width),
        attention=models.AttentionConfig(
            heads=heads,
            head_dim=width // heads,
            kv_heads=None if kv_heads == heads else kv_heads,
            position=position,
            bias=False,
        ),
        feed_forward=models.FeedForwardConfig(width=feed_forward, activation="silu", gated=True, bias=False),
        norm=models.NormConfig(kind="rms", epsilon=epsilon),
        stack=models.StackConfig(layers=layers),
        head=models.VocabularyHead(tied=tied),
        initializer=models.InitializerConfig(std=0.02),
    )


def train(version: str, length: int, tokens: float, microbatches: int) -> config.TrainConfig:
    """Returns the batches: constant up to LLaMA 2, in three stages from LLaMA 3 on."""
    if not version.startswith("3"):
        rows = (2**21 if version == "tiny" else 2**22) // length
        return config.TrainConfig(steps=round(tokens / (rows * length)), batch_size=rows, microbatches=microbatches)
    ends, done = [], 0.0
    for stage in STAGES:
        ends.append((ends[-1] if ends else 0) + round(((stage.until or tokens) - done) / (stage.rows * stage.length)))
        done = stage.until
    phases = (
        config.PhaseConfig(until=end / ends[-1], length=stage.length, batch_size=stage.rows)
        for end, stage in zip(ends, STAGES, strict=True)
    )
    rows = STAGES[-1].rows
    return config.TrainConfig(steps=ends[-1], batch_size=rows, microbatches=microbatches, phases=tuple(phases))


def long(run: config.Run) -> config.Run:
    """Returns the last stage of a run of 3.1, in which rows have the length that its positions are made for."""
    length, rows = VERSIONS["3.1"].position.length, 16
    return dataclasses.replace(
        run,
        model=dataclasses.replace(run.model, remat="full"),
        data=dataclasses.replace(run.data, length=length),
        train=config.TrainConfig(steps=round(800e9 / 6 / (rows * length)), batch_size=rows),
        schedule=config.ConstantSchedule(learning_rate=1.23e-5, warmup_steps=100),
        mesh=dataclasses.replace(run.mesh, context=4),
    )


def get_config(size: str = "2-7b"):
    """Returns the run of one of SIZES, or of `3.1-8b-128k`."""
    sizes = SIZES | {f"3.1-8b{LONG}": SIZES["3.1-8b"]}
    of, version = config.choose(sizes, size), size.partition("-")[0]
    vocab_size, length, position = VERSIONS[version]
    latest = version.startswith("3")
    epsilon = 1e-6 if size in FINER_NORM else 1e-5
    dimensions = (of.layers, of.width, of.heads, of.kv_heads, of.feed_forward)
    llama = model(*dimensions, vocab_size, position, epsilon, tied=size in TIED)
    vocabulary = config.VocabularyConfig(
        spec="sentencepiece:../vocabularies/llama/tokenizer.model", unk=0, bos=1, eos=2
    )
    if latest:  # Its special tokens are the 256 ids above the file.
        spec = "tiktoken:../vocabularies/llama3/tokenizer.model"
        vocabulary = config.VocabularyConfig(spec, train_size=128_000, added=256, bos=128_000, eos=128_001)
    run = published_run(
        model=dataclasses.replace(llama, remat=of.remat),
        objective=objectives.Causal(),
        vocabulary=vocabulary,
        data=config.DataConfig(
            cache_dir="../.cache/llama3" if latest else "../.cache/llama",
            **(corpora.mixture("llama") if version == "1" else OWN_TEXT),
            layout=config.Blocks(attend_across_documents=not latest, begin=("bos",)),
            length=length,
        ),
        optimizer=config.AdamWConfig(
            b1=0.9, b2=0.95, epsilon=1e-8 if version in ("1", "tiny") else 1e-5, weight_decay=0.1, clip_norm=1.0
        ),
        schedule=config.CosineSchedule(
            learning_rate=of.learning_rate,
            warmup_steps=8000 if latest else 2000,
            decay_steps=1_200_000 if latest else 0,
            final_fraction=0.01 if latest else 0.1,
        ),
        train=train(version, length, of.tokens, of.microbatches),
        mesh=config.MeshConfig(data=1, fsdp=-1, tensor=of.tensor),
    )
    return config.to_config_dict(long(run) if size.endswith(LONG) else run)
