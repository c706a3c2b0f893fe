"""Embedding sizes of an ALBERT, whose embeddings are projected to the model's width (Lan et al. 2020 §4.3).

    python -m plm_jax sweep --sweep=ablations/albert_embedding --workdir=runs/albert-embedding
    python -m plm_jax sweep --sweep=ablations/albert_embedding:demo --workdir=runs/albert-embedding-demo --seeds=0,1,2

All layers share their weights, as in the lower half of the paper's table 3.
"""

import dataclasses

from plm_jax import config
from plm_jax.configs.ablations import albert_pairs, albert_sharing, downstream
from plm_jax.experiments.comparison import Published
from plm_jax.experiments.setups import of_run

SIZES = {"paper": (64, 128, 256, 768), "demo": (16, 32, 64, 128)}
base = albert_sharing.base


def overrides(size="paper"):
    """(name, changes) of each run."""
    for columns in config.choose(SIZES, size):
        name = f"embedding_{columns}"
        yield name, {"model.embedding.embedding_size": columns} | ({"train.steps": 400} if size == "demo" else {})
        yield from albert_pairs.tuned(name, size)


def published():
    """Returns the paper's figures."""
    source = "Lan et al. 2020 (arXiv:1909.11942), table 3, all-shared, page 7"
    rows = {
        64: (88.7, 77.5, 80.8, 89.4, 63.5, 79.0),
        128: (89.3, 80.0, 81.6, 90.3, 64.0, 80.1),
        256: (88.8, 79.1, 81.5, 90.3, 63.4, 79.6),
        768: (88.6, 79.2, 82.0, 90.6, 63.3, 79.8),
    }
    published_rows = []
    for columns, row in rows.items():
        setup = albert_pairs.PRETRAINING
        setup = dataclasses.replace(setup, model={**setup.model, "embedding.embedding_size": columns})
        figures = dict(zip(albert_pairs.DOWNSTREAM, row, strict=True))
        name = f"embedding_{columns}"
        published_rows.append(Published(name, figures, source, of_run(name, setup, albert_pairs.TUNING)))
    return published_rows


def compared(size="paper"):
    """Our metrics by the paper's names."""
    return {"SST-2": downstream.REVIEWS} if size == "demo" else downstream.ENCODER_METRICS
