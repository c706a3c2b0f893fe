"""Masks that are written once, ten of each row, or drawn anew each time (Liu et al. 2019 §4.1, table 1).

    python -m plm_jax sweep --sweep=ablations/roberta_masking --workdir=runs/roberta-masking
    python -m plm_jax sweep --sweep=ablations/roberta_masking:demo --workdir=runs/roberta-masking-demo --seeds=0,1,2

A run of the demo reads its text about four times: two masks of each row come twice there.
"""

import dataclasses

from plm_jax import objectives
from plm_jax.configs.ablations import downstream, roberta_inputs
from plm_jax.experiments.comparison import Published
from plm_jax.experiments.setups import of_run

base = roberta_inputs.base
DUPLICATES = {"paper": 10, "demo": 2}
METRICS = ("SQuAD2 F1", "MNLI-m", "SST-2")
TASKS = ("squad2", "mnli", "sst2")


def overrides(size="paper"):
    """(name, changes) of each run."""
    pairs = dict(roberta_inputs.overrides(size))["segment_pairs"]
    for name, duplicates in (("static", DUPLICATES[size]), ("dynamic", 0)):
        yield name, pairs | {"objective": objectives.MaskedLM(duplicates=duplicates)}
        yield from downstream.tuned(name, size, TASKS)


def published():
    """Returns the paper's figures."""
    source = "Liu et al. 2019 (arXiv:1907.11692), table 1"
    figures = {"static": (78.3, 84.3, 92.5), "dynamic": (78.7, 84.0, 92.9)}
    tuning = {f"-{task}": roberta_inputs.TUNING[f"-{task}"] for task in TASKS}
    published_rows = []
    for name, duplicates in {"static": 10, "dynamic": 0}.items():
        setup = dataclasses.replace(
            roberta_inputs.SETUP,
            source="Liu et al. 2019, §2 and §4 (BERT-base's training), §3.1 (length), §4.1 (masks)",
            objective={**roberta_inputs.SETUP.objective, "duplicates": duplicates},
            rows=roberta_inputs.ROWS["segment_pairs"],
        )
        published_rows.append(
            Published(name, dict(zip(METRICS, figures[name], strict=True)), source, of_run(name, setup, tuning))
        )
    return published_rows


def compared(size="paper"):
    """Our metrics by the paper's names; the demo's only task is the reviews."""
    if size == "demo":
        return {"SQuAD2 F1": downstream.REVIEWS}
    return {name: downstream.ENCODER_METRICS[name] for name in METRICS}
