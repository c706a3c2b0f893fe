"""Importing this registers every task of the suite over TFDS, as texts, named `plm_jax:TASK`; nothing is downloaded."""

from plm_jax.data.text_to_text import suite

for _name in suite.TASKS:
    suite.register(_name)
