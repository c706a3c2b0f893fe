"""Table of the engines that run tasks, and their options on the command line."""

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

from plm_jax.common import extras, trees
from plm_jax.common.errors import UserError, nearest
from plm_jax.common.tasks import Executor

# Engine → module and class. The modules of engines that are not chosen are not imported.
ENGINES = {
    "local": ("local", "LocalExecutor"),
    "dask": ("dask_cluster", "DaskExecutor"),
    "ray": ("ray_cluster", "RayExecutor"),
    "spark": ("spark_cluster", "SparkExecutor"),
    "beam": ("beam_runner", "BeamExecutor"),
    "slurm": ("slurm_cluster", "SlurmExecutor"),
}


def make(engine: str, options: Sequence[str]) -> Executor:
    """Returns the executor of an engine with options such as `--workers=8`.

    An option named after a field of the executor sets this field. Other options are passed to the engine if the
    executor has a field `options`, and rejected otherwise.

    Raises:
      UserError: the engine is unknown or not installed, or an option is unknown or has a wrong value.
    """
    if engine not in ENGINES:
        raise UserError(f"there is no engine '{engine}': {nearest(engine, ENGINES)}")
    module, name = ENGINES[engine]
    with extras.report_missing():
        executor = getattr(importlib.import_module(f"plm_jax.common.executors.{module}"), name)
    fields = {field.name: field.default for field in dataclasses.fields(executor)}
    passes_options = fields.pop("options", None) is not None
    values: dict[str, Any] = {"options": []} if passes_options else {}
    for option in options:
        name, equals, value = option.removeprefix("--").partition("=")
        if option.startswith("--") and equals and name in fields:
            is_number = isinstance(fields[name], int) and value.removeprefix("-").isdigit()
            values[name] = int(value) if is_number else value
        elif passes_options:
            values["options"].append(option)
        else:
            hint = nearest(name, fields) if fields else "it has none"
            raise UserError(f"{engine} has no option {option}, written as --name=value: {hint}")
    return trees.parse(executor, values, engine)
