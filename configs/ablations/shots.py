"""A GPT-3 shown K examples in its prompt, or tuned on all of them (Brown et al. 2020, figure 1.1 and table 3.8).

    python -m plm_jax sweep --sweep=ablations/shots --workdir=runs/shots
    python -m plm_jax sweep --sweep=ablations/shots:demo --workdir=runs/shots-demo --seeds=0,1,2

The paper compares its prompts with tuned BERTs and tunes no GPT-3; its figures are not at hand. Here one model is
prompted and tuned, on RTE, and in the demo on film reviews, where a GPT-2 of two layers answers prompts by chance:
expect that tuning wins.
"""

from plm_jax.configs.ablations import downstream
from plm_jax.configs.ablations.skeleton import by_size
from plm_jax.configs.tasks import glue
from plm_jax.experiments.comparison import Baselines

base = by_size(paper="../gpt3.py:125m", demo="../demo.py:gpt2")
SHOTS = {"paper": (0, 1, 32), "demo": (0, 1, 5)}
TASKS = {"paper": "rte", "demo": "sentiment"}
compared = {}  # Runs are compared only with their own baselines.


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    yield "pretrained", {}
    if size == "demo":
        ((_, changes),) = downstream.of_reviews("pretrained", feature="last")
    else:
        changes = downstream.begun(downstream.run_of(glue.get_config("rte")), "pretrained", "rte")
    yield "tuned", changes | {"objective.rows": "decoder"}


def evaluations(size="paper"):
    """Yields the further evaluations of a run."""
    flags = {"tasks": TASKS[size], "shots": SHOTS[size], "seeds": (0, 1, 2), "limit": 500}
    yield "pretrained", flags | ({"config": "tasks/glue:rte"} if size == "paper" else {})


def baselines(size="paper"):
    """Returns what each run is compared with."""
    task = TASKS[size]
    shots = {f"{number} shots": f"{task}/{number}_shots/accuracy" for number in SHOTS[size]}
    beside = {name: ("pretrained", metric) for name, metric in shots.items()}
    chance = {"chance": f"{task}/chance"}
    return [
        Baselines("tuned", f"{task}/accuracy", {"most frequent class": f"{task}/trivial_accuracy"} | beside),
        *(Baselines("pretrained", metric, chance) for metric in shots.values()),
    ]
