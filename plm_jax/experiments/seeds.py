"""Results of runs that differ only in their seeds."""

import os
import statistics
from collections.abc import Mapping, Sequence

from plm_jax.common import metrics
from plm_jax.runs.telemetry import read_lines


def lines(workdirs: Sequence[str], baselines: Mapping[str, float] | None = None) -> list[str]:
    """Returns a line for each metric that the last validations of all runs have.

    A line contains the value or, with several runs, the mean, the standard deviation and the values. It also contains
    the baseline, if there is one. Metrics of a source that equal the metric of all sources have no line. If there are
    no metrics, the only line says so.

    Args:
      baselines: dict from the name of a metric to the value of a predictor that ignores the input.
    """
    validations = [_last_validation(workdir) for workdir in workdirs]
    names = [
        name
        for name in validations[0]
        if all(name in row for row in validations) and not _is_duplicate(name, validations[0])
    ]
    baselines = baselines or {}
    return [_line(name, [row[name] for row in validations], baselines.get(name)) for name in names] or [
        "no validation metrics: no rows were held out, or config.evaluation.every is 0"
    ]


def _line(name: str, values: list[float], baseline: float | None) -> str:
    declared = metrics.declared(name)
    line = f"{name} {metrics.shown_seeds(declared, values, digits=4)}"
    if len(values) > 1:
        line += f" ({', '.join(metrics.shown(name, value) for value in values)})"
    if baseline is None or declared is None or not declared.sign:
        return line
    verdict = "better" if declared.sign * (statistics.mean(values) - baseline) > 0 else "not better"
    return f"{line}, {verdict} than the trivial baseline ({metrics.shown(name, baseline)})"


def _is_duplicate(name: str, row: dict[str, float]) -> bool:
    """Whether a metric of one source has the same value as the metric of all sources."""
    prefix, _, metric = name.rpartition("/")
    return prefix != "validation" and row.get(f"validation/{metric}") == row[name]


def _last_validation(workdir: str) -> dict[str, float]:
    """Returns the metrics of a run's last validation, or an empty dict if there was no validation."""
    rows = read_lines(os.path.join(workdir, "metrics.jsonl"))
    of_validation = ({k: v for k, v in row.items() if k.startswith("validation/")} for row in reversed(rows))
    return next(filter(None, of_validation), {})
