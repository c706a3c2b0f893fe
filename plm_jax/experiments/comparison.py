"""Tables that compare runs: with trivial baselines, with rivals, and with what a paper reports.

Verdicts are about one metric of a page, its primary one, of which each row is tested against the page's reference
(`significance`). Everything else is a difference with its 95 % interval.
"""

import collections
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax.common import metrics as declarations
from plm_jax.evaluation import baselines
from plm_jax.experiments import significance
from plm_jax.experiments.setups import SETUP_HEAD, Setup
from plm_jax.experiments.significance import Difference, Sample

# Of a table its lines; the first is its head. What stands below these names is text, below others figures.
Lines = list[tuple[str, ...]]
TEXTS = ("Run", "Metric", "Verdict", *SETUP_HEAD)
INTERVAL = "[95 %]"
_HEAD = ("Run", "Metric", "Value", "Trivial predictor", f"Better by {INTERVAL}", "Seeds", "Minutes")
# SOURCE/METRIC, or several, of which the mean is meant, each again one or several.
Metric = str | Sequence["Metric"]
AGREES, DISAGREES, NOT_RESOLVED = "agrees in direction beyond noise", "disagrees beyond noise", "not resolved"
BETTER, WORSE = "better beyond noise", "worse beyond noise"
NOT_RUN = "not run yet"
NO_DIRECTION = "no verdict: the metric declares no direction"
OTHER_METRIC = "no verdict: another metric than the paper's"
TRIVIAL_REFERENCE = "no verdict: the reference does not beat the trivial predictor"
METHOD = (
    "Each interval holds by itself with 95 %; shares differ by percentage points. Verdicts are those of Welch's t-test "
    "of each row against the first over the seeds, with the variance of the test set, corrected by Holm's method over "
    "all rows of the page at 5 %."
)
# Sections of a config that decide which targets a language model has: where runs differ in one, their losses do too.
_TARGETS = ("objective", "data", "vocabulary")


class Rivals(NamedTuple):
    """What a metric of a run is to be judged by.

    Attributes:
      run: its name.
      metric: SOURCE/METRIC.
      others: by what each is called the name of another run, of which the same metric is taken, another metric of this
        run, another run's name with another metric, or a figure, in the unit of the metric.
    """

    run: str
    metric: str
    others: Mapping[str, str | tuple[str, str] | float]


class Published(NamedTuple):
    """What a paper reports of one run.

    Attributes:
      run: its name.
      figures: by the paper's name of a metric, as the paper prints it, shares in per cent; what is not among them is
        not at hand.
      source: where they stand.
      setups: by the names of runs the paper's set-up of this one, of those tuned from it, and of what it begins with.
      averages: by the paper's name of a figure that is a mean the tasks that it is the mean of, as sources are named.
    """

    run: str
    figures: Mapping[str, float]
    source: str
    setups: Mapping[str, Setup] = {}
    averages: Mapping[str, Collection[str]] = {}


class StandIn(NamedTuple):
    """A metric of ours that is set beside a figure of another metric or of another task, as a demo's is.

    The paper's differences say nothing of it, so that there is no verdict on their direction.

    Attributes:
      metric: ours.
    """

    metric: Metric


class Beside(NamedTuple):
    """A run beside what a paper reports of it, by one metric.

    Attributes:
      run: its name.
      paper: the paper's figure in the unit of ours; None: not at hand.
      paper_difference: to its figure of the reference run.
      values: ours, of each seed.
      difference: of the means, to the reference run's, with its interval; None: one of them is not there.
      verdict: AGREES, DISAGREES, BETTER, WORSE, NOT_RESOLVED, NOT_RUN, or why there is none; empty of the reference,
        and of all where the metric is not the page's primary one.
    """

    run: str
    paper: float | None
    paper_difference: float | None
    values: Sequence[float]
    difference: Difference | None
    verdict: str


