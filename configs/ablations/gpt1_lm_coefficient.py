"""A GPT-1 tuned with an auxiliary language-model loss (λ of 0.5) or without (Radford et al. 2018 §3.2, table 5).

    python -m plm_jax sweep --sweep=ablations/gpt1_lm_coefficient --workdir=runs/gpt1-lambda
    python -m plm_jax sweep --sweep=ablations/gpt1_lm_coefficient:demo --workdir=runs/gpt1-lambda-demo --seeds=0,1,2

Tuning follows the paper: 3 epochs at 6.25e-5, rows of 512 tokens, and pairs of similar texts in both orders. The
paper's figures are for GLUE's test sets, ours for its validation sets (the matched one for MNLI).
"""

import dataclasses

from plm_jax.configs.ablations import downstream
from plm_jax.configs.ablations.skeleton import by_size
from plm_jax.configs.tasks import glue, recipes
from plm_jax.experiments.comparison import Published
from plm_jax.experiments.setups import Setup

base = by_size(paper="../gpt1.py:base", demo="../demo.py:gpt2")
COEFFICIENTS = (0.5, 0.0)
TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
SIMILARITIES = ("mrpc", "stsb", "qqp")
PRETRAINING = Setup(
    source="Radford et al. 2018, §4.1, page 5",
    objective={"kind": "causal"},
    model={
        "kind": "decoder",
        "stack.layers": 12,
        "embedding.width": 768,
        "attention.heads": 12,
        "feed_forward.width": 3072,
    },
    sources=["books"],
    batch_size=64,
    epochs=100,
    learning_rate=2.5e-4,
    warmup=2000,
    length=512,
    reasons=dict.fromkeys(("epochs", "steps"), "100 epochs of about 1e9 tokens are 3,000,000 steps"),
)
# Our metrics by column of table 5.
METRICS = {
    "CoLA (mc)": "cola/matthews",
    "SST2 (acc)": "sst2/accuracy",
    "MRPC (F1)": "mrpc/f1",
    "STSB (pc)": "stsb/pearson",
    "QQP (F1)": "qqp/f1",
    "MNLI (acc)": "mnli/accuracy",
    "QNLI (acc)": "qnli/accuracy",
    "RTE (acc)": "rte/accuracy",
}


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    yield "pretrained", {}
    for coefficient in COEFFICIENTS:
        if size == "demo":
            objective = {"objective.rows": "decoder", "objective.lm_coefficient": coefficient}
            ((_, changes),) = downstream.of_reviews("pretrained", feature="last")
            yield f"lambda_{coefficient}", changes | objective
            continue
        for task in TASKS:
            of_bert = downstream.run_of(glue.get_config(task))
            both_orders = {"both_orders": True} if task in SIMILARITIES else {}
            objective = dataclasses.replace(
                of_bert.objective, rows="decoder", lm_coefficient=coefficient, **both_orders
            )
            run = recipes.run("gpt1", objective, of_bert.data.sources, length=512)
            yield f"lambda_{coefficient}-{task}", downstream.begun(run, "pretrained", task)


def published():
    """Returns the paper's figures."""
    rows = {
        0.5: (74.7, 45.4, 91.3, 82.3, 82.0, 70.3, 81.8, 88.1, 56.0),
        0.0: (75.0, 47.9, 92.0, 84.9, 83.2, 69.8, 81.1, 86.9, 54.4),
    }
    columns = ("Average", *METRICS)
    return [
        Published(
            f"lambda_{coefficient}",
            dict(zip(columns, row, strict=True)),
            "Radford et al. 2018, table 5, page 8",
            {"pretrained": PRETRAINING}
            | {f"lambda_{coefficient}-{task}": _tuning(task, coefficient) for task in TASKS},
            {"Average": TASKS},
        )
        for coefficient, row in rows.items()
    ]


def _tuning(task: str, coefficient: float) -> Setup:
    """Returns the paper's set-up for tuning on a task."""
    return Setup(
        source="Radford et al. 2018, §4.1, page 5, and §3.3; openai/finetune-transformer-lm, train.py (length)",
        objective={
            "kind": "regression" if task == "stsb" else "classification",
            "lm_coefficient": coefficient,
            "both_orders": task in SIMILARITIES,
        },
        sources=[task],
        batch_size=32,
        epochs=3,
        learning_rate=6.25e-5,
        warmup=0.002,
        length=512,
    )


compared = by_size(paper={"Average": tuple(METRICS.values()), **METRICS}, demo={"SST2 (acc)": downstream.REVIEWS})
