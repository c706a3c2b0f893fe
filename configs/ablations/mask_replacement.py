"""What stands in place of a token that a BERT predicts: the mask, itself, or any (Devlin et al. 2019, C.2).

    python -m plm_jax.sweep --sweep=ablations/mask_replacement --workdir=runs/mask-replacement
    python -m plm_jax.sweep --sweep=ablations/mask_replacement:demo --workdir=runs/mask-replacement-demo --seeds=0,1,2

A name tells per cent: mask, itself, any. The paper's figures (table 8) are not at hand. Losses of different targets
cannot be compared: an answer that is visible is told at once.
"""

from plm_jax.configs.ablations import downstream
from plm_jax.experiments.comparison import Published

base = downstream.bases(paper="../bert.py:base", demo="../demo.py:bert")
SHARES = ((80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100))


def overrides(size="paper"):
    """(name, changes) of each run."""
    for shares in SHARES:
        mask, _, random = shares
        name = "_".join(map(str, shares))
        changes = {"objective.mask_share": mask / 100, "objective.random_share": random / 100}
        yield f"mask_{name}", changes | ({"train.steps": 400} if size == "demo" else {})
        yield from downstream.tuned(f"mask_{name}", size)


def published():
    """Of the paper nothing is at hand."""
    names = ["_".join(map(str, shares)) for shares in SHARES]
    return [Published(f"mask_{name}", {}, "Devlin et al. 2019, table 8: not at hand") for name in names]


def compared(size="paper"):
    """What they are tuned on."""
    return {"MNLI-m": "sentiment/accuracy" if size == "demo" else "mnli/accuracy"}