def beside(results: Sequence[dict[str, Any]], rivals: Sequence[Rivals]) -> Lines:
    """Returns a table of runs beside their rivals: figures, and by how much they are better, with 95 % intervals.

    Args:
      results: as of `table`; what has none yet is left blank.
    """
    names = list(dict.fromkeys(name for rival in rivals for name in rival.others))
    better = f"better by {INTERVAL}"
    lines = [("Run", "Metric", "Value", *(cell for name in names for cell in (name, better)))]
    for rival in rivals:
        metric, sample = _declared(rival.metric), _sample(_rows_of(results, rival.run), rival.metric)
        others = [_rival(results, rival, rival.others.get(name)) for name in names]
        shown = _readable(metric, sample.values, *(other.values for other in others))
        cells = [rival.run, rival.metric, figure(sample.values, shown) if sample.values else NOT_RUN]
        for name, other in zip(names, others, strict=True):
            is_figure = isinstance(rival.others.get(name), float | int)
            gain = _gain(sample, other, metric, is_figure) if sample.values and other.values else None
            cells += [figure(other.values, shown) if other.values else "", "" if gain is None else signed(gain, shown)]
        lines.append(tuple(cells))
    return lines


def _rival(results: Sequence[dict[str, Any]], rival: Rivals, other: str | tuple[str, str] | float | None) -> Sample:
    """Returns the results that a run is compared with; without values where there are none."""
    if isinstance(other, tuple):
        return _sample(_rows_of(results, other[0]), other[1])
    if isinstance(other, str):
        same_metric = _sample(_rows_of(results, other), rival.metric)
        return same_metric if same_metric.values else _sample(_rows_of(results, rival.run), other)
    return Sample([] if other is None else [other])


def _gain(sample: Sample, other: Sample, metric: declarations.Metric | None, is_figure: bool) -> Difference:
    """Returns the difference of a sample to another one, or to its only figure, turned so that more is better."""
    against = {"target": other.values[0]} if is_figure else {"reference": other}
    difference = significance.difference(sample, **against)
    if metric is None or metric.sign >= 0:
        return difference
    low, high = (None if bound is None else -bound for bound in (difference.high, difference.low))
    return Difference(0.0 - difference.mean, low, high)


def _rows_of(results: Sequence[dict[str, Any]], run: str) -> list[Mapping[str, float]]:
    """Returns the metrics of a run with each seed."""
    return [result["metrics"] for result in results if result["name"] == run]


def _value(metrics: Mapping[str, float], metric: Metric) -> float | None:
    """Returns a metric; None: it is missing, or one of those that it is the mean of."""
    if isinstance(metric, str):
        return metrics.get(metric)
    values = [_value(metrics, of) for of in metric]
    return None if None in values else statistics.fmean(values)


def _weights(metric: Metric, weight: float = 1.0) -> Iterator[tuple[str, float]]:
    """Yields the metrics that a metric is the mean of, with their weights."""
    if isinstance(metric, str):
        yield metric, weight
        return
    for of in metric:
        yield from _weights(of, weight / len(metric))


def _declared(metric: Metric) -> declarations.Metric | None:
    """Returns the declaration of a metric, of a mean that of its parts; None: one has none, or they do not agree.

    The mean of fractions and correlations, as GLUE's, is a correlation.
    """
    parts = [declarations.declared(name) for name, _ in _weights(metric)]
    if None in parts or len({(part.is_share or part.unit, part.better) for part in parts}) > 1:
        return None
    return next((part for part in parts if part.unit == "correlation"), parts[0])


def _sample(rows: Sequence[Mapping[str, float]], metric: Metric) -> Sample:
    """Returns a metric of a run with each seed that has it."""
    rows = [row for row in rows if _value(row, metric) is not None]
    # What one seed computes as x and another as 1 - (1 - x) is equal.
    values = [float(f"{_value(row, metric):.12g}") for row in rows]
    return Sample(values, _test_variance(rows, metric) if rows else None)


def _test_variance(rows: Sequence[Mapping[str, float]], metric: Metric) -> float | None:
    """Returns the variance of a metric over test sets of the size of its own; None: that size is not known.

    Metrics of one source are of the same rows and may vary together; those of several sources do not.
    """
    deviations: collections.Counter[str] = collections.Counter()
    for name, weight in _weights(metric):
        declared, mean = declarations.declared(name), statistics.fmean(row[name] for row in rows)
        counts = [count for row in rows if (count := _num_rows(row, name, declared))]
        if declared is None or declared.range is None or not declarations.fits(declared, mean) or not counts:
            return None
        variance = significance.bounded_variance(mean, declared.range, min(counts))
        deviations[name.partition("/")[0]] += weight * math.sqrt(variance)
    return sum(deviation**2 for deviation in deviations.values())


