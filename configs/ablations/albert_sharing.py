"""How many sets of weights the layers of an ALBERT have: one, two, four, or one each.

    python -m plm_jax.sweep --sweep=ablations/albert_sharing --workdir=runs/albert-sharing
    python -m plm_jax.sweep --sweep=ablations/albert_sharing:demo --workdir=runs/albert-sharing-demo --seeds=0,1,2

Lan et al. 2020 §4.4 share all, attention alone or the feed-forward alone; here whole layers are shared, within groups.
The paper's figures are not at hand.
"""

from plm_jax.configs.ablations import albert_pairs, downstream
from plm_jax.experiments.comparison import Published

GROUPS = {"paper": (1, 2, 4, 12), "demo": (1, 3)}
base = downstream.bases(paper="../albert.py:base", demo="../demo.py:bert")


def overrides(size="paper"):
    """(name, changes) of each run."""
    for groups in GROUPS[size]:
        name = f"groups_{groups}"
        yield name, {"model.stack.groups": groups} | ({"train.steps": 600} if size == "demo" else {})
        yield from downstream.tuned(name, size)


def published():
    """Of the paper nothing is at hand."""
    source = "Lan et al. 2020 (arXiv:1909.11942), table 4: not at hand"
    return [Published(f"groups_{groups}", {}, source) for groups in GROUPS["paper"]]


def compared(size="paper"):
    """Our metrics by the paper's names."""
    return {"SST-2": "sentiment/accuracy"} if size == "demo" else albert_pairs.compared()
