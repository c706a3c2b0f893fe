"""EuroBERT (Boizard et al. 2025): 210m 310M, 610m 756M, 2.1b 2.4B parameters with their head.

    python -m plm_jax pretrain --config=configs/eurobert.py:210m --workdir=runs/eurobert-210m

Published: a LLaMA whose tokens attend to all others, 5e12 tokens of 15 languages, code and mathematics, with a constant
learning rate and an annealing phase; rows of up to 8,192 tokens. The architecture is that of its config.json; the
masking rates (50 %, 10 % in the annealing phase), batches of 2^22 tokens, a peak rate of 1e-4 and a tenth of the
tokens in the annealing phase with its long rows are choices made here.

Store documents as JSON Lines ({"text": …}) at `data.sources.text.path`, and tokenizer.json of EuroBERT/EuroBERT-210m at
`vocabulary.spec`, or change these fields.
"""

from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run


class Size(NamedTuple):
    """Dimensions; `remat` is the recomputation in the backward pass."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    remat: str = "none"


SIZES = {
    "210m": Size(12, 768, 12, 12, 3072),
    "610m": Size(26, 1152, 18, 6, 4096, remat="dots"),
    "2.1b": Size(32, 2304, 18, 6, 6144, remat="full"),
}
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "210m": (310_266_624, "210M"),
    "610m": (755_625_600, "610M"),
    "2.1b": (2_403_092_736, "2.1B"),
}
SOURCE = "Boizard et al. 2025"
TOKENS, BATCH_TOKENS = 5e12, 2**22


def model(of: Size):
    """Returns a EuroBERT model."""
    return models.EncoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=128_256, width=of.width),
        attention=models.AttentionConfig(
            heads=of.heads,
            head_dim=of.width // of.heads,
            kv_heads=None if of.kv_heads == of.heads else of.kv_heads,
            position=models.Rotary(theta=250_000.0, length=8192),
            bias=False,
        ),
        feed_forward=models.FeedForwardConfig(width=of.feed_forward, activation="silu", gated=True, bias=False),
        norm=models.NormConfig(kind="rms"),
        stack=models.StackConfig(layers=of.layers),
        head=models.VocabularyHead(tied=False),
        remat=of.remat,
    )


def get_config(size: str = "210m"):
    """Returns the run of one of SIZES."""
    of = config.choose(SIZES, size)
    steps = round(TOKENS / BATCH_TOKENS)
    run = published_run(
        model=model(of),
        objective=objectives.MaskedLM(rate=0.5),
        vocabulary=config.VocabularyConfig(
            spec="json:../vocabularies/eurobert/tokenizer.json", bos=128_000, eos=128_001, pad=128_001, mask=128_002
        ),
        data=config.DataConfig(
            cache_dir="../.cache/eurobert",
            sources={"text": config.TextTable(path="../corpus/*.jsonl.gz")},
            layout=config.Packed(inner=config.Documents()),
            length=2048,
        ),
        optimizer=config.AdamWConfig(b1=0.9, b2=0.95, epsilon=1e-5, weight_decay=0.1, clip_norm=1.0),
        schedule=config.WsdSchedule(learning_rate=1e-4, warmup_steps=2000, cooldown_fraction=0.1),
        train=config.TrainConfig(
            steps=steps,
            batch_size=BATCH_TOKENS // 2048,
            phases=(
                config.PhaseConfig(until=0.9),
                config.PhaseConfig(until=1.0, length=8192, batch_size=BATCH_TOKENS // 8192, objective={"rate": 0.1}),
            ),
        ),
        evaluation=config.EvaluationConfig(every=5000, max_batches=64, objective={"rate": 0.15}),
    )
    return config.to_config_dict(run)