def _num_rows(metrics: Mapping[str, float], name: str, declared: declarations.Metric | None) -> float | None:
    """Returns the number of test rows of a metric: the first count of its declaration that stands next to it."""
    keys = (f"{group}/{count}" for group in _groups(name) for count in (declared.rows if declared else ()))
    return next((metrics[key] for key in keys if metrics.get(key, 0) > 0), None)


def _groups(name: str) -> list[str]:
    """Returns the prefixes of related figures, the nearest first: `a/5_shots` and `a` for `a/5_shots/accuracy`."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]


def _trivial(metrics: Mapping[str, float], name: str) -> float | None:
    """Returns the metric of a predictor that looks at no input; None: there is none."""
    declared = declarations.declared(name)
    for group in _groups(name):
        near = {key.removeprefix(f"{group}/"): value for key, value in metrics.items() if key.startswith(f"{group}/")}
        predictor = baselines.predictor(name.rpartition("/")[2], near)
        if isinstance(predictor, float) or predictor in near:
            return predictor if isinstance(predictor, float) else near[predictor]
    return 0.0 if declared is not None and declared.unit == "correlation" else None


def _beats_trivial(rows: Sequence[Mapping[str, float]], metric: Metric, sign: int) -> bool:
    """Whether a run beats the trivial predictor beyond its 95 % interval; true where there is no such predictor.

    A language model's metric without such a predictor stands next to `real_loss`, which decides then.
    """
    rows = [row for row in rows if _value(row, metric) is not None]
    if isinstance(metric, str) and _trivial(rows[0], metric) is None:
        metric, sign = f"{metric.rpartition('/')[0]}/real_loss", -1
    if any(_value(row, metric) is None for row in rows):
        return True
    gains = []
    for row in rows:
        trivial = [_trivial(row, name) for name, _ in _weights(metric)]
        if None in trivial:
            return True
        mean = sum(weight * value for (_, weight), value in zip(_weights(metric), trivial, strict=True))
        gains.append(sign * (_value(row, metric) - mean))
    low = significance.difference(Sample(gains, _test_variance(rows, metric))).low
    return low is not None and low > 0


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
    results: Sequence[dict[str, Any]],
    published: Sequence[Published],
    name: str,
    metric: Metric | StandIn,
    is_primary: bool = True,
) -> list[Beside]:
    """Returns each run beside what a paper reports of it by a metric; the first of those published is the reference.

    What a run NAME-… has reached counts for NAME. Where nothing is published each run is a row.

    Args:
      results: as of `table`, with each run's `seed`.
      name: the paper's name of the metric.
      metric: ours.
      is_primary: whether rows are tested, by `significance`, and have verdicts.
    """
    published = published or [Published(run, {}, "") for run in dict.fromkeys(result["name"] for result in results)]
    if not published:
        return []
    is_stand_in, ours = isinstance(metric, StandIn), ours_of(metric)
    declared, results = _declared(ours), _joined(results, [row.run for row in published])
    rows = [_rows_of(results, row.run) for row in published]
    base, *samples = (_sample(of_run, ours) for of_run in rows)
    figures = [_paper(row, name, declared) for row in published]
    directions = _directions(base, samples, declared)
    no_verdict = NO_DIRECTION if declared is None or not declared.sign else ""
    if len(base.values) > 1 and not no_verdict and not _beats_trivial(rows[0], ours, declared.sign):
        no_verdict = TRIVIAL_REFERENCE
    compared = [Beside(published[0].run, figures[0], None, base.values, None, "")]
    for row, paper, sample, direction in zip(published[1:], figures[1:], samples, directions, strict=True):
        of_paper = None if paper is None or figures[0] is None else paper - figures[0]
        difference = significance.difference(sample, base) if sample.values and base.values else None
        verdict = ""
        if is_primary and difference is None:
            verdict = NOT_RUN
        elif is_primary:
            verdict = no_verdict or (OTHER_METRIC if is_stand_in and paper is not None else "")
            verdict = verdict or _verdict(of_paper and of_paper * declared.sign, direction)
        compared.append(Beside(row.run, paper, of_paper, sample.values, difference, verdict))
    return compared


def _paper(row: Published, name: str, declared: declarations.Metric | None) -> float | None:
    """Returns a paper's figure in the unit of our metric."""
    paper = row.figures.get(name)
    return paper if paper is None or declared is None else declared.from_percent(paper)


