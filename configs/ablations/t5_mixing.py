"""Mixing rates of a T5 that reads many tasks at once, without tuning (Raffel et al. 2020 §3.5.2, table 11).

    python -m plm_jax sweep --sweep=ablations/t5_mixing --workdir=runs/t5-mixing
    python -m plm_jax sweep --sweep=ablations/t5_mixing:demo --workdir=runs/t5-mixing-demo --seeds=0,1,2

`k_19` draws each task in proportion to its number of examples, at most 2^19; `t_2` raises these proportions, with a
limit of 2^21, to the power of 1/2. C4 counts as a task beyond the limit. The first row is tuned after it has read C4
alone. A run has as many steps as the baseline's pretraining and tuning together.
"""

import dataclasses

from plm_jax import config
from plm_jax.configs import demo
from plm_jax.configs.ablations import downstream, t5_paper
from plm_jax.data import mixtures
from plm_jax.data.sources import corpora
from plm_jax.data.text_to_text import sizes

# A number of examples beyond every limit.
UNLABELED = 2**40
RATES = {f"k_{power}": {"maximum": 2**power} for power in (16, 17, 18, 19, 20, 21)}
RATES |= {f"t_{value}": {"maximum": 2**21, "temperature": value} for value in (2, 4, 8)}
DEMO = {"k_9": {"maximum": 2**9}, "k_13": {"maximum": 2**13}, "t_2": {"maximum": 2**13, "temperature": 2}}
DEMO_SIZES = {"sentiment": 9500, "quartz": 3500, "sotu": UNLABELED}
base, compared = t5_paper.base, t5_paper.compared
SETUP = dataclasses.replace(
    t5_paper.PRETRAINING,
    source="Raffel et al. 2020, §3.5.2 (tasks, steps) and §3.1 (all else)",
    sources=["c4", *t5_paper.TASKS],
    rows={"packed": True},
    steps=2**19 + 2**18,
)


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    if size == "demo":
        tasks = demo.t5_tasks().data
        examples, steps = DEMO_SIZES, 500
        sources = tasks.sources | demo.t5().data.sources
        rows = config.InputsTargetsConfig(target_length=64, packed=True)
        data = dataclasses.replace(tasks, sources=sources, mixture={}, inputs_targets=rows)
        shared = {"data": data, "train.phases": ()}
        shared |= {"data.cache_dir": "../.cache/ablations/t5-mixing"}
    else:
        yield from t5_paper.arm("tuned_apart", {}, size)
        examples, steps = sizes.SIZES | {"c4": UNLABELED}, 2**19 + 2**18
        shared = downstream.text_to_text(sizes.SIZES)
        shared |= {"data.sources": shared["data.sources"] | corpora.sources("c4")}
    scale = t5_paper.SCALES[size] | shared | {"train.steps": steps}
    yield "equal", scale | {"data.mixture": mixtures.equal(examples)}
    for name, how in (DEMO if size == "demo" else RATES).items():
        yield name, scale | {"data.mixture": mixtures.proportional(examples, **how)}


evaluations = t5_paper.evaluations(overrides)


def published():
    """Returns the paper's figures."""
    mixed = {
        "equal": "76.13 19.02 76.51 63.37 23.89 34.31 26.78",
        "k_16": "80.45 19.04 77.25 69.95 24.35 34.99 27.10",
        "k_17": "81.56 19.12 77.00 67.91 24.36 35.00 27.25",
        "k_18": "81.67 19.07 78.17 67.94 24.57 35.19 27.39",
        "k_19": "81.42 19.24 79.78 67.30 25.21 36.30 27.76",
        "k_20": "80.80 19.24 80.36 67.38 25.66 36.93 27.68",
        "k_21": "79.83 18.79 79.50 65.10 25.82 37.22 27.13",
        "t_2": "81.90 19.28 79.42 69.92 25.42 36.72 27.20",
        "t_4": "80.56 19.22 77.99 69.54 25.04 35.82 27.45",
        "t_8": "77.21 19.10 77.14 66.07 24.55 35.35 27.17",
    }
    apart = t5_paper.published(11, {"tuned_apart": t5_paper.BASELINE})
    return apart() + t5_paper.published(11, mixed, setup=SETUP, tuning={})()
