"""Static masks, ten per row, or dynamic masks (Liu et al. 2019 §4.1, table 1).

    python -m plm_jax sweep --sweep=ablations/roberta_masking --workdir=runs/roberta-masking
    python -m plm_jax sweep --sweep=ablations/roberta_masking:demo --workdir=runs/roberta-masking-demo --seeds=0,1,2

A run of the demo reads its text about four times: two masks of each row come twice there.
"""

from plm_jax import objectives
from plm_jax.configs.ablations import downstream, roberta_inputs
from plm_jax.configs.ablations.skeleton import by_size, table, variants

base = roberta_inputs.base
DUPLICATES = {"paper": 10, "demo": 2}
METRICS = ("SQuAD2 F1", "MNLI-m", "SST-2")
TASKS = ("squad2", "mnli", "sst2")


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    pairs = dict(roberta_inputs.overrides(size))["segment_pairs"]
    for name, duplicates in (("static", DUPLICATES[size]), ("dynamic", 0)):
        yield name, pairs | {"objective": objectives.MaskedLM(duplicates=duplicates)}
        yield from downstream.tuned(name, size, TASKS)


published = table(
    "Liu et al. 2019 (arXiv:1907.11692), table 1",
    METRICS,
    {"static": "78.3 84.3 92.5", "dynamic": "78.7 84.0 92.9"},
    variants(
        roberta_inputs.SETUP,
        {
            name: {
                "source": "Liu et al. 2019, §2 and §4 (BERT-base's training), §3.1 (length), §4.1 (masks)",
                "objective": {**roberta_inputs.SETUP.objective, "duplicates": duplicates},
                "rows": roberta_inputs.ROWS["segment_pairs"],
            }
            for name, duplicates in {"static": 10, "dynamic": 0}.items()
        },
    ),
    roberta_inputs.tuning_of(TASKS),
)
# The demo's only task is the reviews.
compared = by_size(
    paper={name: downstream.ENCODER_METRICS[name] for name in METRICS}, demo={"SQuAD2 F1": downstream.REVIEWS}
)
