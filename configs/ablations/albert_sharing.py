"""Layers of an ALBERT that share one, two or four sets of weights, or none.

    python -m plm_jax sweep --sweep=ablations/albert_sharing --workdir=runs/albert-sharing
    python -m plm_jax sweep --sweep=ablations/albert_sharing:demo --workdir=runs/albert-sharing-demo --seeds=0,1,2

Lan et al. 2020, table 4, share all layers, no layers, only attention or only the feed-forward parts. Here whole layers
are shared within groups; the paper has figures for a single group and for one group per layer.
"""

import dataclasses

from plm_jax.configs.ablations import albert_pairs, downstream
from plm_jax.experiments.comparison import Published
from plm_jax.experiments.setups import of_run

GROUPS = {"paper": (1, 2, 4, 12), "demo": (1, 3)}
base = downstream.bases(paper="../albert.py:base", demo="../demo.py:bert")


def overrides(size="paper"):
    """(name, changes) of each run."""
    for groups in GROUPS[size]:
        name = f"groups_{groups}"
        yield name, {"model.stack.groups": groups} | ({"train.steps": 600} if size == "demo" else {})
        yield from albert_pairs.tuned(name, size)


def published():
    """Returns the paper's figures."""
    source = "Lan et al. 2020 (arXiv:1909.11942), table 4 with tables 128 wide, page 7"
    rows = {1: (89.3, 80.0, 82.0, 90.3, 64.0, 80.1), 12: (89.9, 80.3, 83.2, 91.5, 67.9, 81.6)}
    published_rows = []
    for groups in GROUPS["paper"]:
        name, setup = f"groups_{groups}", albert_pairs.PRETRAINING
        setup = dataclasses.replace(setup, model={**setup.model, "stack.groups": groups})
        if groups in rows:
            figures = dict(zip(albert_pairs.DOWNSTREAM, rows[groups], strict=True))
            published_rows.append(Published(name, figures, source, of_run(name, setup, albert_pairs.TUNING)))
        else:
            published_rows.append(Published(name, {}, "the paper has no figures for groups"))
    return published_rows


def compared(size="paper"):
    """Our metrics by the paper's names."""
    return {"SST-2": downstream.REVIEWS} if size == "demo" else downstream.ENCODER_METRICS
