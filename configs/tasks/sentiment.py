"""Classification of a text: whether a sentence of a film review is positive or negative.

    python -m plm_jax finetune --config=configs/tasks/sentiment.py --checkpoint=SRC --workdir=runs/sentiment

The 10,605 sentences come with the package; a tenth of them are held out. Most have fewer than 40 tokens. SST-2, the
published task of this form, is `tasks/glue:sst2`. With BERT's recipe Hugging Face's run_glue.py reports 92.3 % there
for bert-base-cased; here logistic regression over words reaches about 78 %.
"""

from plm_jax import config, objectives
from plm_jax.configs.tasks import recipes

LABELS = ("negative", "positive")


def get_config(recipe: str = "bert"):
    """Returns the run with one of `recipes.RECIPES`."""
    source = config.LabeledTable(
        "package:data/corpora/movie_sentiment.jsonl.gz",
        config.ClassForm(LABELS, text="sentence", label="sentiment"),
        prompt=config.PromptConfig("Review: {sentence}\nSentiment:"),
    )
    objective = objectives.Classification(**config.choose(recipes.RECIPES, recipe).objective)
    return config.to_config_dict(recipes.run(recipe, objective, {"sentiment": source}, length=64))
