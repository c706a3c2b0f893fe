"""Noises that a BART is trained to undo, and a language model (Lewis et al. 2020, table 1).

    python -m plm_jax sweep --sweep=ablations/bart_noises --workdir=runs/bart-noises
    python -m plm_jax sweep --sweep=ablations/bart_noises:demo --workdir=runs/bart-noises-demo --seeds=0,1,2

The paper's models of base size read books and Wikipedia for 1,000,000 steps. It does not state batch size, learning
rates or lengths; the rates were tuned for each objective. Batches of 256 rows and 1e-4 are BERT's, with which the paper
compares. This sweep has the paper's rows for noises and for the language model. The paper's perplexities are for data
sets that this suite does not have, except CNN/DailyMail, which is measured by ROUGE here.
"""

import dataclasses

from plm_jax import config, objectives
from plm_jax.configs import gpt2
from plm_jax.configs.ablations import downstream
from plm_jax.configs.ablations.skeleton import by_size, table
from plm_jax.experiments.setups import NOT_STATED, Setup
from plm_jax.objectives import denoising

base = by_size(paper="../bart.py:base", demo="../demo.py:bart")
_ALONE = objectives.Denoising(permute_sentences=0.0)
NOISES = {
    "infilling": _ALONE,
    "masking": dataclasses.replace(_ALONE, noise=denoising.TokenMasking()),
    "deletion": dataclasses.replace(_ALONE, noise=denoising.TokenDeletion()),
    "rotation": dataclasses.replace(_ALONE, noise=denoising.NoNoise(), rotate=1.0),
    "shuffling": objectives.Denoising(noise=denoising.NoNoise()),
    "infilling_shuffling": objectives.Denoising(),
}
TASKS = ("squad", "mnli")
METRICS = ("SQuAD F1", "MNLI", "ELI5 ppl", "XSum ppl", "ConvAI2 ppl", "CNN/DM ppl")
SCALES = {
    "paper": {
        "train.steps": 1_000_000,
        "train.batch_size": 256,
        "train.microbatches": 1,
        "train.phases": (),
        "schedule.learning_rate": 1e-4,
        "schedule.warmup_steps": 10_000,
        **downstream.BERT_TEXT,
        "data.cache_dir": "../.cache/bart-bert",
    },
    "demo": {"train.steps": 300},
}


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    for name, objective in NOISES.items():
        yield name, SCALES[size] | {"objective": objective}
        yield from downstream.tuned(name, size, TASKS)
    alone = {
        "model": gpt2.model(layers=12, width=768, heads=12, vocab_size=50_265, length=512),
        "data.layout": config.Blocks(),
    }
    if size == "demo":
        alone = {"model": gpt2.model(layers=4, width=128, heads=4, vocab_size=1024, length=64, dropout=0.0)}
    yield "language_model", SCALES[size] | alone | {"objective": objectives.Causal()}
    yield from downstream.tuned("language_model", size, ("mnli",), feature="last")


def published():
    """Returns the paper's figures."""
    rows = {
        "infilling": "90.8 84.0 24.26 6.61 11.05 5.83",
        "masking": "90.4 84.1 25.05 7.08 11.73 6.10",
        "deletion": "90.4 84.1 24.61 6.90 11.46 5.87",
        "rotation": "77.2 75.3 53.69 17.14 19.87 10.59",
        "shuffling": "85.4 81.5 41.87 10.93 16.67 7.89",
        "infilling_shuffling": "90.8 83.8 24.17 6.62 11.12 5.41",
        "language_model": "76.7 80.1 21.40 7.00 11.51 6.56",
    }
    published_rows = []
    for name, figures in rows.items():
        tasks = ("mnli",) if name == "language_model" else TASKS
        tuning = downstream.unstated("Lewis et al. 2020: §4 does not state it", tasks)
        one = table("Lewis et al. 2020 (arXiv:1910.13461), table 1", METRICS, {name: figures}, _setup(name), tuning)
        published_rows += one()
    return published_rows


def _setup(name: str) -> Setup:
    """Returns the paper's set-up for pretraining with a noise or as a language model."""
    text = {"permute_sentences": 0.0, "rotate": 0.0, "insert": 0.0}
    infilling = {"noise.kind": "infilling", "noise.mean_span_length": 3.0, "noise.rate": NOT_STATED}
    none = {"noise.kind": "none"}
    noises = {
        "infilling": text | infilling,
        "masking": text | {"noise.kind": "masking", "noise.rate": NOT_STATED},
        "deletion": text | {"noise.kind": "deletion", "noise.rate": NOT_STATED},
        "rotation": text | none | {"rotate": 1.0},
        "shuffling": text | none | {"permute_sentences": 1.0},
        "infilling_shuffling": text | infilling | {"permute_sentences": 1.0},
    }
    setup = Setup(
        source="Lewis et al. 2020, §2.2 (noises), §4 (size) and the caption of table 1 (steps, corpora)",
        objective={"kind": "denoising", **noises.get(name, {})},
        model={"stack.layers": 6, "decoder_stack.layers": 6, "embedding.width": 768},
        sources=["books", "wikipedia"],
        batch_size=NOT_STATED,
        steps=1_000_000,
        learning_rate=NOT_STATED,
        warmup=NOT_STATED,
        length=NOT_STATED,
        reasons={"batch_size": "BERT's", "learning_rate": "BERT's", "warmup": "BERT's", "length": "BERT's longest"},
    )
    if name == "language_model":
        model = {"kind": "decoder", "stack.layers": NOT_STATED, "embedding.width": 768}
        setup = dataclasses.replace(setup, objective={"kind": "causal"}, model=model)
        return setup.because(model__stack__layers="as many as encoder and decoder of the other models together")
    has_rate = "noise.rate" in noises[name]
    return setup.because(objective__noise__rate="that of the large model, §5.1") if has_rate else setup


compared = by_size(paper={"SQuAD F1": "squad/f1", "MNLI": "mnli/accuracy"}, demo={"MNLI": downstream.REVIEWS})
