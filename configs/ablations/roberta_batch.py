"""As many rows in fewer, larger batches, of 256, 2,000 and 8,000 (Liu et al. 2019 §4.3).

    python -m plm_jax.sweep --sweep=ablations/roberta_batch --workdir=runs/roberta-batch
    python -m plm_jax.sweep --sweep=ablations/roberta_batch:demo --workdir=runs/roberta-batch-demo --seeds=0,1,2

The paper's figures are not at hand. Its rates were tuned for each; here they are those that fairseq's README names for
these sizes, 1e-4, 5e-4 and 7e-4.
"""

from plm_jax.configs.ablations import downstream, roberta_inputs
from plm_jax.experiments.comparison import Published

# Batch, steps, rate and its warm-up.
BATCHES = {
    "paper": {256: (1_000_000, 1e-4, 10_000), 2_000: (125_000, 5e-4, 10_000), 8_000: (31_000, 7e-4, 2_500)},
    "demo": {32: (800, 1e-3, 80), 64: (400, 1.5e-3, 40), 256: (100, 3e-3, 10)},
}
base = roberta_inputs.base


def overrides(size="paper"):
    """(name, changes) of each run."""
    shared = dict(roberta_inputs.overrides(size))["full_sentences"]
    for batch_size, (steps, rate, warmup_steps) in BATCHES[size].items():
        changes = {"train.batch_size": batch_size, "train.steps": steps, "train.phases": ()}
        schedule = {"schedule.learning_rate": rate, "schedule.warmup_steps": warmup_steps}
        name = f"batch_{batch_size}"
        yield name, shared | changes | schedule
        yield from downstream.tuned(name, size)


def published():
    """Of the paper nothing is at hand."""
    source = "Liu et al. 2019 (arXiv:1907.11692), table 3: not at hand"
    return [Published(f"batch_{batch_size}", {}, source) for batch_size in BATCHES["paper"]]


def compared(size="paper"):
    """Our metrics by the paper's names."""
    return roberta_inputs.compared(size)
