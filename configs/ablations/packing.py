"""BERT on pairs of sentences, one pair per row and packed, with the same number of tokens of text in a step.

    python -m plm_jax sweep --sweep=ablations/packing --workdir=runs/packing --seeds=0,1,2

Both runs train on pairs of single sentences, at first cut to 16 tokens (`demo.bert` explains why), then in rows of 256
tokens. Half of such a row is padding without packing; packed batches have as much text in fewer rows. Krell et al. 2021
(arXiv:2107.02027) found no difference in quality for BERT, whose pairs fill most of a row, so there are no figures to
compare with.
"""

from plm_jax import config, models
from plm_jax.configs.ablations.skeleton import unpublished

base = "../demo.py:bert"
PAIRS = config.SentencePairs(parts="sentences")
# Layout and batch size by run. A packed row has 1.59 times as many non-padding tokens.
BATCHES = {"one_pair": (PAIRS, 24), "packed": (config.Packed(inner=PAIRS), 15)}
LENGTH = 256
CHANGES = {
    "data.length": LENGTH,
    "data.cache_dir": "../.cache/demo/packing",
    "model.attention.position.length": LENGTH,
    "model.pooler": models.Pooler(),
    "train.phases": (config.PhaseConfig(until=2 / 3, length=16, batch_size=128), config.PhaseConfig(until=1.0)),
    "train.steps": 600,
    "evaluation.every": 600,
    "evaluation.max_batches": 0,
}


def overrides():
    """Yields (name, changes) of each run."""
    for name, (layout, rows) in BATCHES.items():
        yield name, CHANGES | {"data.layout": layout, "train.batch_size": rows}


published = unpublished(BATCHES, "no figures of this size were published")
compared = {"loss": "sotu/loss"}
