"""Tables that compare runs with trivial predictors, with baselines and with the results of a paper.

Only the primary metric of a sweep has verdicts: each row is tested against the reference run (`significance`). Every
other comparison is a difference with its 95 % interval.
"""

import collections
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax.common import metrics as declarations
from plm_jax.evaluation.baselines import trivial_value
from plm_jax.experiments import significance
from plm_jax.experiments.setups import SETUP_HEAD, Setup
from plm_jax.experiments.significance import MeanDifference, Sample

# Rows of a table, the header first. Columns in TEXTS are left-aligned text; other columns hold numbers.
Lines = list[tuple[str, ...]]
TEXTS = ("Run", "Metric", "Verdict", *SETUP_HEAD)
INTERVAL = "[95 %]"
_HEAD = ("Run", "Metric", "Value", "Trivial predictor", f"Gain {INTERVAL}", "Seeds", "Minutes")
# Name SOURCE/METRIC, or a sequence of metrics, which stands for their mean.
Metric = str | Sequence["Metric"]
AGREES = "significant, same direction as the paper"
DISAGREES = "significant, opposite direction to the paper"
BETTER, WORSE, NOT_SIGNIFICANT = "significantly better", "significantly worse", "not significant"
NOT_RUN = "not run yet"
NO_DIRECTION = "no verdict: the metric declares no direction"
OTHER_METRIC = "no verdict: the metric differs from the paper's"
TRIVIAL_REFERENCE = "no verdict: the reference does not beat the trivial predictor"
METHOD = (
    "Each 95 % interval applies to its row alone (no correction for multiple comparisons). Differences of shares are "
    "in percentage points. Verdicts: Welch's t-test over seeds of each row against the first row, with Holm's "
    "correction at 5 %; for accuracies and other shares, the test includes the variance of the test set."
)
# Config sections that determine the targets of a language model. Losses of runs that differ in one are not comparable.
_TARGETS = ("objective", "data", "vocabulary")


class Baselines(NamedTuple):
    """Baselines of a run, by one metric.

    Attributes:
      run: name of the run.
      metric: SOURCE/METRIC.
      columns: baselines by column name: the name of another run (its value of the same metric), another metric of this
        run, a pair of another run and another metric, or a constant in the unit of the metric.
    """

    run: str
    metric: str
    columns: Mapping[str, str | tuple[str, str] | float]


class Published(NamedTuple):
    """Results of a paper for one run.

    Attributes:
      run: name of the run.
      figures: results by the paper's name of the metric, as printed (shares in percent). A missing one is shown as
        "not available".
      source: table and page of the results.
      setups: the paper's setups by run: of this run, of the runs tuned from it, and of the run that it starts from.
      averages: for each result that is a mean, by the paper's name, the names of the sources that it averages.
    """

    run: str
    figures: Mapping[str, float]
    source: str
    setups: Mapping[str, Setup] = {}
    averages: Mapping[str, Collection[str]] = {}


class SubstituteMetric(NamedTuple):
    """Metric of our runs that stands in for another metric or task of a paper, as in a demo.

    The paper's differences do not predict the differences in our metric, so a run gets no verdict.

    Attributes:
      metric: our metric.
    """

    metric: Metric


class PaperComparison(NamedTuple):
    """Comparison of a run with a paper's result, by one metric.

    Attributes:
      run: name of the run.
      paper: the paper's result in the unit of our metric; None if it is not available.
      paper_difference: difference to the paper's result of the reference run.
      values: our values, one per seed.
      difference: difference between the means of the run and the reference run, with its interval; None if either run
        has no values.
      verdict: AGREES, DISAGREES, BETTER, WORSE, NOT_SIGNIFICANT, NOT_RUN, or the reason for having none; empty for the
        reference, and if the metric is not the primary one.
    """

    run: str
    paper: float | None
    paper_difference: float | None
    values: Sequence[float]
    difference: MeanDifference | None
    verdict: str


