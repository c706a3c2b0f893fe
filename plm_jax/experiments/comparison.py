"""Tables that compare runs: with trivial baselines, with rivals, and with what a paper reports."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from scipy import stats

from plm_jax.evaluation import baselines
from plm_jax.experiments.setups import SETUP_HEAD, Setup

# Of a table its lines; the first is its head. What stands below these names is text, below others figures.
Lines = list[tuple[str, ...]]
TEXTS = ("Run", "Metric", "Beyond noise", "beyond noise", "Verdict", *SETUP_HEAD)
_HEAD = ("Run", "Metric", "Value", "Trivial predictor", "Better by", "Beyond noise", "Seeds", "Minutes")
# How sure it must be that other seeds would differ on the average.
_CONFIDENCE = 0.99
# How the names of figures end of which less is better.
_LESS = ("loss", "mse", "perplexity", "ppl", "bits_per_byte")
# SOURCE/METRIC, or several, of which the mean is meant, each again one or several.
Metric = str | Sequence["Metric"]
AGREES, DISAGREES, NOT_RESOLVED = "agrees in direction beyond noise", "disagrees beyond noise", "not resolved"


class Rivals(NamedTuple):
    """What a metric of a run is to be judged by.

    Attributes:
      run: its name.
      metric: SOURCE/METRIC, of which more is better.
      others: by what each is called the name of another run, of which the same metric is taken, another metric of this
        run, another run's name with another metric, or a figure.
    """

    run: str
    metric: str
    others: Mapping[str, str | tuple[str, str] | float]


class Published(NamedTuple):
    """What a paper reports of one run.

    Attributes:
      run: its name.
      figures: by the paper's name of a metric, of which more is better unless the name ends with loss, perplexity or
        ppl; what is not among them is not at hand.
      source: where they stand.
      setups: by the names of runs the paper's set-up of this one, of those tuned from it, and of what it begins with.
      averages: by the paper's name of a figure that is a mean the tasks that it is the mean of, as sources are named.
    """

    run: str
    figures: Mapping[str, float]
    source: str
    setups: Mapping[str, Setup] = {}
    averages: Mapping[str, Collection[str]] = {}


class Beside(NamedTuple):
    """A run beside what a paper reports of it, by one metric.

    Attributes:
      run: its name.
      paper: the paper's figure; None: not at hand.
      paper_difference: to its figure of the reference run.
      values: ours, of each seed.
      difference: of the means, to the reference run's.
      verdict: AGREES, DISAGREES, NOT_RESOLVED, ours alone where the paper has none, or why there is none; empty of the
        reference.
    """

    run: str
    paper: float | None
    paper_difference: float | None
    values: Sequence[float]
    difference: float | None
    verdict: str


def beside(results: Sequence[dict[str, Any]], rivals: Sequence[Rivals]) -> Lines:
    """A table of runs beside their rivals: figures, differences, and whether these are beyond the noise.

    That is Welch's t-test on the seeds, one-sided, at 99 %; where what a run is compared with is one figure, the t-test
    of one sample. With fewer than two seeds it says nothing.

    Args:
      results: as of `table`; what has none yet is left blank.
    """
    names = list(dict.fromkeys(name for rival in rivals for name in rival.others))
    lines = [("Run", "Metric", "Value", *(cell for name in names for cell in (name, "better by", "beyond noise")))]
    for rival in rivals:
        values = _values(results, rival.run, rival.metric)
        cells = [rival.run, rival.metric, figure(values) if values else "not run yet"]
        for name in names:
            other = rival.others.get(name)
            if isinstance(other, tuple):
                other = _values(results, *other)
            elif isinstance(other, str):
                other = _values(results, other, rival.metric) or _values(results, rival.run, other)
            found = [] if other is None else [other] if isinstance(other, float) else other
            told = signed(statistics.mean(values) - statistics.mean(found)) if values and found else ""
            verdict = _beats(values, other) if told else ""
            cells += [figure(found) if found else "", told, verdict]
        lines.append(tuple(cells))
    return lines


def _values(results: Sequence[dict[str, Any]], run: str, metric: Metric) -> list[float]:
    """A metric of a run, of each seed that has it."""
    found = [_value(result["metrics"], metric) for result in results if result["name"] == run]
    return [value for value in found if value is not None]


def _value(metrics: Mapping[str, float], metric: Metric) -> float | None:
    """A metric; None: it is not there, or not all that it is the mean of."""
    if isinstance(metric, str):
        return metrics.get(metric)
    values = [_value(metrics, of) for of in metric]
    return None if None in values else statistics.mean(values)


def belongs(run: str, to: str) -> bool:
    """Whether what a run reaches counts for one of a name: it has this name, or NAME-…, as what was tuned from it."""
    return run == to or run.startswith(f"{to}-")


def _joined(results: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Of each name and seed all metrics that count for it; of those that several runs have the last run's.

    What begins with several of the names counts for the longest, as `rms-gelu-tuned` for `rms-gelu` and not for `rms`.
    """
    found: dict[tuple[str, int], dict[str, float]] = {}
    for result in results:
        name = max((name for name in names if belongs(result["name"], name)), key=len, default=None)
        if name is not None:
            found.setdefault((name, result["seed"]), {}).update(result["metrics"])
    return [{"name": name, "metrics": metrics} for (name, _), metrics in found.items()]


