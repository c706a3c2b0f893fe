"""PaLM (Chowdhery et al. 2022): 8b 8.6B, 62b 62.5B, 540b 540B parameters.

    python -m plm_jax pretrain --config=configs/palm.py:8b --workdir=runs/palm-8b

Published (§2, §5): attention and feed-forward layers side by side over one norm, one head of keys and values, SwiGLU,
no biases, a table shared with the head, whose logits are multiplied by width^-0.5; Adafactor without factored moments,
updates scaled by the parameters, β1 0.9, β2 1 - k^-0.8, clipping to 1, weight decay lr²; a rate of 0.01 for 10,000
steps, then 1/sqrt(k); a z-loss of 1e-4, no dropout, rows of 2,048, 780e9 tokens; 540b: 512 rows up to step 50,000,
1,024 up to 115,000, 2,048 up to 255,000. The smaller sizes have 256 rows, then 512 (8b), and 512, then 1,024 (62b);
when they switch was not published: here after the first tenth of the tokens.

The data was not published. Store documents as JSON Lines ({"text": …}) at `data.sources.text.path`. If there is no
SentencePiece file at `vocabulary.spec`, `prepare` trains one of 256,000 tokens.
"""

from typing import NamedTuple

from plm_jax import config, models, objectives
from plm_jax.configs import published_run


class Size(NamedTuple):
    """Dimensions, batches as (rows, fraction of the steps at which they end), steps, and devices that share widths."""

    layers: int
    width: int
    heads: int
    phases: tuple[tuple[int, float], ...]
    steps: int
    tensor: int = 1


LENGTH = 2048


def _two_batches(rows: int) -> tuple[tuple[tuple[int, float], ...], int]:
    """Returns the phases of a size whose batches double after a tenth of 780e9 tokens, and its steps."""
    steps = round(78e9 / (rows * LENGTH)), round(702e9 / (2 * rows * LENGTH))
    return ((rows, steps[0] / sum(steps)), (2 * rows, 1.0)), sum(steps)


SIZES = {
    "8b": Size(32, 4096, 16, *_two_batches(256)),
    "62b": Size(64, 8192, 32, *_two_batches(512)),
    "540b": Size(118, 18_432, 48, ((512, 50 / 255), (1024, 115 / 255), (2048, 1.0)), steps=255_000, tensor=4),
}
# size: (parameters of the original implementation, parameters as usually cited)
PUBLISHED = {
    "8b": (8_632_012_800, "8.63B"),
    "62b": (62_495_662_080, "62.50B"),
    "540b": (540_356_474_880, "540.35B"),
}
SOURCE = "Chowdhery et al. 2022"


def model(layers: int, width: int, heads: int):
    """Returns a PaLM model."""
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(vocab_size=256_000, width=width),
        attention=models.AttentionConfig(
            heads=heads,
            head_dim=256,
            kv_heads=1,
            position=models.Rotary(interleaved=True, length=LENGTH),
            bias=False,
        ),
        feed_forward=models.FeedForwardConfig(width=4 * width, activation="silu", gated=True, bias=False),
        norm=models.NormConfig(epsilon=1e-6, placement="parallel", shared=True, bias=False),
        stack=models.StackConfig(layers=layers),
        head=models.VocabularyHead(scale_by_width=True),
        initializer=models.FanInConfig(unscaled_scores=False),
        remat="full",
    )


def get_config(size: str = "8b"):
    """Returns the run of one of SIZES."""
    of = config.choose(SIZES, size)
    run = published_run(
        model=model(of.layers, of.width, of.heads),
        objective=objectives.Causal(),
        vocabulary=config.VocabularyConfig(spec="sentencepiece:../vocabularies/palm/spm.model", pad=0, eos=1, unk=2),
        data=config.DataConfig(
            cache_dir="../.cache/palm",
            sources={"text": config.TextTable(path="../corpus/*.jsonl.gz")},
            layout=config.Blocks(),
            length=LENGTH,
        ),
        optimizer=config.AdafactorConfig(min_dim_size_to_factor=2**20, b1=0.9, squared_rate_decay=1.0, clip_norm=1.0),
        schedule=config.RsqrtSchedule(learning_rate=1.0, warmup_steps=10_000),
        train=config.TrainConfig(
            steps=of.steps,
            batch_size=of.phases[-1][0],
            z_loss=1e-4,
            phases=tuple(config.PhaseConfig(until=until, batch_size=rows) for rows, until in of.phases),
        ),
        mesh=config.MeshConfig(data=1, fsdp=-1, tensor=of.tensor),
    )
    return config.to_config_dict(run)
