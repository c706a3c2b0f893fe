"""Tasks for fine-tuning pretrained models, one config file per form of labels.

    plm_jax finetune --config=tasks/NAME --checkpoint=SRC --workdir=W

The name after a colon selects a recipe of `recipes.RECIPES`, as in `tasks/sentiment:roberta`; the default is BERT's.
"""
