"""A table of runs: what each reached on its tasks, beside what a predictor gets that looks at no input."""

import statistics
from collections.abc import Sequence
from typing import Any

from plm_jax.evaluation import trivial

_HEAD = ("Run", "Metric", "Value", "Trivial predictor", "Better by", "Seeds", "Training minutes")


def table(results: Sequence[dict[str, Any]]) -> str:
    """A Markdown table; a figure of several seeds is their mean ± sample standard deviation.

    Of a task whose metrics have a trivial predictor those are shown, of another all.

    Args:
      results: of each run `name`, `error` (None if there is none), `training_minutes`, and `metrics`, TASK/METRIC to
        figure. Runs of one name are one run of several seeds.
    """
    lines = [_HEAD]
    for name in dict.fromkeys(result["name"] for result in results):
        same = [result for result in results if result["name"] == name]
        lines += [(name, f"failed: {result['error']}", *[""] * 5) for result in same if result["error"] is not None]
        finished = [result for result in same if result["error"] is None]
        if finished:
            minutes = f"{statistics.mean(result['training_minutes'] for result in finished):.1f}"
            all_metrics = [result["metrics"] for result in finished]
            lines += [(name, *row, str(len(finished)), minutes) for row in _rows(all_metrics)]
    cells = ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines]
    return "\n".join([cells[0], "| :-- | :-- | --: | --: | --: | --: | --: |", *cells[1:]]) + "\n"


def _rows(metrics: Sequence[dict[str, float]]) -> list[tuple[str, str, str, str]]:
    """Metric, value, trivial predictor's, and by how much it is beaten; `metrics` are those of each seed."""
    rows = []
    names = [name for name in metrics[0] if all(name in found for found in metrics)]
    for task in dict.fromkeys(name.rpartition("/")[0] for name in names):
        own = [name.removeprefix(f"{task}/") for name in names if name.rpartition("/")[0] == task]
        judged = [name for name in own if name in trivial.PREDICTORS]
        for name in judged or own:
            values = [found[f"{task}/{name}"] for found in metrics]
            if not judged:
                rows.append((f"{task}/{name}", _figure(values), "", ""))
                continue
            predictor = trivial.PREDICTORS[name]
            least = [predictor if isinstance(predictor, float) else found[f"{task}/{predictor}"] for found in metrics]
            sign = -1 if name.endswith("loss") else 1
            gains = [sign * (value - bar) for value, bar in zip(values, least, strict=True)]
            rows.append((f"{task}/{name}", _figure(values), _figure(least), _figure(gains)))
    return rows


def _figure(values: Sequence[float]) -> str:
    """The mean, of several values with their sample standard deviation."""
    mean = f"{statistics.mean(values):,.3f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):,.3f}"
