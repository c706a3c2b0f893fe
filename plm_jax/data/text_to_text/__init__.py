"""The text-to-text suite of T5 (Raffel et al. 2020, arXiv:1910.10683): GLUE, SuperGLUE, SQuAD, CNN/DailyMail, WMT.

    formats, wnli     convert a row of TFDS into examples with texts `inputs` and `targets`; plain Python
    postprocessors    convert the output of a model into values that metrics compare; plain Python
    metrics           metrics of the suite, each `fn(targets, predictions)`
    sizes             numbers of training examples of each task, for mixing; no imports
    suite             table of tasks, and `register`, which registers one with seqio
    tfds_tasks        registers on import every task on TFDS data as texts (`plm_jax:glue_cola`, …), their mixtures, and
                      the corpora for pretraining (`plm_jax:c4`, …)

To use a task on TFDS data, a source of a config names the task, such as `plm_jax:glue_cola`, and the module
`plm_jax.data.text_to_text.tfds_tasks`; `sizes.GLUE` has the names and rates of a mixture. To use your own files, with
the fields of the TFDS data set, register the task in your own module:

    suite.register("glue_rte", suite.FromJsonLines({"train": "rte/train.jsonl"}), name="mine:rte")

Inputs and targets are exactly those of google-research/text-to-text-transfer-transformer (`t5/data/preprocessors.py`,
`tasks.py`, `glue_utils.py`, version 0.9.4).
"""
