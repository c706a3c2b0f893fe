"""Masks that are written once, ten of each row, or drawn anew each time (Liu et al. 2019 §4.1, table 1).

    python -m plm_jax.sweep --sweep=ablations/roberta_masking --workdir=runs/roberta-masking
    python -m plm_jax.sweep --sweep=ablations/roberta_masking:demo --workdir=runs/roberta-masking-demo --seeds=0,1,2

A run of the demo reads its text about four times: two masks of each row come twice there.
"""

from plm_jax import objectives
from plm_jax.configs.ablations import downstream, roberta_inputs
from plm_jax.experiments.comparison import Published

base = roberta_inputs.base
DUPLICATES = {"paper": 10, "demo": 2}


def overrides(size="paper"):
    """(name, changes) of each run."""
    pairs = dict(roberta_inputs.overrides(size))["segment_pairs"]
    for name, duplicates in (("static", DUPLICATES[size]), ("dynamic", 0)):
        yield name, pairs | {"objective": objectives.MaskedLM(duplicates=duplicates)}
        yield from downstream.tuned(name, size)


def published():
    """What the paper reports."""
    source = "Liu et al. 2019 (arXiv:1907.11692), table 1"
    return [Published(name, {"SQuAD2 F1": value}, source) for name, value in (("static", 78.3), ("dynamic", 78.7))]


def compared(size="paper"):
    """Our metrics by the paper's names; the demo's only task is the reviews."""
    return {"SQuAD2 F1": "sentiment/accuracy" if size == "demo" else "squad2/f1"}
