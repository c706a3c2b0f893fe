"""No task of pairs, BERT's, or ALBERT's: what follows, or in which order (Lan et al. 2020, table 5).

    python -m plm_jax.sweep --sweep=ablations/albert_pairs --workdir=runs/albert-pairs
    python -m plm_jax.sweep --sweep=ablations/albert_pairs:demo --workdir=runs/albert-pairs-demo --seeds=0,1,2

Each run is measured on the task of pairs that it learns, not on the other one, which the paper measures, too. In the
demo a BERT of three layers reads Chinese poems, whose form tells much in few steps, and is tuned on nothing.
"""

import dataclasses

from plm_jax import config, objectives
from plm_jax.configs.ablations import downstream, objectives_demo
from plm_jax.experiments.comparison import Published
from plm_jax.models import settings

base = downstream.bases(paper="../albert.py:base", demo="../demo.py:bert")
LAYOUTS = {
    "none": config.WholeSentences(),
    "next_sentence": config.SentencePairs(),
    "sentence_order": config.SentencePairs(task="sentence_order"),
}
METRICS = ("MLM", "NSP", "SOP", "SQuAD1 F1", "SQuAD2 F1", "MNLI-m", "SST-2", "RACE", "average")


def overrides(size="paper"):
    """(name, changes) of each run."""
    poems = vars(objectives_demo.poems(LAYOUTS["next_sentence"], length=64, steps=250, learning_rate=1e-3))
    for name, layout in LAYOUTS.items():
        if size == "demo":
            model = poems["model"]
            changes = poems | {"data": dataclasses.replace(poems["data"], layout=layout)}
            if name == "none":
                changes |= {"model": dataclasses.replace(model, pooler=settings.NoHead())}
        else:
            changes = {"data.layout": layout, "objective": objectives.MaskedLM(max_predictions=20, whole_words=3)}
            changes |= {"model.pooler": settings.NoHead()} if name == "none" else {}
        yield name, changes
        if size == "paper":
            yield from downstream.of_encoder(name)


def published():
    """What the paper reports."""
    rows = {
        "none": (54.9, 52.4, 53.3, 88.6, 78.1, 81.5, 89.9, 61.7, 79.0),
        "next_sentence": (54.5, 90.5, 52.0, 88.4, 77.2, 81.6, 91.1, 62.3, 79.2),
        "sentence_order": (54.0, 78.9, 86.5, 89.3, 80.0, 82.0, 90.3, 64.0, 80.1),
    }
    source = "Lan et al. 2020 (arXiv:1909.11942), table 5"
    return [Published(name, dict(zip(METRICS, row, strict=True)), source) for name, row in rows.items()]


def compared(size="paper"):
    """Our metrics by the paper's names."""
    if size == "demo":
        return {"MLM": "poems/accuracy"}
    return {"MLM": "wikipedia/accuracy"} | downstream.ENCODER_METRICS
