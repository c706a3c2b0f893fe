"""ModernBERT (Warner et al. 2024): base 149M, large 395M parameters; and mmBERT (Marone et al. 2025): 140M, 307M.

    python -m plm_jax pretrain --config=configs/modernbert.py:base --workdir=runs/modernbert-base
    python -m plm_jax pretrain --config=configs/modernbert.py:base-8k --workdir=runs/modernbert-base-8k \
        --config.train.init_from=runs/modernbert-base
    python -m plm_jax pretrain --config=configs/modernbert.py:base-decay --workdir=runs/modernbert-base-decay \
        --config.train.init_from=runs/modernbert-base-8k

Published (AnswerDotAI/ModernBERT, yamls/modernbert; the paper for large): 30 % of all tokens are masked, drawn
independently, special tokens included, and 15 % in validation; StableAdamW; no dropout but 0.1 on the output of
attention; documents are packed. Training has three phases, each of which is a size here:

- `base`, `large`: rows of 1,024, rotary base 10,000 in all layers. Base: 1.719e12 tokens, a warm-up over 3e9, then a
  constant 8e-4; batches grow from 768 to 4,608 rows over 50e9 tokens. Large: 5e-4 for 900e9 tokens, then `large-low`,
  5e-5 for 800e9; a warm-up over 2e9; batches grow from 448 to 4,928 rows over 10e9.
- `-8k`: rows of 8,192, rotary base 160,000 in the global layers, 250e9 tokens at 3e-4 (large: 5e-5).
- `-decay`: 50e9 tokens, a rate that falls as 1 - sqrt(progress) to a thousandth.

Batches grow in six steps here, and linearly in the original. Large began with the weights of base, repeated to its
size; here it begins with random weights. The data (2e12 tokens of web text, code and papers) was not published.

mmBERT (`mm-small`, `mm-base`): the same architecture with Gemma 2's vocabulary, for 1,800 languages; 2.3e12 tokens with
30 % masks in rows of 1,024, 600e9 with 15 % in rows of 8,192, 100e9 with 5 %, in one run here, whose last phase decays.
Its learning rate and batches are those of ModernBERT-base, and its rotary base is 160,000 in all layers and phases, as
in its config.json; the paper changes languages and their temperature (0.7, 0.5, 0.3) by phase in the mixture.

Store documents as JSON Lines ({"text": …}) at `data.sources.text.path`, and the model's tokenizer.json at
`vocabulary.spec`, or change these fields.
"""

import dataclasses
from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run


class Size(NamedTuple):
    """Dimensions, vocabulary, and first phase of training: tokens, peak learning rate, and its batches, which grow from
    `first_rows` to `rows` over `growth` tokens, in microbatches of `microbatch` rows; `warmup` is in tokens.
    """

    layers: int
    width: int
    heads: int
    feed_forward: int
    tokens: float
    learning_rate: float
    first_rows: int
    rows: int
    growth: float
    warmup: float
    microbatch: int
    vocab_size: int = 50_368
    remat: str = "none"


class LaterPhase(NamedTuple):
    """The rows of the batches of the phases with long rows and of their microbatches, and their learning rate."""

    rows: int
    decay_rows: int
    learning_rate: float
    microbatch: int


BASE = Size(22, 768, 12, 1152, 1.719e12, 8e-4, first_rows=768, rows=4608, growth=50e9, warmup=3e9, microbatch=128)
LARGE = Size(
    28, 1024, 16, 2624, 900e9, 5e-4, first_rows=448, rows=4928, growth=10e9, warmup=2e9, microbatch=64, remat="dots"
)
SIZES = {
    "base": BASE,
    "large": LARGE,
    "large-low": LARGE._replace(tokens=800e9, learning_rate=5e-5, first_rows=4928, growth=0.0, warmup=0.0),
    "mm-small": BASE._replace(width=384, heads=6, vocab_size=256_000),
    "mm-base": BASE._replace(vocab_size=256_000),
}
LATER = {
    "base": LaterPhase(rows=576, decay_rows=576, learning_rate=3e-4, microbatch=16),
    "large": LaterPhase(rows=616, decay_rows=624, learning_rate=5e-5, microbatch=8),
}
LONG, DECAY, MULTILINGUAL = "-8k", "-decay", "mm-"
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "base": (149_655_232, "149M"),
    "large": (395_881_664, "395M"),
    "large-low": (395_881_664, "395M"),
    "mm-small": (140_897_536, "140M"),
    "mm-base": (307_786_240, "307M"),
}
SOURCE = "Warner et al. 2024; Marone et al. 2025"
GROWTH_STEPS = 6


def model(layers: int, width: int, heads: int, feed_forward: int, vocab_size: int, thetas: tuple[float, ...] = ()):
    """Returns a ModernBERT; `thetas` are the rotary bases of its layers, by default 10,000 in all of them."""
    if len(set(thetas)) == 1:
        position = models.Rotary(thetas[0], length=8192)
    else:
        position = models.Rotary(thetas=thetas, length=8192)
    return models.EncoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=vocab_size, width=width, norm=True),
        attention=models.AttentionConfig(
            heads=heads, head_dim=width // heads, position=position, bias=False, windows=(0, 65, 65)
        ),
        feed_forward=models.FeedForwardConfig(width=feed_forward, activation="gelu_exact", bias=False, gated=True),
        norm=models.NormConfig(bias=False, first=False),
        stack=models.StackConfig(layers=layers),
        head=models.VocabularyHead(transform="gelu_exact", transform_bias=False, bias=True),
        dropout=models.DropoutConfig(attention_output=0.1),
        initializer=models.InitializerConfig(truncated=True, shrink_residual=True),
    )