def baselines_table(results: Sequence[dict[str, Any]], baselines: Sequence[Baselines]) -> Lines:
    """Returns a table of runs and their baselines, with the gain over each baseline and its 95 % interval.

    Args:
      results: as in `table`; cells without results are blank.
    """
    names = list(dict.fromkeys(name for row in baselines for name in row.columns))
    gain_column = f"gain {INTERVAL}"
    lines: Lines = [("Run", "Metric", "Value", *(cell for name in names for cell in (name, gain_column)))]
    for row in baselines:
        metric, sample = _declared(row.metric), _sample(_rows_of(results, row.run), row.metric)
        samples = [_baseline(results, row, row.columns.get(name)) for name in names]
        number_format = _readable(metric, sample.values, *(baseline.values for baseline in samples))
        cells = [row.run, row.metric, figure(sample.values, number_format) if sample.values else NOT_RUN]
        for name, baseline in zip(names, samples, strict=True):
            is_constant = isinstance(row.columns.get(name), float | int)
            gain = _gain(sample, baseline, metric, is_constant) if sample.values and baseline.values else None
            cells += [
                figure(baseline.values, number_format) if baseline.values else "",
                "" if gain is None else signed(gain, number_format),
            ]
        lines.append(tuple(cells))
    return lines


def _baseline(
    results: Sequence[dict[str, Any]], row: Baselines, column: str | tuple[str, str] | float | None
) -> Sample:
    """Returns the results of a baseline; a sample without values if there are none."""
    if isinstance(column, tuple):
        return _sample(_rows_of(results, column[0]), column[1])
    if isinstance(column, str):
        same_metric = _sample(_rows_of(results, column), row.metric)
        return same_metric if same_metric.values else _sample(_rows_of(results, row.run), column)
    return Sample([] if column is None else [column])


def _gain(
    sample: Sample, baseline_sample: Sample, metric: declarations.Metric | None, is_constant: bool
) -> MeanDifference:
    """Returns the gain over another sample or over a constant; positive is better."""
    if is_constant:
        difference = significance.difference(sample, target=baseline_sample.values[0])
    else:
        difference = significance.difference(sample, reference=baseline_sample)
    if metric is None or metric.sign >= 0:
        return difference
    low, high = (None if bound is None else -bound for bound in (difference.high, difference.low))
    return MeanDifference(0.0 - difference.mean, low, high)


def _rows_of(results: Sequence[dict[str, Any]], run: str) -> list[Mapping[str, float]]:
    """Returns the metrics of a run, one mapping per seed."""
    return [result["metrics"] for result in results if result["name"] == run]


def _value(metrics: Mapping[str, float], metric: Metric) -> float | None:
    """Returns the value of a metric, or None if it or a part of a mean is missing."""
    if isinstance(metric, str):
        return metrics.get(metric)
    values = [_value(metrics, part) for part in metric]
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if len(numbers) == len(values) else None


def _weights(metric: Metric, weight: float = 1.0) -> Iterator[tuple[str, float]]:
    """Yields the metrics that a mean consists of, with their weights."""
    if isinstance(metric, str):
        yield metric, weight
        return
    for part in metric:
        yield from _weights(part, weight / len(metric))


def _declared(metric: Metric) -> declarations.Metric | None:
    """Returns the declaration of a metric or of the parts of a mean, or None if a part has none or they disagree.

    A mean of fractions and correlations, such as GLUE's, is a correlation.
    """
    names = [name for name, _ in _weights(metric)]
    parts = [part for name in names if (part := declarations.declared(name)) is not None]
    if len(parts) < len(names) or len({(part.is_share or part.unit, part.better) for part in parts}) > 1:
        return None
    return next((part for part in parts if part.unit == "correlation"), parts[0])


def _sample(rows: Sequence[Mapping[str, float]], metric: Metric) -> Sample:
    """Returns the values of a metric over the seeds that have it."""
    rows = [row for row in rows if _value(row, metric) is not None]
    # Rounded, so that values that one seed computes as x and another as 1 - (1 - x) are equal.
    values = [float(f"{_value(row, metric):.12g}") for row in rows]
    return Sample(values, _test_variance(rows, metric) if rows else None)


def _test_variance(rows: Sequence[Mapping[str, float]], metric: Metric) -> float | None:
    """Returns an upper bound of a metric's variance over test sets of this size, or None if the size is unknown.

    Metrics of one source share its rows and may be fully correlated; different sources are independent.
    """
    deviations: dict[str, float] = collections.defaultdict(float)
    for name, weight in _weights(metric):
        declared, mean = declarations.declared(name), statistics.fmean(row[name] for row in rows)
        counts = [count for row in rows if (count := _num_rows(row, name, declared))]
        if declared is None or declared.range is None or not declarations.fits(declared, mean) or not counts:
            return None
        variance = significance.bounded_variance(mean, declared.range, min(counts))
        deviations[name.partition("/")[0]] += weight * math.sqrt(variance)
    return sum(deviation**2 for deviation in deviations.values())


