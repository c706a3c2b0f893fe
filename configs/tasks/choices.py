"""Multiple choice: two answers to a question; the model predicts the one with the higher score.

    python -m plm_jax finetune --config=configs/tasks/choices.py --checkpoint=SRC --workdir=runs/choices

The 3,860 questions of QuaRTz that come with the package lack the sentences that they are about, and most have a twin
with the other answer: small models learn nothing that generalizes. The recipe is that of Hugging Face's run_swag.py,
which reports 83.4 % on SWAG for RoBERTa base.
"""

import dataclasses

from plm_jax import config, objectives
from plm_jax.configs.tasks import recipes


def get_config(recipe: str = "bert"):
    """Returns the run with one of `recipes.RECIPES`; `bert` is the published recipe for this form."""
    source = config.LabeledTable(
        "package:data/corpora/quartz.jsonl.gz",
        config.ChoiceForm(2, label="answer"),
        prompt=config.PromptConfig("Question: {question}\nAnswer:", condition="Answer:"),
    )
    objective = objectives.MultipleChoice(num_choices=2, **config.choose(recipes.RECIPES, recipe).objective)
    run = recipes.run(recipe, objective, {"choices": source}, length=64)
    if recipe == "bert":
        schedule = dataclasses.replace(run.schedule, learning_rate=5e-5)
        run = dataclasses.replace(run, train=config.TrainConfig(epochs=3, batch_size=16), schedule=schedule)
    return config.to_config_dict(run)