def _directions(base: Sample, samples: Sequence[Sample], declared: declarations.Metric | None) -> list[int]:
    """Returns 1 for a row that is better than the reference beyond noise, -1 for one that is worse, else 0."""
    rejected = significance.holm(significance.p_values(base, samples))
    directions = []
    for sample, is_beyond in zip(samples, rejected, strict=True):
        gain = statistics.fmean(sample.values) - statistics.fmean(base.values) if is_beyond else 0
        directions.append(0 if declared is None else declared.sign * ((gain > 0) - (gain < 0)))
    return directions


def _verdict(of_paper: float | None, direction: int) -> str:
    """Returns the verdict on a row of this direction; `of_paper` is the paper's gain, above 0 where it is better."""
    if not direction:
        return NOT_RESOLVED
    if not of_paper:
        verdict = BETTER if direction > 0 else WORSE
        return verdict if of_paper is None else f"{verdict}, no difference in the paper"
    return AGREES if direction * of_paper > 0 else DISAGREES


def default_comparison(results: Sequence[dict[str, Any]]) -> dict[str, Metric]:
    """Returns the metric by which runs are compared where their sweep's file does not say, as `compared`.

    All runs have this metric, and its direction is declared: the first with a trivial predictor, or else the first.
    Where runs differ in what they predict, it is none of a language model. Without such a metric nothing is compared.

    Args:
      results: as of `table`, each with its `overrides`.
    """
    finished = [result["metrics"] for result in results if result["metrics"]]
    if len({result["name"] for result in results if result["metrics"]}) < 2:
        return {}
    changed = {field.partition(".")[0] for result in results for field in result.get("overrides", {})}
    names = []
    for name in finished[0]:
        declared = declarations.declared(name)
        if declared is None or not declared.sign or not all(name in metrics for metrics in finished):
            continue
        is_of_examples = any(f"{group}/examples" in finished[0] for group in _groups(name))
        if is_of_examples or not changed & set(_TARGETS):
            names.append(name)
    judged = [name for name in names if _trivial(finished[0], name) is not None]
    return {name: name for name in (judged or names)[:1]}


def papers(
    results: Sequence[dict[str, Any]],
    published: Sequence[Published],
    compared: Mapping[str, Metric | StandIn],
    name: str | None = None,
) -> Lines:
    """Returns a table of runs beside what a paper reports of them.

    Args:
      compared: by the paper's name of a metric ours that is set beside it; the first is the page's primary metric, and
        only its rows have verdicts.
      name: the one of these names that the table is of; None: all, with a column that names them.
    """
    head = ["Run"] if name is not None else ["Metric", "Run"]
    has_paper = any(other in row.figures for row in published for other in (compared if name is None else [name]))
    head += ["Paper", "To the first"] if has_paper else []
    is_tested = name in (None, next(iter(compared), None))
    head += ["Ours", f"To the first {INTERVAL}", *(["Verdict"] if is_tested else []), "Seeds"]
    lines = [tuple(head)]
    for number, (other, metric) in enumerate(compared.items()):
        if name not in (None, other):
            continue
        rows = beside_paper(results, published, other, metric, is_primary=not number)
        shown = _readable(_declared(ours_of(metric)), *(row.values for row in rows))
        for i, row in enumerate(rows):
            cells = [row.run] if name is not None else [title(other, metric), row.run]
            if has_paper:
                cells.append("not at hand" if row.paper is None else figure([row.paper], shown))
                cells.append("" if row.paper_difference is None else signed(Difference(row.paper_difference), shown))
            cells.append(figure(row.values, shown) if row.values else NOT_RUN)
            cells.append("" if row.difference is None else signed(row.difference, shown))
            cells += ([row.verdict if i or number else "reference"] if is_tested else []) + [str(len(row.values) or "")]
            lines.append(tuple(cells))
    return lines


def ours_of(metric: Metric | StandIn) -> Metric:
    """Returns the metric of ours that is set beside a paper's."""
    return metric.metric if isinstance(metric, StandIn) else metric


def to_json(metric: Metric | StandIn) -> Any:
    """Returns a metric that is compared as a sweep's folder stores it."""
    return {"stand_in": metric.metric} if isinstance(metric, StandIn) else metric


