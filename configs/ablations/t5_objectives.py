"""Which text-to-text objective a T5 is trained with (Raffel et al. 2020 §3.3.1 and 3.3.2, tables 4 and 5).

    python -m plm_jax sweep --sweep=ablations/t5_objectives --workdir=runs/t5-objectives
    python -m plm_jax sweep --sweep=ablations/t5_objectives:demo --workdir=runs/t5-objectives-demo --seeds=0,1,2

The first row is the baseline of both tables, i.i.d. noise whose stretches give way to sentinels. Of the demo's four the
seeds alone should differ by some three points of accuracy: expect nothing to be resolved.
"""

import dataclasses

from plm_jax import objectives
from plm_jax.configs.ablations import t5_paper

OBJECTIVES = {
    "replace_spans": objectives.ReplaceSpans(),
    "bert_style": objectives.MaskTokens(),
    "prefix_lm": objectives.PrefixLM(),
    "deshuffling": objectives.Deshuffling(),
    "mass_style": objectives.MaskTokens(random_share=0.0),
    "drop_tokens": objectives.DropTokens(),
}
DEMO = ("replace_spans", "bert_style", "prefix_lm", "deshuffling")
base, compared = t5_paper.base, t5_paper.compared


def overrides(size="paper"):
    """(name, changes) of each run."""
    for name in DEMO if size == "demo" else OBJECTIVES:
        yield from t5_paper.arm(name, {"objective": OBJECTIVES[name]}, size)


evaluations = t5_paper.evaluations(overrides)


def published():
    """What the paper reports."""
    stated = {
        "bert_style": {"kind": "mask_tokens", "noise_density": 0.15, "random_share": 0.1},
        "prefix_lm": {"kind": "prefix_lm"},
        "deshuffling": {"kind": "deshuffling"},
        "mass_style": {"kind": "mask_tokens", "noise_density": 0.15, "random_share": 0.0},
        "drop_tokens": {"kind": "drop_tokens", "noise_density": 0.15},
    }
    setups = {
        name: dataclasses.replace(t5_paper.PRETRAINING, objective=objective) for name, objective in stated.items()
    }
    return t5_paper.published(
        4,
        {
            "replace_spans": t5_paper.BASELINE,
            "bert_style": "82.96 19.17 80.65 69.85 26.78 40.03 27.41",
            "prefix_lm": "80.69 18.94 77.99 65.27 26.86 39.73 27.49",
            "deshuffling": "73.17 18.59 67.61 58.47 26.11 39.30 25.62",
        },
        setups,
    ) + t5_paper.published(
        5,
        {
            "mass_style": "82.32 19.16 80.10 69.28 26.79 39.89 27.55",
            "drop_tokens": "84.44 19.31 80.52 68.67 27.07 39.76 27.82",
        },
        setups,
    )
