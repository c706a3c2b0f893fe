"""AdamW, Muon for the matrices of the layers, StableAdamW and Lion, each at four peak learning rates.

    python -m plm_jax sweep --sweep=ablations/optimizers --workdir=runs/optimizers
    python -m plm_jax sweep --sweep=ablations/optimizers:demo --workdir=runs/optimizers-demo --seeds=0,1,2

A name such as `muon_2x` ends with the multiple of the lowest rate. Compare the best rate of each optimizer. The rates
of Muon are those of AdamW, because its updates are scaled to the same root mean square (Liu et al. 2025); those of
Lion are a tenth (Chen et al. 2023). With 120 steps, the demo shows early training only. None of the papers has
figures for a GPT-2 of this size.
"""

from plm_jax import config
from plm_jax.configs.ablations.skeleton import by_size, unpublished

base = by_size(paper="../gpt2.py:small", demo="../demo.py:gpt2")
_LOWEST_RATE = {"paper": 3e-4, "demo": 1e-3}
_MULTIPLES = (1, 2, 4, 8)
_DECAY = 0.1
_MUON = config.MuonConfig(weight_decay=_DECAY, scaling="match_rms_adamw")
OPTIMIZERS = {
    "adamw": (config.AdamWConfig(b2=0.95, weight_decay=_DECAY), 1.0),
    "muon": (config.AdamWConfig(b2=0.95, weight_decay=_DECAY, groups=((config.HIDDEN_MATRICES, _MUON, 1.0),)), 1.0),
    "stable_adamw": (config.StableAdamWConfig(b2=0.95, weight_decay=_DECAY), 1.0),
    "lion": (config.LionConfig(weight_decay=10 * _DECAY), 0.1),
}


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    lowest = config.choose(_LOWEST_RATE, size)
    for name, (optimizer, factor) in OPTIMIZERS.items():
        for multiple in _MULTIPLES:
            changes = {"optimizer": optimizer, "schedule.learning_rate": factor * multiple * lowest}
            yield f"{name}_{multiple}x", changes | ({"train.steps": 120} if size == "demo" else {})


_NAMES = [f"{name}_{multiple}x" for name in OPTIMIZERS for multiple in _MULTIPLES]
published = unpublished(_NAMES, "no figures of a GPT-2 were published")
compared = by_size(paper={"loss": "webtext/loss"}, demo={"loss": "sotu/loss"})