def title(name: str, metric: Metric | StandIn) -> str:
    """Returns the name of a comparison."""
    ours = said(ours_of(metric))
    return ours if ours == name else f"{name} beside our {ours}"


def _readable(metric: declarations.Metric | None, *samples: Sequence[float]) -> declarations.Metric | None:
    """Returns the declaration by which values are shown: none where they are not in its range."""
    fits = metric is not None and all(declarations.fits(metric, value) for values in samples for value in values)
    return metric if fits else None


def table(results: Sequence[dict[str, Any]]) -> Lines:
    """A table of what runs reach; a figure of several seeds is their mean ± sample standard deviation.

    Of a task whose metrics have a trivial predictor those are shown, with by how much they beat it and its 95 %
    interval, of another all.

    Args:
      results: of each run `name`, `error` (None if there is none), `minutes`, and `metrics`, TASK/METRIC to figure;
        without error and metrics it is still to be run. Runs of one name are one run of several seeds.
    """
    lines = [_HEAD]
    for name in dict.fromkeys(result["name"] for result in results):
        same = [result for result in results if result["name"] == name]
        lines += [(name, f"failed: {result['error']}", *[""] * 5) for result in same if result["error"] is not None]
        finished = [result for result in same if result["metrics"]]
        if not finished and all(result["error"] is None for result in same):
            lines.append((name, NOT_RUN, *[""] * 5))
        if finished:
            minutes = f"{statistics.fmean(result['minutes'] for result in finished):.1f}"
            all_metrics = [result["metrics"] for result in finished]
            lines += [(name, *row, str(len(finished)), minutes) for row in _rows(all_metrics)]
    return lines


def markdown(lines: Lines) -> str:
    """A table in Markdown."""
    cells = ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines]
    columns = [":--" if name in TEXTS else "--:" for name in lines[0]]
    return "\n".join([cells[0], f"| {' | '.join(columns)} |", *cells[1:]]) + "\n"


def _rows(metrics: Sequence[Mapping[str, float]]) -> list[tuple[str, str, str, str]]:
    """Metric, value, trivial predictor's, and by how much it is beaten.

    Args:
      metrics: those of each seed.
    """
    rows = []
    names = [name for name in metrics[0] if all(name in found for found in metrics)]
    for task in dict.fromkeys(name.rpartition("/")[0] for name in names):
        own = [name for name in names if name.rpartition("/")[0] == task]
        judged = [name for name in own if _is_judged(metrics[0], name)]
        for name in judged or own:
            declared, values = declarations.declared(name), [found[name] for found in metrics]
            if not judged:
                rows.append((name, figure(values, _readable(declared, values)), "", ""))
                continue
            trivial = [_trivial(found, name) for found in metrics]
            shown = _readable(declared, values, trivial)
            # Rounded, since of two equal accuracies one may be 1 - x.
            gains = [round(declared.sign * (value - bar), 9) for value, bar in zip(values, trivial, strict=True)]
            gain = significance.difference(Sample(gains, _test_variance(metrics, name)))
            rows.append((name, figure(values, shown), figure(trivial, shown), signed(gain, shown)))
    return rows


def _is_judged(metrics: Mapping[str, float], name: str) -> bool:
    """Whether a metric has a direction and a trivial predictor."""
    declared = declarations.declared(name)
    return declared is not None and declared.sign != 0 and _trivial(metrics, name) is not None


def figure(values: Sequence[float], metric: declarations.Metric | None = None) -> str:
    """Formats a mean, of several values with their sample standard deviation; shares in per cent."""
    return declarations.shown_seeds(metric, values)


def signed(difference: Difference, metric: declarations.Metric | None = None) -> str:
    """Formats a difference with its sign and its interval, if it has one; of shares in percentage points."""
    scale = 100 if metric is not None and metric.is_share else 1
    digits = 2 if scale == 100 else 3
    mean, low, high = (None if value is None else f"{scale * value:+,.{digits}f}" for value in difference)
    return f"{mean}" if low is None else f"{mean} [{low}, {high}]"


def said(metric: Metric) -> str:
    """What a metric is called."""
    return metric if isinstance(metric, str) else f"mean of {', '.join(map(said, metric))}"
