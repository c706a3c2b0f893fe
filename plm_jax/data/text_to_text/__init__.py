"""The text-to-text suite of T5 (Raffel et al. 2020, arXiv:1910.10683): GLUE, SuperGLUE, SQuAD, CNN/DailyMail, WMT.

    formats, wnli     convert a row of TFDS into examples with the texts `inputs` and `targets`; plain Python
    postprocessors    convert targets and outputs of a model into values that metrics compare; plain Python
    metrics           metrics of the suite, each `fn(targets, predictions)`
    sizes             numbers of training examples of each task, for mixing; no imports
    suite             table of tasks; its function `register` registers a task with seqio
    tfds_tasks        on import, registers tasks on TFDS data (`plm_jax:glue_cola`, …), mixtures of these tasks, and
                      corpora for pretraining (`plm_jax:c4`, …), all as texts

To use a task on TFDS data, name the task, such as `plm_jax:glue_cola`, and the module
`plm_jax.data.text_to_text.tfds_tasks` in a source of your config. `sizes.GLUE` has the names and rates of a mixture. To
use your own files, with the fields of the TFDS data set, register the task in your own module:

    suite.register("glue_rte", suite.FromJsonLines({"train": "rte/train.jsonl"}), name="mine:rte")

Inputs and targets are exactly as in google-research/text-to-text-transfer-transformer (`t5/data/preprocessors.py`,
`tasks.py`, `glue_utils.py`, version 0.9.4).
"""
