"""Many tasks at once before tuning, instead of it, or not at all (Raffel et al. 2020 §3.5.3, table 12).

    python -m plm_jax sweep --sweep=ablations/t5_multi_task --workdir=runs/t5-multi-task
    python -m plm_jax sweep --sweep=ablations/t5_multi_task:demo --workdir=runs/t5-multi-task-demo --seeds=0,1,2

`tuned` reads C4 alone and is tuned on each benchmark. `multi_task` reads C4 and the tasks together and is not tuned;
`multi_task_tuned` is tuned after that. `supervised` reads the tasks without C4 and is tuned. The paper's fourth
variant, which leaves the task that it is tuned on out of the mixture, is missing: it takes a run for each benchmark.
"""

from plm_jax.configs.ablations import t5_mixing, t5_paper

base, compared = t5_paper.base, t5_paper.compared


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    yield from t5_paper.arm("tuned", {}, size)
    mixed = dict(t5_mixing.overrides(size))["k_13" if size == "demo" else "k_19"]
    unlabeled = "sotu" if size == "demo" else "c4"
    yield "multi_task", mixed
    shorter = mixed | t5_paper.SCALES[size]
    yield "multi_task_tuned", shorter
    yield from t5_paper.tuned("multi_task_tuned", size)
    yield "supervised", shorter | {"data.mixture": mixed["data.mixture"] | {unlabeled: 0.0}}
    yield from t5_paper.tuned("supervised", size)


evaluations = t5_paper.evaluations(overrides)


def published():
    """Returns the paper's figures."""
    source = "Raffel et al. 2020, §3.5.3 (tasks, steps) and §3.1 (all else)"
    rows = {
        "multi_task_tuned": "83.11 19.12 80.26 71.03 27.08 39.80 28.07",
        "supervised": "79.93 18.96 77.38 65.36 26.81 40.13 28.04",
    }
    stated = {name: {"source": source, "steps": 2**19} for name in rows}
    stated["supervised"] |= {"sources": t5_paper.TASKS, "objective": {"kind": "inputs_targets"}}
    tuned = t5_paper.published(12, {"tuned": t5_paper.BASELINE})
    mixed = {"multi_task": "81.42 19.24 79.78 67.30 25.21 36.30 27.76"}
    return [
        *tuned(),
        *t5_paper.published(12, mixed, setup=t5_mixing.SETUP, tuning={})(),
        *t5_paper.published(12, rows, stated, t5_mixing.SETUP)(),
    ]
