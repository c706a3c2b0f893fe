"""Replacements of the tokens that a BERT predicts: mask, same token or random token (Devlin et al. 2019, C.2).

    python -m plm_jax sweep --sweep=ablations/mask_replacement --workdir=runs/mask-replacement
    python -m plm_jax sweep --sweep=ablations/mask_replacement:demo --workdir=runs/mask-replacement-demo --seeds=0,1,2

Run names have the percentage of each: mask, same, random. Their losses cannot be compared, because a visible token is
easy to predict. The paper's named entities (CoNLL-2003) are not freely available.
"""

from plm_jax.configs.ablations import downstream
from plm_jax.configs.ablations.skeleton import by_size, table, variants
from plm_jax.experiments.setups import NOT_STATED, BestOf, Setup

base = by_size(paper="../bert.py:base", demo="../demo.py:bert")
PRETRAINING = Setup(
    source="Devlin et al. 2019, appendix C.2, page 16 (masks), §3.1 (model, corpora) and A.2 (training)",
    objective={"kind": "masked_lm", "rate": 0.15},
    rows={"kind": "sentence_pairs", "task": "next_sentence"},
    model={"stack.layers": 12, "embedding.width": 768, "attention.heads": 12},
    sources=["books", "wikipedia"],
    batch_size=256,
    steps=1_000_000,
    learning_rate=1e-4,
    warmup=10_000,
    length=((0.9, 128), (1.0, 512)),
)
TUNING = Setup(
    source="Devlin et al. 2019, §4.1",
    objective={"kind": "classification"},
    sources=["mnli"],
    batch_size=32,
    epochs=3,
    learning_rate=BestOf((5e-5, 4e-5, 3e-5, 2e-5)),
    warmup=NOT_STATED,
    length=NOT_STATED,
    reasons={"warmup": "as Hugging Face's run_glue.py has it", "length": "as Hugging Face's run_glue.py has it"},
)
SHARES = ((80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100))


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    for shares in SHARES:
        mask, _, random = shares
        name = "_".join(map(str, shares))
        changes = {"objective.mask_share": mask / 100, "objective.random_share": random / 100}
        yield f"mask_{name}", changes | ({"train.steps": 400} if size == "demo" else {})
        yield from downstream.tuned(f"mask_{name}", size, ("mnli",))


def _setups():
    for mask, same, random in SHARES:
        objective = {**PRETRAINING.objective, "mask_share": mask / 100, "random_share": random / 100}
        yield f"mask_{mask}_{same}_{random}", {"objective": objective}


published = table(
    "Devlin et al. 2019 (arXiv:1810.04805), table 8, page 16",
    ("MNLI-m", "NER tuned", "NER from features"),
    {
        "mask_80_10_10": "84.2 95.4 94.9",
        "mask_100_0_0": "84.3 94.9 94.0",
        "mask_80_0_20": "84.1 95.2 94.6",
        "mask_80_20_0": "84.4 95.2 94.7",
        "mask_0_20_80": "83.7 94.8 94.6",
        "mask_0_0_100": "83.6 94.9 94.6",
    },
    variants(PRETRAINING, dict(_setups())),
    {"-mnli": TUNING},
)
compared = by_size(paper={"MNLI-m": "mnli/accuracy"}, demo={"MNLI-m": downstream.REVIEWS})
