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
    """What a run logs of a figure: ascending steps and values, finite or NaN, both [n]."""

    steps: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class RunLog:
    """What a run directory holds for a report.

    Attributes:
      name: what the page calls it.
      variant: of runs that differ in their seeds alone the common name.
      config: what its config.json says.
      metrics: by their names the figures of metrics.jsonl.
      evaluation: those of evaluation.jsonl.
      samples: the last rows of samples.jsonl: `step`, `task`, `prompt`, `answer`, `target`.
    """

    name: str
    variant: str
    config: dict
    metrics: Mapping[str, Curve]
    evaluation: Mapping[str, Curve]
    samples: Sequence[dict]


@dataclass(frozen=True)
class Sweep:
    """What a sweep's sweep.json says.

    Attributes:
      name: what the page calls it.
      prefix: what the variants of its runs begin with.
      results: as of `comparison.table`, each with its `workdir`.
      base: the config of which its runs are changes, {} where it is not noted.
      rivals: beside which runs are judged.
      published: what a paper reports of runs.
      compared: our metrics by the paper's names; the first is the page's primary metric.
      setups: table of the settings that differ from the paper's, from `setups.table`.
    """

    name: str
    prefix: str
    results: Sequence[dict[str, Any]]
    base: dict
    rivals: Sequence[comparison.Rivals]
    published: Sequence[comparison.Published]
    compared: Mapping[str, comparison.Metric | comparison.StandIn]
    setups: comparison.Lines


def gather(workdirs: Sequence[str]) -> tuple[list[RunLog], list[Sweep]]:
    """The runs of some run directories and folders, each variant's together, and the sweeps among the folders."""
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
            # Those of fine-tuning's seeds have no other name than their seed.
            are_seeds = all(_base(folder).startswith("seed") for folder in inner)
            runs += [read(folder, f"{_base(workdir)}/" if are_seeds else prefix) for folder in inner]
        else:
            runs.append(read(workdir))
    if not runs:
        raise UserError(f"{workdirs[0]} has no run that has begun: wait for one")
    return _grouped(runs), sweeps


def _runs_in(workdir: str, names: Sequence[str]) -> list[str]:
    folders = [os.path.join(workdir, name) for name in names]
    return [folder for folder in folders if storage.exists(os.path.join(folder, _CONFIG))]


def _base(path: str) -> str:
    return os.path.basename(os.path.normpath(path))


def _grouped(runs: Sequence[RunLog]) -> list[RunLog]:
    """The runs with names and variants of their own, in the order of the variants."""
    alike: dict[str, list[RunLog]] = {}
    for run in runs:
        tree = dict(run.config["config"])
        if isinstance(tree.get("train"), dict):
            tree["train"] = tree["train"] | {"seed": None}
        alike.setdefault(run.variant or json.dumps(tree, sort_keys=True), []).append(run)
    found, names, variants = [], set(), set()
    for same in alike.values():
        variant = same[0].variant
        if not variant:
            variant = same[0].name if len(same) == 1 else _common([run.name for run in same])
        variant = _unused(variant, variants)
        found += [dataclasses.replace(run, name=_unused(run.name, names), variant=variant) for run in same]
    return found


def _common(names: Sequence[str]) -> str:
    """What names of runs begin with, as x of x-seed0 and x-seed1; the first of names that have nothing in common."""
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return re.sub(r"[-_./ ]*(seed[-_]?\d*)?$", "", "".join(letters[0] for letters in same)) or names[0]


def _unused(name: str, used: set[str]) -> str:
    """The name, with a number if it is taken; it is then."""
    found = next(other for n in range(1, 10**6) if (other := name if n == 1 else f"{name} ({n})") not in used)
    used.add(found)
    return found


