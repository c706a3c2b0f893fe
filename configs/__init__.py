"""Configs of published families: `plm_jax.configs.bert.get_config("base")` is the config of `--config=bert:base`.

A config file has `get_config(size)`, `SIZES`, and the model's settings as a function of its dimensions; PUBLISHED and
SOURCE put its sizes into the model table.
"""

from typing import Any, NamedTuple

from plm_jax import config


class Size(NamedTuple):
    """Dimensions of a model."""

    layers: int
    width: int
    heads: int


def published_run(evaluate_every: int = 5000, **sections: Any) -> config.Run:
    """Returns the run of a published config: sharded over all devices, in bfloat16, unless `sections` say otherwise."""
    shared = {
        "mesh": config.MeshConfig(data=1, fsdp=-1),
        "precision": config.PrecisionConfig(compute="bfloat16"),
        "evaluation": config.EvaluationConfig(every=evaluate_every, max_batches=64),
    }
    return config.Run(**shared | sections)
