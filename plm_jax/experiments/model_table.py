"""The model table: a Markdown table of the published models that `configs/` trains.

A config takes part by two constants: `PUBLISHED`, by size the parameters counted from the original and how many they
are usually said to be, and `SOURCE`, where they were published.
"""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass

import jax

from plm_jax import config, models
from plm_jax.common.errors import UserError
from plm_jax.config import files as pages
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
    """A published model.

    Attributes:
      name: FILE.py:SIZE.
      counted: parameters of the original.
      said: how many it is usually said to have.
      source: where it was published.
      run: what the config trains.
    """

    name: str
    counted: int
    said: str
    source: str
    run: config.Run


def entries(folder: str = pages.FOLDER) -> list[ModelEntry]:
    """The published models of the config pages in a folder."""
    found = []
    for file in sorted(name for name in os.listdir(folder) if name.endswith(".py")):
        page = pages.load(os.path.join(folder, file))
        for size, (counted, said) in getattr(page.module, "PUBLISHED", {}).items():
            run = config.from_dict(page.module.get_config(size))
            found.append(ModelEntry(f"{file}:{size}", counted, said, page.module.SOURCE, run))
    return found


def count(model: models.ModelConfig) -> int:
    """How many parameters a model has, by shape evaluation; tied weights count once."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(registry.shapes(model)))


def table(found: Iterable[ModelEntry]) -> str:
    """The Markdown table of some entries."""
    lines = [COLUMNS, [":--", "--:", "--:", *[":--"] * (len(COLUMNS) - 3)], *map(_cells, found)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(entry: ModelEntry) -> list[str]:
    run, stages = entry.run, config.resolve_phases(entry.run)
    layout = run.data.layout.kind
    batches, lengths = (_changing([getattr(stage, name) for stage in stages]) for name in ("batch_size", "length"))
    return [
        f"`{entry.name.replace('.py:', ':')}`",
        f"{count(run.model):,}",
        entry.said,
        run.objective.kind + (f", {layout}" if layout != config.Blocks.kind else ""),
        f"{batches} × {lengths} × {run.train.steps:,}",
        f"{type(run.optimizer).__name__.removesuffix('Config')} {run.schedule.learning_rate:g}, {run.schedule.kind}",
        _hugging_face(run.model),
        entry.source,
    ]


def _changing(values: list[int]) -> str:
    """A value over a run's phases."""
    return " → ".join(f"{new:,}" for old, new in zip([None, *values], values, strict=False) if new != old)


def _hugging_face(model: models.ModelConfig) -> str:
    """The family that the hub reads and writes such a model, or a part of it, as."""
    if not isinstance(model, models.TransformerConfig):
        return "– (bilm-tf)"
    try:
        return families.family_of(families.published(model)[0]).name
    except UserError:
        return "–"
