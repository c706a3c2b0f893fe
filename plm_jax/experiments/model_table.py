"""Markdown table of the published models that `configs/` trains.

A config file is included if it defines two constants: `SOURCE`, the publication, and `PUBLISHED`, which maps each size
to a pair: the number of parameters counted in the original, and the number that is usually stated.
"""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass

import jax

from plm_jax import config, models
from plm_jax.common.errors import UserError
from plm_jax.config import files as config_files
from plm_jax.hub import families
from plm_jax.models import registry

COLUMNS = (
    "Config",
    "Parameters",
    "Published",
    "Objective",
    "Batch × length × steps",
    "Optimizer, rate",
    "Hugging Face",
    "Source",
)


@dataclass(frozen=True)
class ModelEntry:
    """Published model.

    Attributes:
      name: config file and size, FILE.py:SIZE.
      counted: number of parameters of the original.
      stated: number of parameters that is usually stated, as text.
      source: publication.
      run: config of the model.
    """

    name: str
    counted: int
    stated: str
    source: str
    run: config.Run


def entries(folder: str = config_files.FOLDER) -> list[ModelEntry]:
    """Returns the published models of the config files in a folder."""
    published = []
    for file in sorted(name for name in os.listdir(folder) if name.endswith(".py")):
        config_file = config_files.load(os.path.join(folder, file))
        for size, (counted, stated) in getattr(config_file.module, "PUBLISHED", {}).items():
            run = config.from_dict(config_file.module.get_config(size))
            published.append(ModelEntry(f"{file}:{size}", counted, stated, config_file.module.SOURCE, run))
    return published


def count(model: models.ModelConfig) -> int:
    """Counts the parameters of a model by shape evaluation; tied weights count once."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(registry.shapes(model)))


def table(published: Iterable[ModelEntry]) -> str:
    """Returns the Markdown table of the entries."""
    lines = [COLUMNS, [":--", "--:", "--:", *[":--"] * (len(COLUMNS) - 3)], *map(_cells, published)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(entry: ModelEntry) -> list[str]:
    run, phases = entry.run, config.resolve_phases(entry.run)
    layout = run.data.layout.kind
    batches, lengths = (join_phases([getattr(phase, name) for phase in phases]) for name in ("batch_size", "length"))
    return [
        f"`{entry.name.replace('.py:', ':')}`",
        f"{count(run.model):,}",
        entry.stated,
        run.objective.kind + (f", {layout}" if layout != config.Blocks.kind else ""),
        f"{batches} × {lengths} × {run.train.steps:,}",
        f"{type(run.optimizer).__name__.removesuffix('Config')} {run.schedule.learning_rate:g}, {run.schedule.kind}",
        _hugging_face(run.model),
        entry.source,
    ]


def join_phases(values: list[int]) -> str:
    """Formats the value of each phase of a run. Equal values of consecutive phases are shown once."""
    return " → ".join(
        f"{value:,}" for previous, value in zip([None, *values], values, strict=False) if value != previous
    )


def _hugging_face(model: models.ModelConfig) -> str:
    """Returns the name of the Hugging Face family of a model's published part; a dash if there is no such family."""
    if not isinstance(model, models.TransformerConfig):
        return "– (bilm-tf)"
    try:
        return families.family_of(families.published(model)[0]).name
    except UserError:
        return "–"
