"""Tables that compare runs with trivial predictors, with baselines and with the results of a paper.

Only the primary metric of a sweep, the first in `compared`, has verdicts: each row is tested against the reference run
(`significance`). Other comparisons are differences, with a 95 % interval if there are several seeds.
"""

import collections
import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax import config
from plm_jax.common import metrics as declarations
from plm_jax.common.errors import nearest
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
NO_METRIC = "no verdict: the metric is missing"
NO_DIRECTION = "no verdict: the metric declares no direction"
OTHER_METRIC = "no verdict: the metric differs from the paper's"
TRIVIAL_REFERENCE = "no verdict: the reference does not beat the trivial predictor"
ONE_SEED = "no verdict: one seed"
METHOD = (
    "Each 95 % interval applies to its row alone (no correction for multiple comparisons). Differences of shares are "
    "in percentage points. Verdicts: Welch's t-test over seeds of each row against the first row, with Holm's "
    "correction at 5 %; for accuracies and other shares, the test includes the variance of the test set."
)
# Config sections that determine the targets of a language model. Losses of runs that differ in one are not comparable.
_TARGETS = ("objective", "data", "vocabulary")
# Largest number of fields in a message.
_MAX_FIELDS = 3


class Baselines(NamedTuple):
    """Baselines with which a run is compared.

    Attributes:
      run: name of the run.
      metric: metric that is compared, SOURCE/METRIC.
      columns: dict from column name to baseline. A baseline is one of the following: the name of another run, whose
        `metric` is the baseline; the name SOURCE/METRIC of another metric of this run; a pair (run, metric); a constant
        in the unit of `metric`.
    """

    run: str
    metric: str
    columns: Mapping[str, str | tuple[str, str] | float]


class Published(NamedTuple):
    """Results of a paper for one run.

    Attributes:
      run: name of the run.
      figures: dict from the paper's name of a metric to the result as printed, with shares in percent. A missing result
        is shown as "not available".
      source: table and page of the results.
      setups: dict from the name of a run to the paper's setup of the run. It may have entries for this run, for runs
        that were tuned from it, and for the run whose weights it starts from.
      averages: dict from the paper's name of a metric to the names of the sources over which the result is a mean.
    """

    run: str
    figures: Mapping[str, float]
    source: str
    setups: Mapping[str, Setup] = {}
    averages: Mapping[str, Collection[str]] = {}


class SubstituteMetric(NamedTuple):
    """Metric of our runs that replaces a different metric or task of a paper, for example in a demo.

    The paper's differences do not predict the differences in our metric. A run with a result in the paper therefore
    gets no verdict.

    Attributes:
      metric: our metric, or a sequence of metrics for their mean.
    """

    metric: Metric


class PaperComparison(NamedTuple):
    """Comparison of a run with a paper's result, by one metric.

    Attributes:
      run: name of the run.
      paper: the paper's result in the unit of our metric; None if it is not available.
      paper_difference: the paper's result for the run minus its result for the reference run; None for the reference
        run, or if a result is not available.
      values: our values, one per seed.
      difference: difference between the means of the run and the reference run, with its interval; None for the
        reference run, or if a run has no values.
      verdict: a text that begins with AGREES, DISAGREES, BETTER, WORSE, NOT_SIGNIFICANT or NOT_RUN, or the reason why
        there is no verdict. Empty for the reference run, and for every metric except the primary metric.
      missing: reason why there are no values; empty if there are values.
    """

    run: str
    paper: float | None
    paper_difference: float | None
    values: Sequence[float]
    difference: MeanDifference | None
    verdict: str
    missing: str


def baselines_table(results: Sequence[dict[str, Any]], baselines: Sequence[Baselines]) -> Lines:
    """Returns a table of runs and their baselines, with the gain over each baseline and its 95 % interval.

    The cell of a missing result contains the reason.

    Args:
      results: results in the format of `table`, each with its `seed`.
    """
    names = list(dict.fromkeys(name for row in baselines for name in row.columns))
    gain_column = f"gain {INTERVAL}"
    lines: Lines = [("Run", "Metric", "Value", *(cell for name in names for cell in (name, gain_column)))]
    for row in baselines:
        metric, run_results = _declared(row.metric), _results_of(results, row.run)
        sample = _sample(_metrics_of(run_results), row.metric)
        baselines_of_run = [_baseline(results, row, row.columns.get(name)) for name in names]
        number_format = _readable(metric, sample.values, *(baseline.values for baseline, _ in baselines_of_run))
        value = figure(sample.values, number_format) if sample.values else _missing(run_results, row.metric)
        cells = [row.run, row.metric, value]
        for name, (baseline, missing) in zip(names, baselines_of_run, strict=True):
            is_constant = isinstance(row.columns.get(name), float | int)
            gain = _gain(sample, baseline, metric, is_constant) if sample.values and baseline.values else None
            cells += [
                figure(baseline.values, number_format) if baseline.values else missing,
                "" if gain is None else signed(gain, number_format),
            ]
        lines.append(tuple(cells))
    return lines


