"""Tasks that pretrained models are fine-tuned for, a page a form.

    plm_jax finetune --config=tasks/NAME --checkpoint=SRC --workdir=W

After a colon comes whose recipe is taken, one of `recipes.RECIPES`: `tasks/sentiment:roberta`; by default it is BERT's.
"""
