"""Whether a GPT-1 predicts tokens while it is tuned, λ of 0.5, or not (Radford et al. 2018 §3.2, table 5).

    python -m plm_jax.sweep --sweep=ablations/gpt1_lm_coefficient --workdir=runs/gpt1-lambda
    python -m plm_jax.sweep --sweep=ablations/gpt1_lm_coefficient:demo --workdir=runs/gpt1-lambda-demo --seeds=0,1,2

The paper's figures are not at hand.
"""

import dataclasses

from plm_jax.configs.ablations import downstream
from plm_jax.configs.tasks import glue, recipes
from plm_jax.experiments.comparison import Published

base = downstream.bases(paper="../gpt1.py:base", demo="../demo.py:gpt2")
COEFFICIENTS = (0.5, 0.0)
TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")


def overrides(size="paper"):
    """(name, changes) of each run."""
    yield "pretrained", {}
    for coefficient in COEFFICIENTS:
        if size == "demo":
            objective = {"objective.rows": "decoder", "objective.lm_coefficient": coefficient}
            ((_, changes),) = downstream.of_reviews("pretrained", feature="last")
            yield f"lambda_{coefficient}", changes | objective
            continue
        for task in TASKS:
            changes = downstream.begun(downstream.run_of(glue.get_config(task)), "pretrained", task)
            recipe = recipes.RECIPES["gpt1"]
            changes |= {
                "objective": dataclasses.replace(changes["objective"], rows="decoder", lm_coefficient=coefficient),
                "schedule.learning_rate": recipe.learning_rate,
                "schedule.warmup_fraction": recipe.warmup_fraction,
            }
            yield f"lambda_{coefficient}-{task}", changes


def published():
    """Of the paper nothing is at hand."""
    return [Published(f"lambda_{value}", {}, "Radford et al. 2018, table 5: not at hand") for value in COEFFICIENTS]


def compared(size="paper"):
    """What they are tuned on."""
    return {"SST-2": "sentiment/accuracy" if size == "demo" else "sst2/accuracy"}
