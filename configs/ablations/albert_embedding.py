"""How wide the table of an ALBERT's embeddings is before it is projected to the model's width (Lan et al. 2020 §4.3).

    python -m plm_jax.sweep --sweep=ablations/albert_embedding --workdir=runs/albert-embedding
    python -m plm_jax.sweep --sweep=ablations/albert_embedding:demo --workdir=runs/albert-embedding-demo --seeds=0,1,2

The paper's figures are not at hand.
"""

from plm_jax import config
from plm_jax.configs.ablations import albert_pairs, albert_sharing, downstream
from plm_jax.experiments.comparison import Published

SIZES = {"paper": (64, 128, 256, 768), "demo": (16, 32, 64, 128)}
base = albert_sharing.base


def overrides(size="paper"):
    """(name, changes) of each run."""
    for columns in config.choose(SIZES, size):
        name = f"embedding_{columns}"
        yield name, {"model.embedding.embedding_size": columns} | ({"train.steps": 400} if size == "demo" else {})
        yield from downstream.tuned(name, size)


def published():
    """Of the paper nothing is at hand."""
    source = "Lan et al. 2020 (arXiv:1909.11942), table 3: not at hand"
    return [Published(f"embedding_{columns}", {}, source) for columns in SIZES["paper"]]


def compared(size="paper"):
    """Our metrics by the paper's names."""
    return {"SST-2": "sentiment/accuracy"} if size == "demo" else albert_pairs.compared()
