"""Input formats of RoBERTa: pairs of segments or sentences, or full sentences (Liu et al. 2019, table 2).

    python -m plm_jax sweep --sweep=ablations/roberta_inputs --workdir=runs/roberta-inputs
    python -m plm_jax sweep --sweep=ablations/roberta_inputs:demo --workdir=runs/roberta-inputs-demo --seeds=0,1,2

All runs read BERT's corpora for 1,000,000 steps of 256 rows, without deliberately short rows. The paper enlarges
batches of short rows until they have the same number of tokens; here they have the same number of rows, and a run
reports how full these are. RACE is left out, because no form of labeled rows fits it.
"""

import dataclasses

from plm_jax import config, objectives
from plm_jax.configs import bert, demo
from plm_jax.configs.ablations import downstream
from plm_jax.configs.ablations.skeleton import by_size, table, variants
from plm_jax.experiments.setups import NOT_STATED, Setup

base = by_size(paper="../roberta.py:base", demo="../demo.py:bert")
LAYOUTS = {
    "segment_pairs": config.SentencePairs(short_probability=0.0),
    "sentence_pairs": config.SentencePairs(short_probability=0.0, parts="sentences"),
    "full_sentences": config.FullSentences(),
    "document_sentences": config.FullSentences(cross_documents=False),
}
# Set-up that §2, §3.1 and §4 state for every run of tables 1 to 3.
SETUP = Setup(
    source="Liu et al. 2019, §2.2 to 2.4 (objective, corpora), §3.1 (length) and §4 (model), table 2 (batch, steps)",
    objective={"kind": "masked_lm", "rate": 0.15, "mask_share": 0.8, "random_share": 0.1, "duplicates": 0},
    model={"stack.layers": 12, "embedding.width": 768, "attention.heads": 12},
    sources=["books", "wikipedia"],
    batch_size=256,
    steps=1_000_000,
    learning_rate=NOT_STATED,
    warmup=NOT_STATED,
    length=512,
    reasons={"learning_rate": "table 3's for this batch", "warmup": "BERT's"},
)
_PAIRS = {"kind": "sentence_pairs", "task": "next_sentence", "short_probability": 0.0}
ROWS = {
    "segment_pairs": _PAIRS | {"parts": "segments"},
    "sentence_pairs": _PAIRS | {"parts": "sentences"},
    "full_sentences": {"kind": "full_sentences", "cross_documents": True},
    "document_sentences": {"kind": "full_sentences", "cross_documents": False},
}
SCALES = {
    "paper": {
        "train.steps": 1_000_000,
        "train.batch_size": 256,
        "schedule.learning_rate": 1e-4,
        "schedule.warmup_steps": 10_000,
        **downstream.BERT_TEXT,
        "data.cache_dir": "../.cache/roberta-bert",
    },
    "demo": {"train.steps": 400},
}


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    small = demo.bert()
    for name, layout in LAYOUTS.items():
        changes = SCALES[size] | {"data.layout": layout, "objective": objectives.MaskedLM()}
        if layout.kind == "sentence_pairs":  # Their task has a head, and RoBERTa's vocabulary marks of its own.
            model = bert.model(12, 768, 12, vocab_size=50_265) if size == "paper" else small.model
            changes |= {"model": dataclasses.replace(model, pooler=bert.model(12, 768, 12, vocab_size=4).pooler)}
            changes |= {"vocabulary.cls": 0, "vocabulary.sep": 2} if size == "paper" else {}
        yield name, changes
        yield from downstream.tuned(name, size)


SETUPS = variants(SETUP, {name: {"rows": rows} for name, rows in ROWS.items()})
for name in ("sentence_pairs", "document_sentences"):  # Their rows are short, and the paper enlarges the batches.
    SETUPS[name] = dataclasses.replace(SETUPS[name], batch_size="as many tokens as 256 rows of 512 have").because(
        batch_size="the number of rows is the same in every step; a run reports how full they are"
    )
TUNING = downstream.unstated("Liu et al. 2019: tables 1 to 3 do not state it")


def tuning_of(tasks):
    """Returns the set-ups of the runs that are tuned on some of the tasks, by name suffix."""
    return {f"-{task}": TUNING[f"-{task}"] for task in tasks}


published = table(
    "Liu et al. 2019 (arXiv:1907.11692), table 2",
    ("SQuAD1 F1", "SQuAD2 F1", "MNLI-m", "SST-2", "RACE"),
    {
        "segment_pairs": "90.4 78.7 84.0 92.9 64.2",
        "sentence_pairs": "88.7 76.2 82.9 92.1 63.0",
        "full_sentences": "90.4 79.1 84.7 92.5 64.8",
        "document_sentences": "90.6 79.7 84.7 92.7 65.6",
    },
    SETUPS,
    TUNING,
)
compared = downstream.compared_encoders