def batches(of: Size, length: int = 1024) -> config.TrainConfig:
    """Returns the batches of the first phase, which grow in equal steps with equal numbers of tokens."""
    levels = range(1, GROWTH_STEPS + 1) if of.growth else (GROWTH_STEPS,)
    rows = [of.first_rows + (of.rows - of.first_rows) * (level - 1) // (GROWTH_STEPS - 1) for level in levels]
    steps = [round(of.growth / GROWTH_STEPS / (number * length)) for number in rows]
    steps[-1] += round((of.tokens - of.growth) / (of.rows * length))
    total = sum(steps)
    ends = [sum(steps[: number + 1]) for number in range(len(steps))]
    phases = tuple(
        config.PhaseConfig(until=end / total, batch_size=number, microbatches=number // of.microbatch)
        for end, number in zip(ends, rows, strict=True)
    )
    return config.TrainConfig(
        steps=total,
        batch_size=of.rows,
        microbatches=of.rows // of.microbatch,
        phases=phases if len(phases) > 1 else (),
    )


def multilingual(of: Size) -> tuple[config.TrainConfig, config.WsdSchedule]:
    """Returns the three phases of mmBERT in one run, and its schedule."""
    later = LATER["base"]
    steps = [round(2.3e12 / (of.rows * 1024)), round(600e9 / (later.rows * 8192)), round(100e9 / (later.rows * 8192))]
    rates, total = (0.3, 0.15, 0.05), sum(steps)
    shapes = [(of.rows, 1024), (later.rows, 8192), (later.rows, 8192)]
    phases = tuple(
        config.PhaseConfig(
            until=sum(steps[: number + 1]) / total,
            batch_size=rows,
            length=length,
            microbatches=36,
            objective={"rate": rates[number]},
        )
        for number, (rows, length) in enumerate(shapes)
    )
    warmup = round(of.warmup / (of.rows * 1024))
    schedule = config.WsdSchedule(of.learning_rate, warmup_steps=warmup, cooldown_steps=steps[-1], shape="sqrt")
    return config.TrainConfig(steps=total, batch_size=of.rows, microbatches=36, phases=phases), schedule


def training(size: str, of: Size) -> tuple[config.TrainConfig, config.Schedule]:
    """Returns the batches and the schedule of a size."""
    if size.startswith(MULTILINGUAL):
        return multilingual(of)
    if not size.endswith((LONG, DECAY)):
        warmup = round(of.warmup / (of.first_rows * 1024))
        return batches(of), config.ConstantSchedule(of.learning_rate, warmup_steps=warmup, by_tokens=True)
    later = LATER[size.partition("-")[0]]
    if size.endswith(LONG):
        steps, microbatches = round(250e9 / (later.rows * 8192)), later.rows // later.microbatch
        train = config.TrainConfig(steps=steps, batch_size=later.rows, microbatches=microbatches)
        return train, config.ConstantSchedule(later.learning_rate)
    steps = round(50e9 / (later.decay_rows * 8192))
    schedule = config.WsdSchedule(later.learning_rate, cooldown_steps=steps, shape="sqrt", final_fraction=0.001)
    microbatches = later.decay_rows // later.microbatch
    return config.TrainConfig(steps=steps, batch_size=later.decay_rows, microbatches=microbatches), schedule


def get_config(size: str = "base"):
    """Returns the run of one of SIZES, or of a later phase of `base` or `large`, such as `base-8k`."""
    of = config.choose(SIZES | {f"{name}{phase}": SIZES[name] for name in LATER for phase in (LONG, DECAY)}, size)
    is_multilingual, is_long = size.startswith(MULTILINGUAL), size.endswith((LONG, DECAY))
    thetas = (160_000.0,) if is_multilingual else (160_000.0, 10_000.0, 10_000.0) if is_long else (10_000.0,)
    train, schedule = training(size, of)
    decay = 1e-6 if size.startswith("large-") else 1e-5
    dimensions = of.layers, of.width, of.heads, of.feed_forward, of.vocab_size
    vocabulary = config.VocabularyConfig(
        spec="json:../vocabularies/modernbert/tokenizer.json",
        pad=50_283,
        unk=50_280,
        cls=50_281,
        sep=50_282,
        mask=50_284,
    )
    if is_multilingual:
        vocabulary = config.VocabularyConfig(
            spec="json:../vocabularies/mmbert/tokenizer.json", pad=0, cls=2, sep=1, unk=3, mask=4
        )
    run = published_run(
        model=dataclasses.replace(model(*dimensions, thetas), remat=of.remat),
        objective=objectives.MaskedLM(rate=0.3, independent=True),
        vocabulary=vocabulary,
        data=config.DataConfig(
            cache_dir="../.cache/mmbert" if is_multilingual else "../.cache/modernbert",
            sources={"text": config.TextTable(path="../corpus/*.jsonl.gz")},
            layout=config.Packed(inner=config.Documents()),
            length=8192 if is_long else 1024,
        ),
        # 1e-5 per step; for the later phases of large 1e-6.
        optimizer=config.StableAdamWConfig(weight_decay=decay / schedule.learning_rate),
        schedule=schedule,
        train=train,
        evaluation=config.EvaluationConfig(every=5000, max_batches=64, objective={"rate": 0.15}),
    )
    return config.to_config_dict(run)
