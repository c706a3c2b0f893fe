"""Logs of runs and sweeps, read from their folders for a report."""

import dataclasses
import itertools
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from plm_jax.common import metrics, storage, strict_json
from plm_jax.common.errors import UserError, one_line
from plm_jax.experiments import comparison
from plm_jax.runs.telemetry import read_lines

_LOGS = ("metrics.jsonl", "evaluation.jsonl", "samples.jsonl")
_CONFIG, _SWEEP = "config.json", "sweep.json"


class Curve(NamedTuple):
    """Logged values of a metric: ascending steps [n] and values [n]. Values are finite or NaN."""

    steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class RunLog:
    """Logs of a run.

    Attributes:
      name: name in the report.
      variant: common name of runs that differ only in their seeds.
      config: content of config.json.
      metrics: curves of metrics.jsonl, by name.
      evaluation: curves of evaluation.jsonl, by name.
      samples: rows of the last step in samples.jsonl, with the keys `step`, `task`, `prompt`, `answer` and `target`.
    """

    name: str
    variant: str
    config: dict
    metrics: Mapping[str, Curve]
    evaluation: Mapping[str, Curve]
    samples: Sequence[dict]


@dataclass(frozen=True)
class Sweep:
    """Content of a sweep's sweep.json.

    Attributes:
      name: name in the report.
      prefix: text before the names of the sweep's variants in the report.
      results: results in the format of `comparison.table`, each with its `workdir`.
      base: base config; {} if it is not stored.
      baselines: baselines of runs.
      published: results of a paper.
      compared: dict from the paper's name of a metric to our metric; the first is the primary metric.
      setups: table of the settings that differ from the paper's, from `setups.table`.
      note: reason why no runs are compared; empty if there are comparisons, if the sweep file asks for none, or if
        fewer than two runs are finished.
    """

    name: str
    prefix: str
    results: Sequence[dict[str, Any]]
    base: dict
    baselines: Sequence[comparison.Baselines]
    published: Sequence[comparison.Published]
    compared: Mapping[str, comparison.Metric | comparison.SubstituteMetric]
    setups: comparison.Lines
    note: str


def gather(workdirs: Sequence[str]) -> tuple[list[RunLog], list[Sweep]]:
    """Reads runs and sweeps from run directories, folders of sweeps and folders of runs.

    Returns:
      A pair: the runs, grouped by variant, and the sweeps.

    Raises:
      UserError: a folder contains neither runs nor a sweep, a folder is damaged, or no run has started.
    """
    runs: list[RunLog] = []
    sweeps: list[Sweep] = []
    for workdir in workdirs:
        names, prefix = storage.names(workdir), f"{_base(workdir)}/" if len(workdirs) > 1 else ""
        if _CONFIG not in names and _SWEEP in names:
            sweep = read_sweep(workdir, prefix)
            sweeps.append(sweep)
            for result in sweep.results:
                folder = os.path.join(workdir, _base(result["workdir"]))
                if storage.exists(os.path.join(folder, _CONFIG)):
                    runs.append(read(folder, prefix, f"{prefix}{result['name']}"))
        elif _CONFIG not in names and (inner := _runs_in(workdir, names)):
            # Run directories of fine-tuning are named after their seed only.
            are_seeds = all(_base(folder).startswith("seed") for folder in inner)
            runs += [read(folder, f"{_base(workdir)}/" if are_seeds else prefix) for folder in inner]
        else:
            runs.append(read(workdir))
    if not runs:
        raise UserError(f"{workdirs[0]} has no started run: start one, or wait until one has written its config.json")
    return _grouped(runs), sweeps


def _runs_in(workdir: str, names: Sequence[str]) -> list[str]:
    folders = [os.path.join(workdir, name) for name in names]
    return [folder for folder in folders if storage.exists(os.path.join(folder, _CONFIG))]


def _base(path: str) -> str:
    return os.path.basename(os.path.normpath(path))


def _grouped(runs: Sequence[RunLog]) -> list[RunLog]:
    """Returns the runs with unique names, ordered by variant; runs that differ only in their seeds share a variant."""
    groups: dict[str, list[RunLog]] = {}
    for run in runs:
        tree = dict(run.config["config"])
        if isinstance(tree.get("train"), dict):
            tree["train"] = tree["train"] | {"seed": None}
        groups.setdefault(run.variant or json.dumps(tree, sort_keys=True), []).append(run)
    grouped, names, variants = [], set(), set()
    for group in groups.values():
        variant = group[0].variant
        if not variant:
            variant = group[0].name if len(group) == 1 else _common([run.name for run in group])
        variant = _unused(variant, variants)
        grouped += [dataclasses.replace(run, name=_unused(run.name, names), variant=variant) for run in group]
    return grouped


def _common(names: Sequence[str]) -> str:
    """Returns the common prefix of run names, such as x of x-seed0 and x-seed1, or the first name if there is none."""
    shared = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return re.sub(r"[-_./ ]*(seed[-_]?\d*)?$", "", "".join(letters[0] for letters in shared)) or names[0]


def _unused(name: str, used: set[str]) -> str:
    """Returns the name, with a number appended if the name is already used. Marks the result as used."""
    unused = next(candidate for n in range(1, 10**6) if (candidate := name if n == 1 else f"{name} ({n})") not in used)
    used.add(unused)
    return unused


