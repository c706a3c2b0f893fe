"""A pretrained BERT with all weights tuned, or frozen with a new head (Devlin et al. 2019 §5.3).

    python -m plm_jax sweep --sweep=ablations/frozen --workdir=runs/frozen
    python -m plm_jax sweep --sweep=ablations/frozen:demo --workdir=runs/frozen-demo --seeds=0,1,2

The paper compares them on named entities of CoNLL-2003 (table 7), which is not freely available. The task here is
SST-2, and in the demo film reviews, classified from the mean of the tokens.
"""

from plm_jax import config
from plm_jax.configs.ablations import downstream
from plm_jax.configs.ablations.skeleton import by_size, unpublished
from plm_jax.configs.tasks import glue

base = by_size(paper="../bert.py:base", demo="../demo.py:bert")
# Parameters that are trained, as patterns of their paths.
TRAINED = {"tuned": config.TrainConfig.trainable, "frozen": ("heads_task/.*",)}


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    yield "pretrained", {}
    for name, trainable in TRAINED.items():
        if size == "demo":
            ((_, changes),) = downstream.of_reviews("pretrained")
        else:
            changes = downstream.begun(downstream.run_of(glue.get_config("sst2")), "pretrained", "sst2")
        yield name, changes | {"train.trainable": trainable}


published = unpublished(TRAINED, "Devlin et al. 2019, table 7, is for CoNLL-2003")
compared = by_size(paper={"SST-2": "sst2/accuracy"}, demo={"SST-2": downstream.REVIEWS})
