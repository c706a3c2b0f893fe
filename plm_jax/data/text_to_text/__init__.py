"""The text-to-text suite of T5 (Raffel et al. 2020, arXiv:1910.10683): GLUE, SuperGLUE, SQuAD, CNN/DailyMail, WMT.

    formats, wnli     a row of the data set, as TFDS has it → examples, texts `inputs` and `targets`; plain Python
    postprocessors    what a model wrote → what the metrics compare; plain Python
    metrics           the suite's metrics, each `fn(targets, predictions)`
    sizes             training examples of each task, for mixing; no imports
    suite             the table of tasks, and `register`, which makes a seqio task of one
    tfds_tasks        importing it registers every task over TFDS, as texts: `plm_jax:glue_cola`, …; their mixtures;
                      and the corpora to pretrain on, `plm_jax:c4`, …

A source of a config names a task over TFDS, such as `plm_jax:glue_cola`, and the module
`plm_jax.data.text_to_text.tfds_tasks`; `sizes.GLUE` gives the names and rates of a mixture. Over one's own files, which
have the fields that TFDS gives the data set, a task is registered in a module of one's own:

    suite.register("glue_rte", suite.FromJsonLines({"train": "rte/train.jsonl"}), name="mine:rte")

Texts and targets are those of google-research/text-to-text-transfer-transformer (`t5/data/preprocessors.py`,
`tasks.py`, `glue_utils.py`, version 0.9.4) to the character.
"""
