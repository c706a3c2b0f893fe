"""Embedding sizes of an ALBERT, whose embeddings are projected to the model's width (Lan et al. 2020 §4.3).

    python -m plm_jax sweep --sweep=ablations/albert_embedding --workdir=runs/albert-embedding
    python -m plm_jax sweep --sweep=ablations/albert_embedding:demo --workdir=runs/albert-embedding-demo --seeds=0,1,2

All layers share their weights, as in the lower half of the paper's table 3.
"""

from plm_jax import config
from plm_jax.configs.ablations import albert_pairs

SIZES = {"paper": (64, 128, 256, 768), "demo": (16, 32, 64, 128)}
base, compared = albert_pairs.base, albert_pairs.compared_without_pairs


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    for columns in config.choose(SIZES, size):
        changes = {"model.embedding.embedding_size": columns}
        yield from albert_pairs.arm(f"embedding_{columns}", changes, size, demo_steps=400)


published = albert_pairs.model_table(
    "table 3, all-shared, page 7",
    "embedding.embedding_size",
    "embedding",
    {
        64: "88.7 77.5 80.8 89.4 63.5 79.0",
        128: "89.3 80.0 81.6 90.3 64.0 80.1",
        256: "88.8 79.1 81.5 90.3 63.4 79.6",
        768: "88.6 79.2 82.0 90.6 63.3 79.8",
    },
)