def _num_rows(metrics: Mapping[str, float], name: str, declared: declarations.Metric | None) -> float | None:
    """Returns the number of test rows of a metric: the first of its declared counts that is reported next to it."""
    keys = (f"{group}/{count}" for group in declarations.groups(name) for count in (declared.rows if declared else ()))
    return next((metrics[key] for key in keys if metrics.get(key, 0) > 0), None)


def _beats_trivial(rows: Sequence[Mapping[str, float]], metric: Metric, sign: int) -> bool:
    """Whether the 95 % interval of a run's gain over the trivial predictor is above 0; True without such a predictor.

    For a language model's metric without a predictor, the `real_loss` next to it decides.
    """
    rows = [row for row in rows if _value(row, metric) is not None]
    if isinstance(metric, str) and trivial_value(rows[0], metric) is None:
        metric, sign = f"{metric.rpartition('/')[0]}/real_loss", -1
    gains = []
    for row in rows:
        value, mean = _value(row, metric), 0.0
        if value is None:
            return True
        for name, weight in _weights(metric):
            trivial = trivial_value(row, name)
            if trivial is None:
                return True
            mean += weight * trivial
        gains.append(sign * (value - mean))
    low = significance.difference(Sample(gains, _test_variance(rows, metric))).low
    return low is not None and low > 0


def counts_for(run: str, name: str) -> bool:
    """Whether results of a run count for a name: the run has this name, or was tuned from it and is called NAME-…."""
    return run == name or run.startswith(f"{name}-")


