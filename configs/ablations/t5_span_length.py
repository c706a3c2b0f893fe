"""Mean length of the spans that a T5 corrupts, i.i.d. noise first (Raffel et al. 2020 §3.3.4, table 7).

python -m plm_jax sweep --sweep=ablations/t5_span_length --workdir=runs/t5-span-length
python -m plm_jax sweep --sweep=ablations/t5_span_length:demo --workdir=runs/t5-span-length-demo --seeds=0,1,2
"""

from plm_jax import objectives
from plm_jax.configs.ablations import t5_paper

base, compared = t5_paper.base, t5_paper.compared
LENGTHS = {"span_2": 2.0, "span_3": 3.0, "span_5": 5.0, "span_10": 10.0}


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    spans = {name: objectives.SpanCorruption(mean_span_length=length) for name, length in LENGTHS.items()}
    noises = {"iid": objectives.ReplaceSpans()} | spans
    yield from t5_paper.arms({name: {"objective": noise} for name, noise in noises.items()}, size)


evaluations = t5_paper.evaluations(overrides)
published = t5_paper.published(
    7,
    {
        "iid": t5_paper.BASELINE,
        "span_2": "83.54 19.39 82.09 72.20 26.76 39.99 27.63",
        "span_3": "83.49 19.62 81.84 72.53 26.86 39.65 27.62",
        "span_5": "83.40 19.24 82.05 72.23 26.88 39.40 27.53",
        "span_10": "82.85 19.33 81.84 70.44 26.79 39.49 27.69",
    },
    {
        name: {"objective": {"kind": "span_corruption", "noise_density": 0.15, "mean_span_length": length}}
        for name, length in LENGTHS.items()
    },
)