def _baseline(
    results: Sequence[dict[str, Any]], row: Baselines, column: str | tuple[str, str] | float | None
) -> tuple[Sample, str]:
    """Returns a pair: the results of a baseline, and the reason why there are none.

    The reason is empty if there are results, or if the run has no baseline in this column.
    """
    if isinstance(column, str):
        column = (row.run, column) if "/" in column else (column, row.metric)
    if isinstance(column, tuple):
        baseline_results = _results_of(results, column[0])
        sample = _sample(_metrics_of(baseline_results), column[1])
        return sample, "" if sample.values else _missing(baseline_results, column[1])
    return Sample([] if column is None else [column]), ""


def _gain(
    sample: Sample, baseline_sample: Sample, metric: declarations.Metric | None, is_constant: bool
) -> MeanDifference:
    """Returns the gain over another sample or over a constant; a positive gain is better."""
    if is_constant:
        difference = significance.difference(sample, target=baseline_sample.values[0])
    else:
        difference = significance.difference(sample, reference=baseline_sample)
    if metric is None or metric.sign >= 0:
        return difference
    low, high = (None if bound is None else -bound for bound in (difference.high, difference.low))
    return MeanDifference(0.0 - difference.mean, low, high)


def _results_of(results: Sequence[dict[str, Any]], run: str) -> list[dict[str, Any]]:
    return [result for result in results if result["name"] == run]