def _joined(results: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Merges the metrics that count for each name and seed; later runs override earlier ones.

    If a run counts for several names, only the longest is used: `rms-gelu-tuned` for `rms-gelu` and not for `rms`.
    """
    merged: dict[tuple[str, int], dict[str, float]] = {}
    for result in results:
        name = max((name for name in names if counts_for(result["name"], name)), key=len, default=None)
        if name is not None:
            merged.setdefault((name, result["seed"]), {}).update(result["metrics"])
    return [{"name": name, "metrics": metrics} for (name, _), metrics in merged.items()]


def compare_with_paper(
    results: Sequence[dict[str, Any]],
    published: Sequence[Published],
    name: str,
    metric: Metric | SubstituteMetric,
    is_primary: bool = True,
) -> list[PaperComparison]:
    """Compares runs with the results of a paper by one metric. The first published run is the reference.

    Results of a run NAME-… count for NAME. If nothing is published, each run is a row.

    Args:
      results: as in `table`, with the `seed` of each run.
      name: the paper's name of the metric.
      metric: our metric.
      is_primary: whether rows are tested and have verdicts.
    """
    published = published or [Published(run, {}, "") for run in dict.fromkeys(result["name"] for result in results)]
    if not published:
        return []
    is_stand_in, our_metric = isinstance(metric, SubstituteMetric), get_metric(metric)
    declared, results = _declared(our_metric), _joined(results, [row.run for row in published])
    rows = [_rows_of(results, row.run) for row in published]
    base, *samples = (_sample(run_rows, our_metric) for run_rows in rows)
    figures = [_paper(row, name, declared) for row in published]
    directions = _directions(base, samples, declared)
    sign = 0 if declared is None else declared.sign
    no_verdict = "" if sign else NO_DIRECTION
    if len(base.values) > 1 and not no_verdict and not _beats_trivial(rows[0], our_metric, sign):
        no_verdict = TRIVIAL_REFERENCE
    compared = [PaperComparison(published[0].run, figures[0], None, base.values, None, "")]
    for row, paper_value, sample, direction in zip(published[1:], figures[1:], samples, directions, strict=True):
        paper_difference = None if paper_value is None or figures[0] is None else paper_value - figures[0]
        difference = significance.difference(sample, base) if sample.values and base.values else None
        verdict = ""
        if is_primary and difference is None:
            verdict = NOT_RUN
        elif is_primary:
            verdict = no_verdict or (OTHER_METRIC if is_stand_in and paper_value is not None else "")
            verdict = verdict or _verdict(paper_difference and paper_difference * sign, direction)
        compared.append(PaperComparison(row.run, paper_value, paper_difference, sample.values, difference, verdict))
    return compared


def _paper(row: Published, name: str, declared: declarations.Metric | None) -> float | None:
    """Returns a paper's result in the unit of our metric."""
    paper = row.figures.get(name)
    return paper if paper is None or declared is None else declared.from_percent(paper)


def _directions(base: Sample, samples: Sequence[Sample], declared: declarations.Metric | None) -> list[int]:
    """Compares each row with the reference: 1 if significantly better, -1 if significantly worse, 0 if neither."""
    rejected = significance.holm(significance.p_values(base, samples))
    directions = []
    for sample, is_beyond in zip(samples, rejected, strict=True):
        gain = statistics.fmean(sample.values) - statistics.fmean(base.values) if is_beyond else 0
        directions.append(0 if declared is None else declared.sign * ((gain > 0) - (gain < 0)))
    return directions


def _verdict(paper_gain: float | None, direction: int) -> str:
    """Returns the verdict on a row with this direction; `paper_gain` is positive if the paper's is better."""
    if not direction:
        return NOT_SIGNIFICANT
    if not paper_gain:
        verdict = BETTER if direction > 0 else WORSE
        return verdict if paper_gain is None else f"{verdict}, no difference in the paper"
    return AGREES if direction * paper_gain > 0 else DISAGREES


def default_comparison(results: Sequence[dict[str, Any]]) -> dict[str, Metric]:
    """Returns the `compared` of a sweep whose file does not define it: one metric, or none.

    It is a metric that all runs have and whose direction is declared: the first one with a trivial predictor, or, if
    none has a trivial predictor, the first one. If runs differ in their targets, metrics of language models are left
    out.

    Args:
      results: as in `table`, each with its `overrides`.
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
        is_of_examples = any(f"{group}/examples" in finished[0] for group in declarations.groups(name))
        if is_of_examples or not changed & set(_TARGETS):
            names.append(name)
    comparable = [name for name in names if trivial_value(finished[0], name) is not None]
    return {name: name for name in (comparable or names)[:1]}


def paper_table(
    results: Sequence[dict[str, Any]],
    published: Sequence[Published],
    compared: Mapping[str, Metric | SubstituteMetric],
    name: str | None = None,
) -> Lines:
    """Returns a table of runs and the results of a paper for them.

    Args:
      compared: maps the name of each metric in the paper to our metric that is compared with it. The first is the
        primary metric, and only its rows have verdicts.
      name: key of `compared` to show; None shows all, with a column for the metric.
    """
    head = ["Run"] if name is not None else ["Metric", "Run"]
    has_paper = any(
        paper_name in row.figures for row in published for paper_name in (compared if name is None else [name])
    )
    head += ["Paper", "vs. first"] if has_paper else []
    is_tested = name in (None, next(iter(compared), None))
    head += ["Ours", f"vs. first {INTERVAL}", *(["Verdict"] if is_tested else []), "Seeds"]
    lines = [tuple(head)]
    for index, (paper_name, metric) in enumerate(compared.items()):
        if name not in (None, paper_name):
            continue
        rows = compare_with_paper(results, published, paper_name, metric, is_primary=not index)
        number_format = _readable(_declared(get_metric(metric)), *(row.values for row in rows))
        for row_index, row in enumerate(rows):
            cells = [row.run] if name is not None else [title(paper_name, metric), row.run]
            if has_paper:
                cells.append("not available" if row.paper is None else figure([row.paper], number_format))
                cells.append(
                    "" if row.paper_difference is None else signed(MeanDifference(row.paper_difference), number_format)
                )
            cells.append(figure(row.values, number_format) if row.values else NOT_RUN)
            cells.append("" if row.difference is None else signed(row.difference, number_format))
            cells += ([row.verdict if row_index or index else "reference"] if is_tested else []) + [
                str(len(row.values) or "")
            ]
            lines.append(tuple(cells))
    return lines


def get_metric(metric: Metric | SubstituteMetric) -> Metric:
    """Returns our metric of a comparison."""
    return metric.metric if isinstance(metric, SubstituteMetric) else metric


def to_json(metric: Metric | SubstituteMetric) -> Any:
    """Returns a compared metric in the form that a sweep's folder stores."""
    return {"stand_in": metric.metric} if isinstance(metric, SubstituteMetric) else metric


def title(name: str, metric: Metric | SubstituteMetric) -> str:
    """Returns the name of a comparison."""
    our_name = metric_name(get_metric(metric))
    return our_name if our_name == name else f"{name} vs. our {our_name}"


def _readable(metric: declarations.Metric | None, *samples: Sequence[float]) -> declarations.Metric | None:
    """Returns a metric, which says how to format values, or None if one of the values is outside of its range."""
    fits = metric is not None and all(declarations.fits(metric, value) for values in samples for value in values)
    return metric if fits else None


def table(results: Sequence[dict[str, Any]]) -> Lines:
    """Returns a table of the metrics of runs: mean ± sample standard deviation if there are several seeds.

    If metrics of a task have a trivial predictor, only these are shown, with their gain over it and its 95 % interval.
    For other tasks all metrics are shown.

    Args:
      results: for each run `name`, `error` (or None), `minutes`, and `metrics` (values by TASK/METRIC). A run
        without error and metrics has not finished yet. Runs with the same name are seeds of one run.
    """
    lines: Lines = [_HEAD]
    for name in dict.fromkeys(result["name"] for result in results):
        seeds = [result for result in results if result["name"] == name]
        lines += [(name, f"failed: {result['error']}", *[""] * 5) for result in seeds if result["error"] is not None]
        finished = [result for result in seeds if result["metrics"]]
        if not finished and all(result["error"] is None for result in seeds):
            lines.append((name, NOT_RUN, *[""] * 5))
        if finished:
            minutes = f"{statistics.fmean(result['minutes'] for result in finished):.1f}"
            all_metrics = [result["metrics"] for result in finished]
            lines += [(name, *row, str(len(finished)), minutes) for row in _rows(all_metrics)]
    return lines


def to_markdown(lines: Lines) -> str:
    """Formats a table in Markdown."""
    cells = ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines]
    columns = [":--" if name in TEXTS else "--:" for name in lines[0]]
    return "\n".join([cells[0], f"| {' | '.join(columns)} |", *cells[1:]]) + "\n"


