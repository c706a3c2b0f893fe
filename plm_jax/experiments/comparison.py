"""A Markdown table that compares runs: the metrics of each beside those of trivial baselines."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scipy import stats

from plm_jax.evaluation import baselines

_HEAD = ("Run", "Metric", "Value", "Trivial predictor", "Better by", "Beyond noise", "Seeds", "Minutes")
# How sure it must be that other seeds would be better than the trivial predictor on the average.
_CONFIDENCE = 0.99


class Rivals(NamedTuple):
    """What a metric of a run is to be judged by.

    Attributes:
      run: its name.
      metric: SOURCE/METRIC, of which more is better.
      others: by what each is called the name of another run, of which the same metric is taken, another metric of this
        run, or a figure.
    """

    run: str
    metric: str
    others: Mapping[str, str | float]


def beside(results: Sequence[dict[str, Any]], rivals: Sequence[Rivals]) -> str:
    """A Markdown table of runs beside their rivals: figures, differences, and whether these are beyond the noise.

    That is Welch's t-test on the seeds, one-sided, at 99 %; where what a run is compared with is one figure, the t-test
    of one sample. With fewer than two seeds it says nothing.

    Args:
      results: as of `table`; what has none yet is left blank.
    """
    names = list(dict.fromkeys(name for rival in rivals for name in rival.others))
    lines = [("Run", "Metric", "Value", *(cell for name in names for cell in (name, "better by", "beyond noise")))]
    for rival in rivals:
        values = _values(results, rival.run, rival.metric)
        cells = [rival.run, rival.metric, _figure(values) if values else "not run yet"]
        for name in names:
            other = rival.others.get(name)
            if isinstance(other, str):
                other = _values(results, other, rival.metric) or _values(results, rival.run, other)
            found = [] if other is None else [other] if isinstance(other, float) else other
            told = "" if not (values and found) else f"{statistics.mean(values) - statistics.mean(found):+,.3f}"
            verdict = _beats(values, other) if told else ""
            cells += [_figure(found) if found else "", told, verdict]
        lines.append(tuple(cells))
    return _markdown(lines, [":--", ":--", "--:", *["--:", "--:", ":--"] * len(names)])


def _values(results: Sequence[dict[str, Any]], run: str, metric: str) -> list[float]:
    """A metric of a run, of each seed that has it."""
    return [result["metrics"][metric] for result in results if result["name"] == run and metric in result["metrics"]]


def _beats(values: Sequence[float], others: Sequence[float] | float) -> str:
    """Whether the mean over all seeds there could be is above that of the others, or above a figure; see `beside`."""
    samples = [values] if isinstance(others, float) else [values, others]
    if min(map(len, samples)) < 2:
        return ""
    gain = statistics.mean(values) - (others if isinstance(others, float) else statistics.mean(others))
    # The variances of the means; Welch and Satterthwaite's degrees of freedom.
    spread = [statistics.variance(sample) / len(sample) for sample in samples]
    if not any(spread):
        return "yes" if gain > 0 else "no"
    freedom = sum(spread) ** 2 / sum(v**2 / (len(sample) - 1) for v, sample in zip(spread, samples, strict=True))
    return "yes" if gain > stats.t.ppf(_CONFIDENCE, freedom) * math.sqrt(sum(spread)) else "no"


def table(results: Sequence[dict[str, Any]]) -> str:
    """A Markdown table; a figure of several seeds is their mean ± sample standard deviation.

    Of a task whose metrics have a trivial predictor those are shown, of another all. Whether it is beaten beyond the
    noise is a one-sided t-test at 99 % on the seeds, of which there must be two; that of the held-out text, which is
    the same for all, is not in it.

    Args:
      results: of each run `name`, `error` (None if there is none), `minutes`, and `metrics`, TASK/METRIC to figure;
        without error and metrics it is still to be run. Runs of one name are one run of several seeds.
    """
    lines = [_HEAD]
    for name in dict.fromkeys(result["name"] for result in results):
        same = [result for result in results if result["name"] == name]
        lines += [(name, f"failed: {result['error']}", *[""] * 6) for result in same if result["error"] is not None]
        finished = [result for result in same if result["metrics"]]
        if not finished and all(result["error"] is None for result in same):
            lines.append((name, "not run yet", *[""] * 6))
        if finished:
            minutes = f"{statistics.mean(result['minutes'] for result in finished):.1f}"
            all_metrics = [result["metrics"] for result in finished]
            lines += [(name, *row, str(len(finished)), minutes) for row in _rows(all_metrics)]
    return _markdown(lines, [":--", ":--", "--:", "--:", "--:", ":--", "--:", "--:"])


def _markdown(lines: Sequence[tuple[str, ...]], columns: Sequence[str]) -> str:
    """A table of these lines, of which the first is its head; `columns` say how each is aligned."""
    cells = ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines]
    return "\n".join([cells[0], f"| {' | '.join(columns)} |", *cells[1:]]) + "\n"


def _rows(metrics: Sequence[dict[str, float]]) -> list[tuple[str, str, str, str, str]]:
    """Metric, value, trivial predictor's, by how much it is beaten, and whether beyond the noise.

    Args:
      metrics: those of each seed.
    """
    rows = []
    names = [name for name in metrics[0] if all(name in found for found in metrics)]
    for task in dict.fromkeys(name.rpartition("/")[0] for name in names):
        own = [name.removeprefix(f"{task}/") for name in names if name.rpartition("/")[0] == task]
        predictors = {name: baselines.predictor(name, own) for name in own}
        judged = [name for name in own if predictors[name] is not None]
        for name in judged or own:
            values = [found[f"{task}/{name}"] for found in metrics]
            if not judged:
                rows.append((f"{task}/{name}", _figure(values), "", "", ""))
                continue
            predictor = predictors[name]
            least = [predictor if isinstance(predictor, float) else found[f"{task}/{predictor}"] for found in metrics]
            sign = -1 if name.endswith(("loss", "mse")) else 1
            # Rounded, since of two equal accuracies one may be 1 - x.
            gains = [round(sign * (value - bar), 9) for value, bar in zip(values, least, strict=True)]
            rows.append((f"{task}/{name}", _figure(values), _figure(least), _figure(gains), _beyond_noise(gains)))
    return rows


def _beyond_noise(gains: Sequence[float]) -> str:
    """Whether the mean of all seeds there could be is above 0, as a one-sided t-test at _CONFIDENCE has it."""
    return _beats(gains, 0.0)


def _figure(values: Sequence[float]) -> str:
    """The mean, of several values with their sample standard deviation."""
    mean = f"{statistics.mean(values):,.3f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):,.3f}"