def _metrics_of(results: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Returns the metrics of each seed.

    If several results have the same seed, their metrics are merged, and later values override earlier values.
    """
    merged: dict[int, dict[str, float]] = {}
    for result in results:
        merged.setdefault(result["seed"], {}).update(result["metrics"])
    return list(merged.values())


def _missing(results: Sequence[dict[str, Any]], metric: Metric) -> str:
    """Returns the reason why results have no value of a metric, such as that a run is not finished."""
    if not results or not all(result["metrics"] for result in results):
        return NOT_RUN
    known = {name for result in results for name in result["metrics"]}
    for name in part_names(metric):
        if name not in known:
            related = {other for other in known if other.partition("/")[0] == name.partition("/")[0]}
            return f"no metric '{name}'" + (f"; {nearest(name, related)}" if related else "")
    return "no seed has all metrics of the mean"


def part_names(metric: Metric) -> list[str]:
    """Returns the names of the metrics in a mean, or the name of a single metric."""
    return [name for name, _ in _weights(metric)]


def _value(metrics: Mapping[str, float], metric: Metric) -> float | None:
    """Returns the value of a metric or mean; None if the metric or a part of the mean is missing."""
    if isinstance(metric, str):
        return metrics.get(metric)
    values = [_value(metrics, part) for part in metric]
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if len(numbers) == len(values) else None


def _weights(metric: Metric, weight: float = 1.0) -> Iterator[tuple[str, float]]:
    """Yields pairs (metric, weight) for the metrics in a mean; the weights add up to `weight`."""
    if isinstance(metric, str):
        yield metric, weight
        return
    for part in metric:
        yield from _weights(part, weight / len(metric))


def _declared(metric: Metric) -> declarations.Metric | None:
    """Returns the declaration of a metric, or the common declaration of the parts of a mean.

    Returns None if a part has no declaration, or if the parts have different units or directions. Fractions and
    correlations are an exception: a mean of both, such as the mean of GLUE's tasks, is declared as a correlation.
    """
    names = part_names(metric)
    parts = [part for name in names if (part := declarations.declared(name)) is not None]
    if len(parts) < len(names) or len({(part.is_share or part.unit, part.better) for part in parts}) > 1:
        return None
    return next((part for part in parts if part.unit == "correlation"), parts[0])


def _sample(rows: Sequence[Mapping[str, float]], metric: Metric) -> Sample:
    """Returns the values of a metric, leaving out seeds without a value."""
    rows = [row for row in rows if _value(row, metric) is not None]
    # Rounded, so that values that one seed computes as x and another as 1 - (1 - x) are equal.
    values = [float(f"{_value(row, metric):.12g}") for row in rows]
    return Sample(values, _test_variance(rows, metric) if rows else None)


def _test_variance(rows: Sequence[Mapping[str, float]], metric: Metric) -> float | None:
    """Returns an upper bound of a metric's variance over test sets of the same size; None if it is unknown.

    The metrics of one source share test rows and may be fully correlated. Metrics of different sources are independent.

    Args:
      rows: metrics of each seed.
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
    """Returns the number of test rows of a metric: the first declared count that is reported; None if there is none."""
    keys = (f"{group}/{count}" for group in declarations.groups(name) for count in (declared.rows if declared else ()))
    return next((metrics[key] for key in keys if metrics.get(key, 0) > 0), None)


def _beats_trivial(rows: Sequence[Mapping[str, float]], metric: Metric, sign: int) -> bool:
    """Whether the 95 % interval of a run's gain over the trivial predictor is above 0.

    If a single metric has no value of a trivial predictor, the `real_loss` next to the metric is tested instead.
    Returns True if there is no value of a trivial predictor to compare with.
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
    """Whether the results of a run count as results of `name`.

    They count if the run is called NAME or NAME-…. Runs that were tuned from NAME are called NAME-….
    """
    return run == name or run.startswith(f"{name}-")


def _by_name(results: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Returns the results that count for each name (`counts_for`).

    If a run counts for several names, only the longest name is used: `rms-gelu-tuned` counts for `rms-gelu` and not for
    `rms`.
    """
    grouped: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for result in results:
        name = max((name for name in names if counts_for(result["name"], name)), key=len, default=None)
        if name is not None:
            grouped[name].append(result)
    return grouped


def compare_with_paper(
    results: Sequence[dict[str, Any]],
    published: Sequence[Published],
    name: str,
    metric: Metric | SubstituteMetric,
    is_primary: bool = True,
) -> list[PaperComparison]:
    """Compares runs with the results of a paper by one metric.

    Args:
      results: results in the format of `table`, each with its `seed`. Results of a run NAME-… count for NAME.
      published: results of the paper; they may be empty.
      name: the paper's name of the metric.
      metric: our metric.
      is_primary: whether rows have verdicts.

    Returns:
      A row for each published run or, if nothing is published, for each run. The first row is the reference.
    """
    published = published or [Published(run, {}, "") for run in dict.fromkeys(result["name"] for result in results)]
    if not published:
        return []
    is_stand_in, our_metric = isinstance(metric, SubstituteMetric), get_metric(metric)
    declared, by_name = _declared(our_metric), _by_name(results, [row.run for row in published])
    rows = [_metrics_of(by_name[row.run]) for row in published]
    base, *samples = (_sample(run_rows, our_metric) for run_rows in rows)
    missing = [
        "" if sample.values else _missing(by_name[row.run], our_metric)
        for row, sample in zip(published, [base, *samples], strict=True)
    ]
    figures = [_paper(row, name, declared) for row in published]
    directions = _directions(base, samples, declared)
    sign = 0 if declared is None else declared.sign
    no_verdict = "" if sign else NO_DIRECTION
    if len(base.values) > 1 and not no_verdict and not _beats_trivial(rows[0], our_metric, sign):
        no_verdict = TRIVIAL_REFERENCE
    compared = [PaperComparison(published[0].run, figures[0], None, base.values, None, "", missing[0])]
    for row, paper_value, sample, direction, reason in zip(
        published[1:], figures[1:], samples, directions, missing[1:], strict=True
    ):
        paper_difference = None if paper_value is None or figures[0] is None else paper_value - figures[0]
        difference = significance.difference(sample, base) if sample.values and base.values else None
        verdict = ""
        if is_primary and difference is None:
            verdict = NOT_RUN if NOT_RUN in (reason, missing[0]) else NO_METRIC
        elif is_primary:
            verdict = no_verdict or (OTHER_METRIC if is_stand_in and paper_value is not None else "")
            verdict = verdict or (ONE_SEED if min(len(sample.values), len(base.values)) < 2 else "")
            verdict = verdict or _verdict(paper_difference and paper_difference * sign, direction)
        compared.append(
            PaperComparison(row.run, paper_value, paper_difference, sample.values, difference, verdict, reason)
        )
    return compared


def _paper(row: Published, name: str, declared: declarations.Metric | None) -> float | None:
    """Returns a paper's result in the unit of our metric."""
    paper = row.figures.get(name)
    return paper if paper is None or declared is None else declared.from_percent(paper)


def _directions(base: Sample, samples: Sequence[Sample], declared: declarations.Metric | None) -> list[int]:
    """Returns 1 for each row that is significantly better than the reference, -1 if significantly worse, else 0."""
    rejected = significance.holm(significance.p_values(base, samples))
    directions = []
    for sample, is_beyond in zip(samples, rejected, strict=True):
        gain = statistics.fmean(sample.values) - statistics.fmean(base.values) if is_beyond else 0
        directions.append(0 if declared is None else declared.sign * ((gain > 0) - (gain < 0)))
    return directions


def _verdict(paper_gain: float | None, direction: int) -> str:
    """Returns the verdict on a row, where `direction` comes from `_directions`.

    `paper_gain` is positive if the row is better than the reference in the paper, and None if the paper lacks a result.
    """
    if not direction:
        return NOT_SIGNIFICANT
    if not paper_gain:
        verdict = BETTER if direction > 0 else WORSE
        return verdict if paper_gain is None else f"{verdict}, no difference in the paper"
    return AGREES if direction * paper_gain > 0 else DISAGREES


def changed_targets(runs: Sequence[config.Run]) -> list[str]:
    """Returns the fields of the config sections in `_TARGETS` that differ between runs, except `data.cache_dir`.

    The fields are compared with the values that they have in validation.
    """
    validated = map(config.in_validation, runs)
    first, *trees = ({name: config.to_dict(getattr(run, name)) for name in _TARGETS} for run in validated)
    fields = dict.fromkeys(row.field for tree in trees for row in config.differences(first, tree))
    return [field for field in fields if field != "data.cache_dir"]


def default_comparison(results: Sequence[dict[str, Any]], changed: Sequence[str] = ()) -> tuple[dict[str, Metric], str]:
    """Returns the default of `compared`, for a sweep whose file does not define it.

    The default is a single metric that all finished runs have and whose direction is declared. The first metric with a
    trivial predictor is chosen. If no metric has a trivial predictor, the first metric is chosen. If the runs differ in
    their targets, metrics of language models are left out.

    Args:
      results: results in the format of `table`.
      changed: result of `changed_targets`.

    Returns:
      A pair of a dict and a reason. The dict has one metric or none, and the reason says why there is none. The reason
      is empty if there is a metric, or if fewer than two runs are finished.
    """
    finished = [result["metrics"] for result in results if result["metrics"]]
    if len({result["name"] for result in results if result["metrics"]}) < 2:
        return {}, ""
    rows = {name: [metrics for metrics in finished if name in metrics] for metrics in finished for name in metrics}
    names = [name for name in rows if (declared := declarations.declared(name)) is not None and declared.sign]
    names.sort(key=lambda name: trivial_value(rows[name][0], name) is None)
    shared = [name for name in names if len(rows[name]) == len(finished)]
    for name in shared:
        if not changed or any(f"{group}/examples" in finished[0] for group in declarations.groups(name)):
            return {name: name}, ""
    example = max(names, key=lambda name: len(rows[name]), default="SOURCE/METRIC")
    remedy = f'choose a metric, such as compared = {{"{example.rpartition("/")[2]}": "{example}"}}'
    if not shared:
        return {}, f"no comparison: the runs have no metric in common whose direction is known: {remedy}"
    fields = ", ".join(changed[:_MAX_FIELDS]) + (" and more" if len(changed) > _MAX_FIELDS else "")
    if all(field.startswith("objective.") and field != "objective.kind" for field in changed):
        remedy = f"set the same evaluation.objective in all runs, or {remedy}"
    problem = f"the runs differ in {fields}, so their language models are validated on different targets"
    return {}, f"no comparison: {problem}: {remedy}"


def paper_table(
    results: Sequence[dict[str, Any]],
    published: Sequence[Published],
    compared: Mapping[str, Metric | SubstituteMetric],
    name: str | None = None,
) -> Lines:
    """Returns a table that compares each run with the first run and, if there are any, with the results of a paper.

    Args:
      results: results in the format of `table`, each with its `seed`.
      compared: dict from the paper's name of a metric to our metric that is compared with the paper. The first metric
        is the primary metric, and only its rows have verdicts.
      name: key of `compared` to show. None shows all keys, with a column for the metric.
    """
    head = ["Run"] if name is not None else ["Metric", "Run"]
    has_paper = any(_is_in_paper(published, paper_name) for paper_name in (compared if name is None else [name]))
    head += ["Paper", "vs. first"] if has_paper else []
    is_tested = name in (None, next(iter(compared), None))
    head += ["Ours" if has_paper else "Value", f"vs. first {INTERVAL}", *(["Verdict"] if is_tested else []), "Seeds"]
    lines = [tuple(head)]
    for index, (paper_name, metric) in enumerate(compared.items()):
        if name not in (None, paper_name):
            continue
        rows = compare_with_paper(results, published, paper_name, metric, is_primary=not index)
        number_format = _readable(_declared(get_metric(metric)), *(row.values for row in rows))
        for row_index, row in enumerate(rows):
            cells = [row.run] if name is not None else [title(paper_name, metric, published), row.run]
            if has_paper:
                cells.append("not available" if row.paper is None else figure([row.paper], number_format))
                cells.append(
                    "" if row.paper_difference is None else signed(MeanDifference(row.paper_difference), number_format)
                )
            cells.append(row.missing or figure(row.values, number_format))
            cells.append("" if row.difference is None else signed(row.difference, number_format))
            cells += ([row.verdict if row_index or index else "reference"] if is_tested else []) + [
                str(len(row.values) or "")
            ]
            lines.append(tuple(cells))
    return lines


def get_metric(metric: Metric | SubstituteMetric) -> Metric:
    """Returns the metric of our runs in an item of `compared`."""
    return metric.metric if isinstance(metric, SubstituteMetric) else metric


def to_json(metric: Metric | SubstituteMetric) -> Any:
    """Returns an item of `compared` in the form in which sweep.json stores it."""
    return {"stand_in": metric.metric} if isinstance(metric, SubstituteMetric) else metric


def title(name: str, metric: Metric | SubstituteMetric, published: Sequence[Published] = ()) -> str:
    """Returns the title of a comparison.

    Args:
      name: the paper's name of the metric.
      metric: our metric.
      published: results of the paper. If they contain `name`, and our metric is called METRIC instead, the title is
        `NAME vs. our METRIC`.
    """
    our_name = metric_name(get_metric(metric))
    if _is_in_paper(published, name) and name != our_name:
        return f"{name} vs. our {our_name}"
    return our_name if name in (our_name, our_name.rpartition("/")[2]) else f"{name} ({our_name})"


def _is_in_paper(published: Sequence[Published], name: str) -> bool:
    """Whether a paper has a result of its metric `name` for at least one run."""
    return any(name in row.figures for row in published)


def _readable(metric: declarations.Metric | None, *samples: Sequence[float]) -> declarations.Metric | None:
    """Returns the metric if all values are in its range, otherwise None. The result determines the format of values."""
    fits = metric is not None and all(declarations.fits(metric, value) for values in samples for value in values)
    return metric if fits else None


def table(results: Sequence[dict[str, Any]]) -> Lines:
    """Returns a table of the metrics of runs: mean ± sample standard deviation if there are several seeds.

    If some metrics of a task have a trivial predictor, only these metrics are shown, with the gain over the predictor
    and, with several seeds, the 95 % interval of the gain. For other tasks, all metrics are shown.

    Args:
      results: dicts with `name`, `error` (None without an error), `minutes`, and `metrics` (a dict from TASK/METRIC to
        value). A run with neither an error nor metrics has not finished yet. Runs with the same name are seeds of one
        run.
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
    """Whether a metric has a declared direction and a value for the trivial predictor."""
    declared = declarations.declared(name)
    return declared is not None and declared.sign != 0 and trivial_value(metrics, name) is not None


def figure(values: Sequence[float], metric: declarations.Metric | None = None) -> str:
    """Formats the mean of values, with the sample standard deviation if there are several values.

    Shares are in percent.
    """
    return declarations.shown_seeds(metric, values)


def signed(difference: MeanDifference, metric: declarations.Metric | None = None) -> str:
    """Formats a difference with its sign, and with its interval if it has one.

    Differences of shares are in percentage points.
    """
    scale = 100 if metric is not None and metric.is_share else 1
    digits = 2 if scale == 100 else 3
    mean, low, high = (None if value is None else f"{scale * value:+,.{digits}f}" for value in difference)
    return f"{mean}" if low is None else f"{mean} [{low}, {high}]"


def metric_name(metric: Metric) -> str:
    """Returns the name of a metric; for a sequence of metrics, `mean of …`."""
    return metric if isinstance(metric, str) else f"mean of {', '.join(map(metric_name, metric))}"
