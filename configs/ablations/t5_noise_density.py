"""Share of a text that a T5 corrupts (Raffel et al. 2020 §3.3.3, table 6).

python -m plm_jax sweep --sweep=ablations/t5_noise_density --workdir=runs/t5-noise-density
python -m plm_jax sweep --sweep=ablations/t5_noise_density:demo --workdir=runs/t5-noise-density-demo --seeds=0,1,2
"""

from plm_jax import objectives
from plm_jax.configs.ablations import t5_paper

base, compared = t5_paper.base, t5_paper.compared
# A row with half of its tokens corrupted has more spans than T5 has sentinels.
SENTINELS = {
    "paper": {"vocabulary.sentinels": 200, "model.embedding.vocab_size": 32_256},
    "demo": {"vocabulary.sentinels": 64, "model.embedding.vocab_size": 1024 + 64},
}


DENSITIES = {"noise_15": 0.15, "noise_10": 0.1, "noise_25": 0.25, "noise_50": 0.5}


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    noises = {name: objectives.ReplaceSpans(noise_density=density) for name, density in DENSITIES.items()}
    yield from t5_paper.arms({name: {"objective": noise} for name, noise in noises.items()}, size, **SENTINELS[size])


evaluations = t5_paper.evaluations(overrides)
published = t5_paper.published(
    6,
    {
        "noise_15": t5_paper.BASELINE,
        "noise_10": "82.82 19.00 80.38 69.55 26.87 39.28 27.44",
        "noise_25": "83.00 19.54 80.96 70.48 27.04 39.83 27.47",
        "noise_50": "81.27 19.32 79.80 70.33 27.01 39.90 27.49",
    },
    {name: {"objective": {"kind": "replace_spans", "noise_density": value}} for name, value in DENSITIES.items()},
)
