"""Named entities: a tag for each word (person, organization, place), predicted from its first piece.

    python -m plm_jax finetune --config=configs/tasks/entities.py --checkpoint=SRC --workdir=runs/entities

The 1,164 sentences that come with the package are of loan agreements, 513 have an entity, and most persons are the word
"Borrower": a look-up of each word's most frequent tag reaches an F1 of about 80. Devlin et al. 2019 report 96.4 on
CoNLL-2003's validation split for BERT base, whose recipe this is.
"""

from plm_jax import config, objectives
from plm_jax.configs.tasks import recipes

LABELS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")


def get_config(recipe: str = "bert"):
    """Returns the run with one of `recipes.RECIPES`."""
    prompt = config.PromptConfig("Sentence: {text}\nPersons (PER), organisations (ORG) and places (LOC):")
    source = config.LabeledTable("package:data/corpora/finance_ner.jsonl.gz", config.TagForm(LABELS), prompt=prompt)
    return config.to_config_dict(recipes.run(recipe, objectives.Tagging(), {"entities": source}, length=128))
