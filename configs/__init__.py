"""Config pages, one a published family: `plm_jax.configs.bert.get_config("base")` is what `--config=bert:base` names.

A page has `get_config(size)`, `SIZES`, and the model's settings as a function of its dimensions; PUBLISHED and SOURCE
put its sizes into the model table.
"""