def _rows(metrics: Sequence[Mapping[str, float]]) -> list[tuple[str, str, str, str]]:
    """Returns the table rows of a run: metric, value, the trivial predictor's value, and the gain over that value.

    Args:
      metrics: metrics of each seed.
    """
    rows = []
    names = [name for name in metrics[0] if all(name in seed_metrics for seed_metrics in metrics)]
    for task in dict.fromkeys(name.rpartition("/")[0] for name in names):
        task_names = [name for name in names if name.rpartition("/")[0] == task]
        comparable = [name for name in task_names if _has_trivial_value(metrics[0], name)]
        for name in comparable or task_names:
            declared, values = declarations.declared(name), [seed_metrics[name] for seed_metrics in metrics]
            trivial = [value for seed_metrics in metrics if (value := trivial_value(seed_metrics, name)) is not None]
            if declared is None or not comparable:
                rows.append((name, figure(values, _readable(declared, values)), "", ""))
                continue
            number_format = _readable(declared, values, trivial)
            # Rounded: one of two equal accuracies may be computed as 1 - x.
            gains = [
                round(declared.sign * (value - baseline), 9) for value, baseline in zip(values, trivial, strict=True)
            ]
            gain = significance.difference(Sample(gains, _test_variance(metrics, name)))
            rows.append(
                (name, figure(values, number_format), figure(trivial, number_format), signed(gain, number_format))
            )
    return rows


def _has_trivial_value(metrics: Mapping[str, float], name: str) -> bool:
    """Whether it is declared which values of a metric are better, and there is a trivial predictor."""
    declared = declarations.declared(name)
    return declared is not None and declared.sign != 0 and trivial_value(metrics, name) is not None


def figure(values: Sequence[float], metric: declarations.Metric | None = None) -> str:
    """Formats the mean of values, with their sample standard deviation if there are several; shares in percent."""
    return declarations.shown_seeds(metric, values)


def signed(difference: MeanDifference, metric: declarations.Metric | None = None) -> str:
    """Formats a difference with its sign and its interval, if it has one; shares differ in percentage points."""
    scale = 100 if metric is not None and metric.is_share else 1
    digits = 2 if scale == 100 else 3
    mean, low, high = (None if value is None else f"{scale * value:+,.{digits}f}" for value in difference)
    return f"{mean}" if low is None else f"{mean} [{low}, {high}]"


def metric_name(metric: Metric) -> str:
    """Returns the name of a metric."""
    return metric if isinstance(metric, str) else f"mean of {', '.join(map(metric_name, metric))}"
