"""Classification of a pair: whether a hypothesis follows from a premise, contradicts it, or neither.

    python -m plm_jax finetune --config=configs/tasks/inference.py --checkpoint=SRC --workdir=runs/inference

The 2,246 pairs that come with the package are made from templates: 21 premises and 120 hypotheses. They show that pairs
are learned, and nothing about language. MNLI is `tasks/glue:mnli`: 83.9 % for bert-base-cased by Hugging Face's
run_glue.py.
"""

import dataclasses

from plm_jax import config, objectives
from plm_jax.configs.tasks import recipes

LABELS = ("entailment", "neutral", "contradiction")


def get_config(recipe: str = "bert"):
    """Returns the run with one of `recipes.RECIPES`."""
    source = config.LabeledTable(
        "package:data/corpora/corr2cause_nli.jsonl.gz",
        config.ClassForm(LABELS, text="premise", pair="hypothesis"),
        prompt=config.PromptConfig("{premise}\nClaim: {hypothesis}\nEntailment, neutral or contradiction:"),
    )
    objective = objectives.Classification(**config.choose(recipes.RECIPES, recipe).objective)
    run = recipes.run(recipe, objective, {"inference": source}, length=256)
    # Rows are held out in groups by premise, and there are only 21 premises.
    data = dataclasses.replace(run.data, validation_fraction=0.3)
    return config.to_config_dict(dataclasses.replace(run, data=data))
