"""Regression: the score of a film, from -4 to 4, from a sentence of its review, trained with the squared error.

    python -m plm_jax finetune --config=configs/tasks/review_scores.py --checkpoint=SRC --workdir=runs/scores

The sentences of `tasks/sentiment` with the mean of the scores that people gave. STS-B, the published task of this form,
on pairs, is `tasks/glue:stsb`: a Pearson correlation of 88.6 for bert-base-cased with Hugging Face's run_glue.py. Here
ridge regression over words reaches about 66.
"""

from plm_jax import config, objectives
from plm_jax.configs.tasks import recipes


def get_config(recipe: str = "bert"):
    """Returns the run with one of `recipes.RECIPES`."""
    source = config.LabeledTable(
        "package:data/corpora/movie_sentiment.jsonl.gz",
        config.ScoreForm(text="sentence", score="score"),
        prompt=config.PromptConfig("Review: {sentence}\nScore from -4 to 4:", choices=tuple(map(str, range(-4, 5)))),
    )
    objective = objectives.Regression(**config.choose(recipes.RECIPES, recipe).objective)
    return config.to_config_dict(recipes.run(recipe, objective, {"review_scores": source}, length=64))
