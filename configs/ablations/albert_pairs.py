"""No sentence-pair task, next sentence prediction or sentence order prediction (Lan et al. 2020, table 5).

    python -m plm_jax sweep --sweep=ablations/albert_pairs --workdir=runs/albert-pairs
    python -m plm_jax sweep --sweep=ablations/albert_pairs:demo --workdir=runs/albert-pairs-demo --seeds=0,1,2

Each run is measured only on the pair task that it is trained on; the paper measures both. MLM is measured on held-out
Wikipedia, in the paper on text of SQuAD and RACE. Tuning follows the paper's table 14, except for its dropout of 0.1
before the classifier. In the demo, a BERT of three layers is pretrained on Chinese poems, whose form is learned in few
steps, and is not tuned.
"""

import dataclasses

from plm_jax import config, models, objectives
from plm_jax.configs.ablations import downstream, objectives_demo
from plm_jax.experiments.comparison import Published, StandIn
from plm_jax.experiments.setups import NOT_STATED, Setup, of_run

base = downstream.bases(paper="../albert.py:base", demo="../demo.py:bert")
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
METRICS = ("MLM", "NSP", "SOP", *DOWNSTREAM)


def overrides(size="paper"):
    """(name, changes) of each run."""
    poems = vars(objectives_demo.poems(LAYOUTS["next_sentence"], length=64, steps=250, learning_rate=1e-3))
    for name, layout in LAYOUTS.items():
        if size == "demo":
            model = poems["model"]
            changes = poems | {"data": dataclasses.replace(poems["data"], layout=layout)}
            if name == "none":
                changes |= {"model": dataclasses.replace(model, pooler=models.NoHead())}
        else:
            changes = {"data.layout": layout, "objective": objectives.MaskedLM(max_predictions=20, whole_words=3)}
            changes |= {"model.pooler": models.NoHead()} if name == "none" else {}
        yield name, changes
        if size == "paper":
            yield from tuned(name, size)


def tuned(name, size):
    """Yields the runs that tune a run: by the paper's recipes at its scale, on film reviews in the demo."""
    if size == "demo":
        yield from downstream.of_reviews(name)
        return
    for run, changes in downstream.of_encoder(name):
        yield run, changes | downstream.steps_of(*RECIPES[run.removeprefix(f"{name}-")])


def published():
    """Returns the paper's figures."""
    rows = {
        "none": (54.9, 52.4, 53.3, 88.6, 78.1, 81.5, 89.9, 61.7, 79.0),
        "next_sentence": (54.5, 90.5, 52.0, 88.4, 77.2, 81.6, 91.1, 62.3, 79.2),
        "sentence_order": (54.0, 78.9, 86.5, 89.3, 80.0, 82.0, 90.3, 64.0, 80.1),
    }
    source = "Lan et al. 2020 (arXiv:1909.11942), table 5"
    published_rows = []
    for name, row in rows.items():
        setup = dataclasses.replace(PRETRAINING, rows={**PRETRAINING.rows, "task": name})
        if name == "none":
            setup = dataclasses.replace(PRETRAINING, rows=NOT_STATED).because(rows="whole sentences, as in RoBERTa")
        figures = dict(zip(METRICS, row, strict=True))
        published_rows.append(Published(name, figures, source, of_run(name, setup, TUNING)))
    return published_rows


def compared(size="paper"):
    """Our metrics by the paper's names."""
    if size == "demo":
        return {"MLM": StandIn("poems/accuracy")}
    return downstream.ENCODER_METRICS | {"MLM": "wikipedia/accuracy"}
