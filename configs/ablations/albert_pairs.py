"""No sentence-pair task, next sentence prediction or sentence order prediction (Lan et al. 2020, table 5).

    python -m plm_jax sweep --sweep=ablations/albert_pairs --workdir=runs/albert-pairs
    python -m plm_jax sweep --sweep=ablations/albert_pairs:demo --workdir=runs/albert-pairs-demo --seeds=0,1,2

Each run is measured only on the pair task that it is trained on; the paper measures both. MLM is measured on held-out
Wikipedia, in the paper on text of SQuAD and RACE. Tuning follows the paper's table 14, except for its dropout of 0.1
before the classifier. In the demo, a BERT of three layers is pretrained on Chinese poems, whose form is learned in few
steps, and is not tuned.
"""

import dataclasses
from collections.abc import Callable, Mapping

from plm_jax import config, models, objectives
from plm_jax.configs.ablations import downstream, objectives_demo
from plm_jax.configs.ablations.skeleton import by_size, table, variants
from plm_jax.experiments.comparison import Published, SubstituteMetric
from plm_jax.experiments.setups import NOT_STATED, Setup

base = by_size(paper="../albert.py:base", demo="../demo.py:bert")
# The original duplicates its corpus forty times, with different pairs in each copy.
LAYOUTS = {
    "none": config.FullSentences(),
    "next_sentence": config.SentencePairs(duplicates=40),
    "sentence_order": config.SentencePairs(task="sentence_order", duplicates=40),
}
# Learning rate, batch size, steps, warm-up steps and length of each tuning task.
RECIPES = {
    "squad": (5e-5, 48, 3649, 365, 384),
    "squad2": (3e-5, 48, 8144, 814, 512),
    "mnli": (3e-5, 128, 10_000, 1000, 512),
    "sst2": (1e-5, 32, 20_935, 1256, 512),
}
SOURCE = "Lan et al. 2020 (arXiv:1909.11942)"
PRETRAINING = Setup(
    source="Lan et al. 2020, §4.1, pages 5 and 6, and table 1; google-research/albert (passes, budget, warm-up)",
    objective={"kind": "masked_lm", "whole_words": 3, "max_predictions": 20},
    rows={"kind": "sentence_pairs", "task": "sentence_order", "short_probability": 0.1, "duplicates": 40},
    model={
        "stack.layers": 12,
        "stack.groups": 1,
        "embedding.width": 768,
        "embedding.embedding_size": 128,
        "attention.heads": 12,
    },
    sources=["books", "wikipedia"],
    batch_size=4096,
    steps=125_000,
    learning_rate=0.00176,
    warmup=3125,
    length=512,
)
# The paper's figures again, apart from RECIPES: the tests compare the two.
TUNING = {
    f"-{task}": Setup(
        source="Lan et al. 2020, table 14, page 17",
        objective={"kind": "span_extraction" if task.startswith("squad") else "classification"},
        sources=[task],
        batch_size=batch_size,
        steps=steps,
        learning_rate=rate,
        warmup=warmup,
        length=length,
    )
    for task, rate, batch_size, steps, warmup, length in (
        ("squad", 5e-5, 48, 3649, 365, 384),
        ("squad2", 3e-5, 48, 8144, 814, 512),
        ("mnli", 3e-5, 128, 10_000, 1000, 512),
        ("sst2", 1e-5, 32, 20_935, 1256, 512),
    )
}
DOWNSTREAM = ("SQuAD1 F1", "SQuAD2 F1", "MNLI-m", "SST-2", "RACE", "average")


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    poems = vars(objectives_demo.poems(LAYOUTS["next_sentence"], length=64, steps=250, learning_rate=1e-3))
    for name, layout in LAYOUTS.items():
        if size == "demo":
            changes = poems | {"data": dataclasses.replace(poems["data"], layout=layout)}
            if name == "none":
                changes |= {"model": dataclasses.replace(poems["model"], pooler=models.NoHead())}
        else:
            changes = {"data.layout": layout, "objective": objectives.MaskedLM(max_predictions=20, whole_words=3)}
            changes |= {"model.pooler": models.NoHead()} if name == "none" else {}
        yield name, changes
        if size == "paper":
            yield from tuned(name, size)


def arm(name, changes, size, demo_steps):
    """Yields a variant of the base, and the runs that tune it."""
    yield name, changes | ({"train.steps": demo_steps} if size == "demo" else {})
    yield from tuned(name, size)


def tuned(name, size):
    """Yields the runs that tune a run: by the paper's recipes at its scale, on film reviews in the demo."""
    if size == "demo":
        yield from downstream.of_reviews(name)
        return
    for run, changes in downstream.of_encoder(name):
        yield run, changes | downstream.steps_of(*RECIPES[run.removeprefix(f"{name}-")])


def model_table(where: str, field: str, prefix: str, rows: Mapping[int, str | None]) -> Callable[[], list[Published]]:
    """Returns the `published` of a page that changes one field of the model.

    Args:
      where: table and page.
      field: dotted path of the field in `config.model`.
      prefix: beginning of the names of the runs.
      rows: figures of DOWNSTREAM by the field's value; None if the paper has none.
    """
    names = {value: f"{prefix}_{value}" for value in rows}
    models = {name: {"model": {**PRETRAINING.model, field: value}} for value, name in names.items()}
    figures = {names[value]: row for value, row in rows.items()}
    missing = "the paper has no figures for groups"
    return table(f"{SOURCE}, {where}", DOWNSTREAM, figures, variants(PRETRAINING, models), TUNING, missing=missing)


SETUPS = variants(PRETRAINING, {name: {"rows": {**PRETRAINING.rows, "task": name}} for name in LAYOUTS})
SETUPS["none"] = dataclasses.replace(PRETRAINING, rows=NOT_STATED).because(rows="whole sentences, as in RoBERTa")
published = table(
    f"{SOURCE}, table 5",
    ("MLM", "NSP", "SOP", *DOWNSTREAM),
    {
        "none": "54.9 52.4 53.3 88.6 78.1 81.5 89.9 61.7 79.0",
        "next_sentence": "54.5 90.5 52.0 88.4 77.2 81.6 91.1 62.3 79.2",
        "sentence_order": "54.0 78.9 86.5 89.3 80.0 82.0 90.3 64.0 80.1",
    },
    SETUPS,
    TUNING,
)
compared = by_size(
    paper=downstream.ENCODER_METRICS | {"MLM": "wikipedia/accuracy"}, demo={"MLM": SubstituteMetric("poems/accuracy")}
)
compared_without_pairs = downstream.compared_encoders
