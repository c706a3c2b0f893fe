"""How long the spans are that a T5 corrupts, i.i.d. noise first (Raffel et al. 2020 §3.3.4, table 7).

python -m plm_jax sweep --sweep=ablations/t5_span_length --workdir=runs/t5-span-length
python -m plm_jax sweep --sweep=ablations/t5_span_length:demo --workdir=runs/t5-span-length-demo --seeds=0,1,2
"""

import dataclasses

from plm_jax import objectives
from plm_jax.configs.ablations import t5_paper

base, compared = t5_paper.base, t5_paper.compared


def overrides(size="paper"):
    """(name, changes) of each run."""
    yield from t5_paper.arm("iid", {"objective": objectives.ReplaceSpans()}, size)
    for length in (2, 3, 5, 10):
        objective = objectives.SpanCorruption(mean_span_length=float(length))
        yield from t5_paper.arm(f"span_{length}", {"objective": objective}, size)


evaluations = t5_paper.evaluations(overrides)


def published():
    """What the paper reports."""
    lengths = {"span_2": 2.0, "span_3": 3.0, "span_5": 5.0, "span_10": 10.0}
    setups = {
        name: dataclasses.replace(
            t5_paper.PRETRAINING,
            objective={"kind": "span_corruption", "noise_density": 0.15, "mean_span_length": length},
        )
        for name, length in lengths.items()
    }
    return t5_paper.published(
        7,
        {
            "iid": t5_paper.BASELINE,
            "span_2": "83.54 19.39 82.09 72.20 26.76 39.99 27.63",
            "span_3": "83.49 19.62 81.84 72.53 26.86 39.65 27.62",
            "span_5": "83.40 19.24 82.05 72.23 26.88 39.40 27.53",
            "span_10": "82.85 19.33 81.84 70.44 26.79 39.49 27.69",
        },
        setups,
    )
