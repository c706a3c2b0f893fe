"""Results of runs that differ only in their seeds."""

import os
from collections.abc import Sequence

from plm_jax.common import metrics
from plm_jax.runs.telemetry import read_lines


def lines(workdirs: Sequence[str]) -> list[str]:
    """Returns a line for each metric of the runs' last validations: mean, standard deviation and values."""
    last = [_last(workdir) for workdir in workdirs]
    names = [name for name in last[0] if all(name in row for row in last) and not _is_all_of(name, last[0])]
    return [_line(name, [row[name] for row in last]) for name in names] or ["nothing was validated"]


def _line(name: str, values: list[float]) -> str:
    each = ", ".join(metrics.shown(name, value) for value in values)
    return f"{name} {metrics.shown_seeds(metrics.declared(name), values, digits=4)} ({each})"


def _is_all_of(name: str, row: dict[str, float]) -> bool:
    """Whether a figure is that of a source which is the only one, and so said already."""
    whole, _, metric = name.rpartition("/")
    return whole != "validation" and row.get(f"validation/{metric}") == row[name]


def _last(workdir: str) -> dict[str, float]:
    """The figures of a run's last validation; empty where there was none."""
    rows = read_lines(os.path.join(workdir, "metrics.jsonl"))
    of_validation = ({k: v for k, v in row.items() if k.startswith("validation/")} for row in reversed(rows))
    return next(filter(None, of_validation), {})
