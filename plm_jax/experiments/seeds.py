"""Results of runs that differ only in their seeds."""

import os
from collections.abc import Sequence

from plm_jax.common import metrics
from plm_jax.runs.telemetry import read_lines


def lines(workdirs: Sequence[str]) -> list[str]:
    """Returns a line for each metric of the runs' last validations: mean, standard deviation and values."""
    validations = [_last_validation(workdir) for workdir in workdirs]
    names = [
        name
        for name in validations[0]
        if all(name in row for row in validations) and not _is_duplicate(name, validations[0])
    ]
    return [_line(name, [row[name] for row in validations]) for name in names] or ["no validation metrics"]


def _line(name: str, values: list[float]) -> str:
    shown = ", ".join(metrics.shown(name, value) for value in values)
    return f"{name} {metrics.shown_seeds(metrics.declared(name), values, digits=4)} ({shown})"


def _is_duplicate(name: str, row: dict[str, float]) -> bool:
    """Whether a metric of one source equals the metric of all sources, and is therefore redundant."""
    prefix, _, metric = name.rpartition("/")
    return prefix != "validation" and row.get(f"validation/{metric}") == row[name]


def _last_validation(workdir: str) -> dict[str, float]:
    """Returns the metrics of a run's last validation, or nothing if there was none."""
    rows = read_lines(os.path.join(workdir, "metrics.jsonl"))
    of_validation = ({k: v for k, v in row.items() if k.startswith("validation/")} for row in reversed(rows))
    return next(filter(None, of_validation), {})