def read(workdir: str, prefix: str = "", variant: str = "") -> RunLog:
    """Reads a run directory.

    Args:
      prefix: text before the run's name in the report.
      variant: variant of the run; "" if it is unknown.

    Raises:
      UserError: the folder is not a run directory, or is damaged.
    """
    path = os.path.join(workdir, _CONFIG)
    try:
        described = strict_json.read(path)
        logs = [read_lines(os.path.join(workdir, name)) for name in _LOGS]
    except FileNotFoundError:
        raise UserError(f"{workdir} is not a run directory: it has no config.json") from None
    except OSError as error:
        raise UserError(f"cannot read {workdir} ({error.strerror}): make it readable") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{workdir} is damaged ({one_line(error)}): delete the broken lines") from error
    try:
        tree = described["config"]
        sources = tree.get("data", {}).get("sources", {})
        kinds = [tree["objective"]["kind"], *(source["kind"] for source in sources.values())]
    except (AttributeError, LookupError, TypeError):
        kinds = [None]
    if not all(isinstance(kind, str) for kind in kinds):
        raise UserError(f"{workdir} is not a run directory: its config.json does not describe a run")
    training, evaluation, samples = logs
    last_step = max((row["step"] for row in samples), default=0)
    last_samples = [row for row in samples if row["step"] == last_step]
    return RunLog(f"{prefix}{_base(workdir)}", variant, described, _curves(training), _curves(evaluation), last_samples)


def number(value: Any) -> float | None:
    """Returns a logged number as a float, NaN if it is too large to draw, or None if it is not a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < 10**30 else math.nan


def _curves(rows: Sequence[dict]) -> dict[str, Curve]:
    """Returns the curves of a log. If a step has several rows, the last value counts."""
    values_by_name: dict[str, dict[int, float]] = {}
    for row in rows:
        for name, logged in row.items():
            value = number(logged) if name != "step" else None
            if value is not None:
                values_by_name.setdefault(name, {})[row["step"]] = value
    return {name: _curve(values) for name, values in values_by_name.items()}


def _curve(values: Mapping[int, float]) -> Curve:
    steps = np.fromiter(values.keys(), np.int64, len(values))
    order = np.argsort(steps)
    return Curve(steps[order], np.fromiter(values.values(), np.float64, len(values))[order])


def read_sweep(workdir: str, prefix: str = "") -> Sweep:
    """Reads the sweep.json of a sweep's folder, and declares the metrics that the file lists.

    Raises:
      UserError: the file is damaged, or a metric already has another declaration.
    """
    path = os.path.join(workdir, _SWEEP)
    try:
        tree = json.loads(storage.read(path))
        results = [_result(row) for row in tree["runs"]]
        baselines = [
            comparison.Baselines(_text(row["run"]), _text(row["metric"]), _columns(row["others"]))
            for row in tree.get("baselines", ())
        ]
        published = [
            comparison.Published(_text(row["run"]), _figures(row["figures"]), _text(row["source"]))
            for row in tree.get("published", ())
        ]
        compared = {_text(name): _compared(metric) for name, metric in tree.get("compared", {}).items()}
        metric_declarations = {
            _text(name): metrics.Metric(metric["better"], metric["unit"], tuple(metric["rows"]))
            for name, metric in tree.get("metrics", {}).items()
        }
        base, setup_rows = dict(tree.get("base", {})), [tuple(map(_text, row)) for row in tree.get("setups", ())]
        if any(len(row) != len(setup_rows[0]) for row in setup_rows):
            raise ValueError("rows of different lengths")
        note = _text(tree.get("note", ""))
    except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError, UserError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}): run the sweep's command again") from error
    for name, metric in metric_declarations.items():
        try:
            metrics.declare(name, metric)
        except UserError as error:
            raise UserError(
                f"{path}: {error}, or report it separately from sweeps that declare it differently"
            ) from error
    return Sweep(_base(workdir), prefix, results, base, baselines, published, compared, setup_rows, note)


def _result(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the result of a run with checked types and only the metrics of tasks."""
    error = row["error"]
    return {
        "name": _text(row["name"]),
        "seed": int(row["seed"]),
        "workdir": _text(row["workdir"]),
        "error": error if error is None else _text(error),
        "minutes": float(row["minutes"]),
        "metrics": select_task_metrics(_figures(row["metrics"])),
    }


def select_task_metrics(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Selects the metrics whose names are TASK/METRIC."""
    return {name: value for name, value in figures.items() if name.find("/") > 0}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _compared(value: Any) -> comparison.Metric | comparison.SubstituteMetric:
    return comparison.SubstituteMetric(_metric(value["stand_in"])) if isinstance(value, dict) else _metric(value)


def _metric(value: Any) -> comparison.Metric:
    return [_metric(part) for part in value] if isinstance(value, list) and value else _text(value)


def _figures(tree: dict[str, Any]) -> dict[str, float]:
    """Selects the values that are numbers."""
    values = {name: number(value) for name, value in tree.items()}
    return {name: value for name, value in values.items() if value is not None}


def _columns(tree: dict[str, Any]) -> dict[str, str | tuple[str, str] | float]:
    columns = {}
    for name, value in tree.items():
        if isinstance(value, list):
            run, metric = value
            value = (_text(run), _text(metric))
        columns[name] = value if isinstance(value, str | tuple) else float(value)
    return columns
