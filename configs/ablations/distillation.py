"""A student with half the layers of its teacher, trained with and without the teacher (Sanh et al. 2019).

    python -m plm_jax sweep --sweep=ablations/distillation --workdir=runs/distillation
    python -m plm_jax sweep --sweep=ablations/distillation:demo --workdir=runs/distillation-demo --seeds=0,1,2

At the paper's scale, the runs remove one part at a time, as in the paper's table 4: a term of the loss, the weights
that the student starts from, or the teacher. In the demo, the teacher is the GPT-2 of the demo with four layers,
trained once; the students have two, start from random weights and train for the same number of steps. Losses are those
of the objective, so that all runs compare.
"""

import dataclasses

from plm_jax import config, losses
from plm_jax.configs import demo, distilbert
from plm_jax.configs.ablations.skeleton import by_size, unpublished

base = by_size(paper="../distilbert.py:base", demo="../demo.py:gpt2")
# Changes of DistilBERT's recipe, by name.
_LOSS = distilbert.LOSS
_WITHOUT = {
    "without_divergence": {"train.loss": dataclasses.replace(_LOSS, alpha_ce=0.0)},
    "without_cosine": {"train.loss": dataclasses.replace(_LOSS, alpha_cos=0.0)},
    "without_masked_lm": {"train.loss": dataclasses.replace(_LOSS, alpha_lm=0.0)},
    "without_weights": {"train.init_from": "", "train.init_names": (".*",), "train.init_layers": ()},
    "alone": {"train.loss": None, "train.references": {}},
}
_STUDENT_LAYERS = 2


def overrides(size="paper"):
    """Yields (name, changes) of each run."""
    if size == "paper":
        yield "distilled", {}
        yield from _WITHOUT.items()
        return
    yield "teacher", {"train.seed": demo.gpt2().train.seed}
    student = {"model.stack.layers": _STUDENT_LAYERS, "train.steps": demo.gpt2().train.steps}
    yield "alone", student
    references = {"teacher": config.ReferenceConfig("teacher")}
    yield "distilled", student | {"train.references": references, "train.loss": losses.Distillation()}


published = unpublished(
    ("alone", "distilled", *[name for name in _WITHOUT if name != "alone"]),
    "Sanh et al. 2019, table 4, has differences between macro-scores on GLUE",
)
compared = by_size(paper={"loss": "wikipedia/loss"}, demo={"loss": "sotu/loss"})