def read(workdir: str, prefix: str = "", variant: str = "") -> RunLog:
    """Reads a run directory.

    Args:
      prefix: stands before its name.
      variant: the run's, where it is known.

    Raises:
      UserError: it is none, or it is damaged.
    """
    path = os.path.join(workdir, _CONFIG)
    try:
        described = strict_json.read(path)
        logs = [read_lines(os.path.join(workdir, name)) for name in _LOGS]
    except FileNotFoundError:
        raise UserError(f"{workdir} is no run directory: it has no config.json") from None
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
        raise UserError(f"{workdir} is no run directory: its config.json is not of a run")
    training, evaluation, samples = logs
    last = max((row["step"] for row in samples), default=0)
    last_samples = [row for row in samples if row["step"] == last]
    return RunLog(f"{prefix}{_base(workdir)}", variant, described, _curves(training), _curves(evaluation), last_samples)


def number(value: Any) -> float | None:
    """A number of a log, NaN for one that no picture has a place for; None: it is something else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < 10**30 else math.nan


def _curves(rows: Sequence[dict]) -> dict[str, Curve]:
    """The figures of a log; of several rows of a step the last one that has it counts."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        for name, given in row.items():
            value = number(given) if name != "step" else None
            if value is not None:
                found.setdefault(name, {})[row["step"]] = value
    return {name: _curve(values) for name, values in found.items()}


def _curve(values: Mapping[int, float]) -> Curve:
    steps = np.fromiter(values.keys(), np.int64, len(values))
    order = np.argsort(steps)
    return Curve(steps[order], np.fromiter(values.values(), np.float64, len(values))[order])


def read_sweep(workdir: str, prefix: str = "") -> Sweep:
    """Reads the sweep.json of a sweep's folder.

    Raises:
      UserError: it is damaged.
    """
    path = os.path.join(workdir, _SWEEP)
    try:
        tree = json.loads(storage.read(path))
        results = [_result(row) for row in tree["runs"]]
        rivals = [
            comparison.Rivals(_text(row["run"]), _text(row["metric"]), _others(row["others"]))
            for row in tree.get("rivals", ())
        ]
        published = [
            comparison.Published(_text(row["run"]), _figures(row["figures"]), _text(row["source"]))
            for row in tree.get("published", ())
        ]
        compared = {_text(name): _compared(metric) for name, metric in tree.get("compared", {}).items()}
        declared = {
            _text(name): metrics.Metric(metric["better"], metric["unit"], tuple(metric["rows"]))
            for name, metric in tree.get("metrics", {}).items()
        }
        base, stated = dict(tree.get("base", {})), [tuple(map(_text, row)) for row in tree.get("setups", ())]
        if any(len(row) != len(stated[0]) for row in stated):
            raise ValueError("rows of different lengths")
    except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError, UserError) as error:
        raise UserError(f"{path} is damaged ({one_line(error)}): run the sweep's command again") from error
    for name, metric in declared.items():
        try:
            metrics.declare(name, metric)
        except UserError as error:
            raise UserError(
                f"{path}: {error}, or report it separately from sweeps that declare it differently"
            ) from error
    return Sweep(_base(workdir), prefix, results, base, rivals, published, compared, stated)


def _result(row: dict[str, Any]) -> dict[str, Any]:
    """A run of a sweep, checked."""
    error = row["error"]
    return {
        "name": _text(row["name"]),
        "seed": int(row["seed"]),
        "workdir": _text(row["workdir"]),
        "error": error if error is None else _text(error),
        "minutes": float(row["minutes"]),
        "metrics": of_tasks(_figures(row["metrics"])),
    }


def of_tasks(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are called TASK/METRIC."""
    return {name: value for name, value in figures.items() if name.find("/") > 0}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _compared(value: Any) -> comparison.Metric | comparison.StandIn:
    return comparison.StandIn(_metric(value["stand_in"])) if isinstance(value, dict) else _metric(value)


def _metric(value: Any) -> comparison.Metric:
    return [_metric(of) for of in value] if isinstance(value, list) and value else _text(value)


def _figures(tree: dict[str, Any]) -> dict[str, float]:
    """Those that are numbers."""
    found = {name: number(value) for name, value in tree.items()}
    return {name: value for name, value in found.items() if value is not None}


def _others(tree: dict[str, Any]) -> dict[str, str | tuple[str, str] | float]:
    found = {}
    for name, value in tree.items():
        if isinstance(value, list):
            run, metric = value
            value = (_text(run), _text(metric))
        found[name] = value if isinstance(value, str | tuple) else float(value)
    return found
