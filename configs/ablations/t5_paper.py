"""Baseline, tasks, tables and set-up that the ablations of T5's paper share (Raffel et al. 2020 §3.1).

The baseline is `t5:base`, trained for 2^19 steps of 128 rows of 512 tokens of C4 with i.i.d. noise at 15 %, and tuned
on each benchmark separately. The paper reports the best checkpoint of each task; these runs report the last one. In the
demo, a T5 of 2 + 2 layers reads speeches for 200 steps and is tuned on film reviews. Other sweeps of T5 import this
one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from plm_jax import objectives
from plm_jax.configs.ablations import downstream
from plm_jax.configs.ablations.skeleton import by_size, table, variants
from plm_jax.experiments.comparison import Published
from plm_jax.experiments.setups import Setup

SOURCE = "Raffel et al. 2020 (arXiv:1910.10683), table"
COLUMNS = tuple(downstream.TEXT_TO_TEXT_METRICS)
# Table 1: means of ten runs. The standard deviations are .235 .065 .343 .416 .112 .090 .108.
BASELINE = "83.28 19.24 80.88 71.36 26.98 39.82 27.65"
# Each page changes one setting of the baseline, such as its objective.
SCALES = {
    "paper": {"objective": objectives.ReplaceSpans(), "train.steps": 2**19, "train.batch_size": 128},
    "demo": {"objective": objectives.ReplaceSpans(), "train.steps": 200},
}
base = by_size(paper="../t5.py:base", demo="../demo.py:t5")

# Tasks of the paper by our names (§2.3; without WNLI in GLUE, with definite pronoun resolution in SuperGLUE).
_GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
_SUPER_GLUE = ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")
_BENCHMARKS = {
    "glue": [f"glue_{task}" for task in _GLUE],
    "super_glue": [*(f"super_glue_{task}" for task in _SUPER_GLUE), "dpr"],
    "squad": ["squad"],
    "cnn_dailymail": ["cnn_dailymail"],
    "wmt_t2t_ende": ["wmt_t2t_ende"],
    "wmt15_enfr": ["wmt15_enfr"],
    "wmt16_enro": ["wmt16_enro"],
}
TASKS = tuple(task for tasks in _BENCHMARKS.values() for task in tasks)
# §3.1.5: the average over all subtasks, as the benchmarks stipulate.
AVERAGES = {
    "GLUE": tuple(f"glue_{task}" for task in _GLUE),
    "SGLUE": tuple(f"super_glue_{task}" for task in _SUPER_GLUE),
}
PRETRAINING = Setup(
    source="Raffel et al. 2020, §3.1.1 (model), §3.1.2 (training), §3.1.4 (objective), pages 11 to 13",
    objective={"kind": "replace_spans", "noise_density": 0.15},
    model={
        "kind": "encoder_decoder",
        "stack.layers": 12,
        "decoder_stack.layers": 12,
        "embedding.width": 768,
        "attention.heads": 12,
        "attention.head_dim": 64,
        "feed_forward.width": 3072,
    },
    sources=["c4"],
    batch_size=128,
    steps=2**19,
    learning_rate=0.01,
    warmup=10_000,
    length=512,
)
TUNING = {
    f"-{benchmark}": Setup(
        source="Raffel et al. 2020, §3.1.2 (training), pages 11 and 12, and §2.3 (tasks)",
        objective={"kind": "inputs_targets"},
        rows={"packed": True},
        sources=tasks,
        batch_size=128,
        steps=2**18,
        learning_rate=1e-3,
        warmup=0,
        length=512,
    )
    for benchmark, tasks in _BENCHMARKS.items()
}


def arm(name: str, changes: downstream.Changes, size: str) -> Iterator[tuple[str, downstream.Changes]]:
    """Yields a variant of the baseline, and the runs that tune it."""
    yield name, SCALES[size] | changes
    yield from tuned(name, size)


def arms(
    changes: Mapping[str, downstream.Changes], size: str, **shared: Any
) -> Iterator[tuple[str, downstream.Changes]]:
    """Yields the variants of the baseline by name, each with the runs that tune it; `shared` applies to all."""
    for name, own_changes in changes.items():
        yield from arm(name, own_changes | shared, size)


def tuned(name: str, size: str) -> Iterator[tuple[str, downstream.Changes]]:
    """Yields the runs that tune a variant."""
    if size == "demo":
        yield downstream.in_words(name, steps=150)
    else:
        yield from downstream.of_text_to_text(name)


def evaluations(overrides: Callable[[str], Iterable[tuple[str, downstream.Changes]]]):
    """Returns the `evaluations` of a page: MNLI, whose validation splits have their own names."""

    def of(size="paper"):
        for name, changes in overrides(size):
            if "glue_mnli" in changes.get("data.sources", ()):
                yield name, {"tasks": downstream.MNLI}

    return of


def published(
    number: int,
    rows: Mapping[str, str],
    stated: Mapping[str, Mapping[str, Any]] = {},
    setup: Setup | None = None,
    tuning: Mapping[str, Setup] = TUNING,
) -> Callable[[], list[Published]]:
    """Returns a page's `published`: rows of a table.

    Args:
      number: number of the table in the paper.
      rows: figures of COLUMNS for each variant, separated by spaces.
      stated: fields of `setup` that the paper states otherwise, by variant.
      setup: set-up for pretraining, by default PRETRAINING.
      tuning: set-ups of tuned runs, by name suffix.
    """
    setups = variants(setup or PRETRAINING, {name: stated.get(name, {}) for name in rows})
    return table(f"{SOURCE} {number}", COLUMNS, rows, setups, tuning, AVERAGES)


# In a demo the reviews stand for GLUE, whose tasks are the most similar.
compared = by_size(paper=downstream.TEXT_TO_TEXT_METRICS, demo={"GLUE": downstream.REVIEWS})