def beside_paper(
    results: Sequence[dict[str, Any]], published: Sequence[Published], name: str, metric: Metric
) -> list[Beside]:
    """Runs beside what a paper reports of them by a metric; the first of those published is the reference.

    Whether ours differ from the reference beyond the noise is Welch's t-test on the seeds, two-sided, at 99 %.

    What a run NAME-… has reached counts for NAME.

    Args:
      results: as of `table`, with each run's `seed`.
      name: the paper's name of the metric.
      metric: ours.
    """
    results = _joined(results, [row.run for row in published])
    reference = published[0]
    paper_base, base = reference.figures.get(name), _values(results, reference.run, metric)
    found = []
    for row in published:
        paper, values = row.figures.get(name), _values(results, row.run, metric)
        if row is reference:
            found.append(Beside(row.run, paper, None, values, None, ""))
            continue
        of_paper = None if paper is None or paper_base is None else paper - paper_base
        ours = statistics.mean(values) - statistics.mean(base) if values and base else None
        verdict = "not run yet"
        if ours is not None:
            direction = _direction(values, base, sides=2) or 0
            verdict = _verdict(of_paper, _sign(name), direction * _sign(_first(metric)))
        found.append(Beside(row.run, paper, of_paper, values, ours, verdict))
    return found


def _verdict(of_paper: float | None, sign: int, direction: int) -> str:
    """What our direction (1: better beyond the noise, -1: worse, 0: neither) says of a paper's difference.

    Args:
      sign: 1 where more is better in the paper, else -1.
    """
    if not direction:
        return NOT_RESOLVED
    if not of_paper:
        paper = "no figure at hand" if of_paper is None else "no difference in the paper"
        return f"{'better' if direction > 0 else 'worse'} beyond noise, {paper}"
    return AGREES if direction * sign * of_paper > 0 else DISAGREES


def papers(results: Sequence[dict[str, Any]], published: Sequence[Published], compared: Mapping[str, Metric]) -> Lines:
    """A table of runs beside what a paper reports of them.

    Args:
      compared: by the paper's name of a metric ours that is set beside it.
    """
    lines = [("Metric", "Run", "Paper", "to the first", "Ours", "to the first", "Verdict")]
    for name, metric in compared.items():
        for row in beside_paper(results, published, name, metric):
            cells = ["not at hand" if row.paper is None else f"{row.paper:,.6g}", signed(row.paper_difference)]
            cells += [figure(row.values) if row.values else "not run yet", signed(row.difference), row.verdict]
            lines.append((f"{name}; {said(metric)}", row.run, *cells))
    return lines


def _beats(values: Sequence[float], others: Sequence[float] | float) -> str:
    """Whether the mean over all seeds there could be is above that of the others, or above a figure; see `beside`."""
    direction = _direction(values, others, sides=1)
    return "" if direction is None else "yes" if direction > 0 else "no"


def _direction(values: Sequence[float], others: Sequence[float] | float, sides: int) -> int | None:
    """Where the mean over all seeds there could be lies from that of the others, or from a figure, at _CONFIDENCE.

    Returns:
      1: above it, -1: below, 0: neither beyond the noise; None: fewer than two seeds say nothing.
    """
    samples = [values] if isinstance(others, float) else [values, others]
    if min(map(len, samples)) < 2:
        return None
    gain = statistics.mean(values) - (others if isinstance(others, float) else statistics.mean(others))
    # The variances of the means; Welch and Satterthwaite's degrees of freedom.
    spread = [statistics.variance(sample) / len(sample) for sample in samples]
    noise = math.sqrt(sum(spread))
    if noise:
        shares = [(v / sum(spread)) ** 2 / (len(sample) - 1) for v, sample in zip(spread, samples, strict=True)]
        noise *= float(stats.t.ppf(1 - (1 - _CONFIDENCE) / sides, 1 / sum(shares)))
    return (gain > noise) - (gain < -noise)


def table(results: Sequence[dict[str, Any]]) -> Lines:
    """A table of what runs reach; a figure of several seeds is their mean ± sample standard deviation.

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
    return lines


def markdown(lines: Lines) -> str:
    """A table in Markdown."""
    cells = ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines]
    columns = [":--" if name in TEXTS else "--:" for name in lines[0]]
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
        judged = [name for name in own if isinstance(predictors[name], float) or predictors[name] in own]
        for name in judged or own:
            values = [found[f"{task}/{name}"] for found in metrics]
            if not judged:
                rows.append((f"{task}/{name}", figure(values), "", "", ""))
                continue
            predictor = predictors[name]
            least = [predictor if isinstance(predictor, float) else found[f"{task}/{predictor}"] for found in metrics]
            sign = _sign(name)
            # Rounded, since of two equal accuracies one may be 1 - x.
            gains = [round(sign * (value - bar), 9) for value, bar in zip(values, least, strict=True)]
            rows.append((f"{task}/{name}", figure(values), figure(least), figure(gains), _beyond_noise(gains)))
    return rows


def _beyond_noise(gains: Sequence[float]) -> str:
    """Whether the mean of all seeds there could be is above 0, as a one-sided t-test at _CONFIDENCE has it."""
    return _beats(gains, 0.0)


def figure(values: Sequence[float]) -> str:
    """The mean, of several values with their sample standard deviation."""
    mean = f"{statistics.mean(values):,.3f}"
    return mean if len(values) == 1 else f"{mean} ± {math.sqrt(statistics.variance(values)):,.3f}"


def signed(difference: float | None) -> str:
    """A difference with its sign; nothing where there is none."""
    return "" if difference is None else f"{difference:+,.3f}"


def said(metric: Metric) -> str:
    """What a metric is called."""
    return metric if isinstance(metric, str) else f"mean of {', '.join(map(said, metric))}"


def _first(metric: Metric) -> str:
    return metric if isinstance(metric, str) else _first(metric[0])


def _sign(metric: str) -> int:
    """1 where more of a metric is better, else -1."""
    return -1 if metric.lower().endswith(_LESS) else 1
