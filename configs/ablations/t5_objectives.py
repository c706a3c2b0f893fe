"""Text-to-text objectives of a T5 (Raffel et al. 2020 §3.3.1 and 3.3.2, tables 4 and 5).

    python -m plm_jax sweep --sweep=ablations/t5_objectives --workdir=runs/t5-objectives
    python -m plm_jax sweep --sweep=ablations/t5_objectives:demo --workdir=runs/t5-objectives-demo --seeds=0,1,2

The first row is the baseline of both tables: i.i.d. noise, where a sentinel replaces each span. In the demo, the seed
alone changes the accuracy by about three points: expect no difference to be resolved.
"""

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


STATED = {
    "bert_style": {"kind": "mask_tokens", "noise_density": 0.15, "random_share": 0.1},
    "prefix_lm": {"kind": "prefix_lm"},
    "deshuffling": {"kind": "deshuffling"},
    "mass_style": {"kind": "mask_tokens", "noise_density": 0.15, "random_share": 0.0},
    "drop_tokens": {"kind": "drop_tokens", "noise_density": 0.15},
}


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    names = DEMO if size == "demo" else OBJECTIVES
    yield from t5_paper.arms({name: {"objective": OBJECTIVES[name]} for name in names}, size)


evaluations = t5_paper.evaluations(overrides)


def published():
    """Returns the paper's figures."""
    first = {
        "replace_spans": t5_paper.BASELINE,
        "bert_style": "82.96 19.17 80.65 69.85 26.78 40.03 27.41",
        "prefix_lm": "80.69 18.94 77.99 65.27 26.86 39.73 27.49",
        "deshuffling": "73.17 18.59 67.61 58.47 26.11 39.30 25.62",
    }
    second = {
        "mass_style": "82.32 19.16 80.10 69.28 26.79 39.89 27.55",
        "drop_tokens": "84.44 19.31 80.52 68.67 27.07 39.76 27.82",
    }
    stated = {name: {"objective": objective} for name, objective in STATED.items()}
    return t5_paper.published(4, first, stated)() + t5_paper.published(5, second, stated)()
