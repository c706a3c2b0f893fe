"""The same number of rows in batches of 256, 2,000 and 8,000 (Liu et al. 2019 §4.3).

    python -m plm_jax sweep --sweep=ablations/roberta_batch --workdir=runs/roberta-batch
    python -m plm_jax sweep --sweep=ablations/roberta_batch:demo --workdir=runs/roberta-batch-demo --seeds=0,1,2

The paper tuned the learning rate for each batch size (1e-4, 7e-4 and 1e-3) and does not state the warm-up. The rates in
fairseq's README are for other runs.
"""

from plm_jax.configs.ablations import downstream, roberta_inputs
from plm_jax.configs.ablations.skeleton import by_size, table, variants

# Batch, steps, rate and its warm-up.
BATCHES = {
    "paper": {256: (1_000_000, 1e-4, 10_000), 2_000: (125_000, 7e-4, 10_000), 8_000: (31_000, 1e-3, 2_500)},
    "demo": {32: (800, 1e-3, 80), 64: (400, 1.5e-3, 40), 256: (100, 3e-3, 10)},
}
TASKS = ("mnli", "sst2")
base = roberta_inputs.base


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    shared = dict(roberta_inputs.overrides(size))["full_sentences"]
    for batch_size, (steps, rate, warmup_steps) in BATCHES[size].items():
        changes = {"train.batch_size": batch_size, "train.steps": steps, "train.phases": ()}
        schedule = {"schedule.learning_rate": rate, "schedule.warmup_steps": warmup_steps}
        name = f"batch_{batch_size}"
        yield name, shared | changes | schedule
        yield from downstream.tuned(name, size, TASKS)


published = table(
    "Liu et al. 2019 (arXiv:1907.11692), table 3",
    ("ppl", "MNLI-m", "SST-2"),
    {"batch_256": "3.99 84.7 92.7", "batch_2000": "3.68 85.2 92.9", "batch_8000": "3.77 84.6 92.8"},
    variants(
        roberta_inputs.SETUP,
        {
            f"batch_{batch_size}": {
                "source": "Liu et al. 2019, table 3 (batch, steps, rate), §2, §3.1 and §4 (all else)",
                "rows": roberta_inputs.ROWS["full_sentences"],
                "batch_size": batch_size,
                "steps": steps,
                "learning_rate": rate,
                "reasons": {"warmup": warmup},
            }
            for batch_size, steps, rate, warmup in (
                (256, 1_000_000, 1e-4, "BERT's"),
                (2_000, 125_000, 7e-4, "that of fairseq's README for this batch and number of steps"),
                (8_000, 31_000, 1e-3, "8 % of the steps, as with 2,000 rows"),
            )
        },
    ),
    roberta_inputs.tuning_of(TASKS),
)
compared = by_size(
    paper={name: downstream.ENCODER_METRICS[name] for name in ("MNLI-m", "SST-2")}, demo={"SST-2": downstream.REVIEWS}
)
