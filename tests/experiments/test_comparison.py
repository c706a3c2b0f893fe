import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats

from benchmarks import verdicts
from plm_jax import config, objectives
from plm_jax.common import metrics, overrides
from plm_jax.common.errors import UserError
from plm_jax.experiments import comparison, significance
from tests.support import tiny


def result(name, error=None, minutes=1.0, seed=0, **metrics):
    """Returns a run's result for `comparison.table`; `a__b` is the metric a/b."""
    metrics = {key.replace("__", "/"): value for key, value in metrics.items()}
    return {"name": name, "seed": seed, "error": error, "minutes": minutes, "metrics": metrics}


def seeded(runs, *metrics, **more):
    """Returns results of runs whose seeds have these values of each of the metrics."""
    return [
        result(name, seed=seed, **dict.fromkeys(metrics, value), **more)
        for name, values in runs.items()
        for seed, value in enumerate(values)
    ]


def published(name, **figures):
    """Returns a figure that a paper reports of each run."""
    return [comparison.Published(run, {name: figure}, "A") for run, figure in figures.items()]


@pytest.fixture
def declare(monkeypatch):
    """Declares metrics for one test."""
    monkeypatch.setattr(metrics, "_DECLARED", dict(metrics._DECLARED))
    return metrics.declare


def cells(table):
    """The table's lines after the head, as lists."""
    return [list(line) for line in table[1:]]


@pytest.mark.parametrize(
    ("metrics", "rows"),
    [
        (
            {"loss": 5.0, "real_loss": 4.5, "unigram_loss": 5.25, "pair_accuracy": 0.75, "pair_constant_accuracy": 0.5}
            | {"discriminator_auc": 0.625},
            [
                ["real_loss", "4.500", "5.250", "+0.750"],
                ["pair_accuracy", "75.00 %", "50.00 %", "+25.00"],
                ["discriminator_auc", "62.50 %", "50.00 %", "+12.50"],
            ],
        ),
        ({"real_loss": 6.0, "unigram_loss": 5.5}, [["real_loss", "6.000", "5.500", "-0.500"]]),
        (
            {"examples": 90.0, "accuracy": 0.75, "f1": 0.5, "most_frequent_accuracy": 0.25},
            [["accuracy", "75.00 %", "25.00 %", "+50.00"]],
        ),
        ({"examples": 9.0, "f1": 0.75, "trivial_f1": 0.25}, [["f1", "75.00 %", "25.00 %", "+50.00"]]),
        ({"mine": 12.5, "count": 1043.0}, [["mine", "12.500", "", ""], ["count", "1,043.000", "", ""]]),
    ],
    ids=["language model", "worse than trivial", "answers", "labels", "without a trivial predictor"],
)
def test_metrics_are_compared_with_their_trivial_predictor(metrics, rows):
    table = comparison.table([result("one", **{f"a__{name}": value for name, value in metrics.items()})])
    assert cells(table) == [["one", f"a/{row[0]}", *row[1:], "1", "1.0"] for row in rows]


def test_seeds_are_one_row_with_their_spread():
    losses = [4.0, 4.25, 5.0]
    seeds = [result("one", minutes=i, a__real_loss=x, a__unigram_loss=5.0 + i) for i, x in enumerate(losses)]
    (row,) = cells(comparison.table(seeds))
    gains = 5.0 + np.arange(3) - losses
    assert row[2] == f"{np.mean(losses):.3f} ± {np.std(losses, ddof=1):.3f}"
    interval = scipy.stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    assert row[4] == f"{gains.mean():+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"
    assert row[5:] == ["3", "1.0"]


def test_a_gain_of_rounding_is_zero():
    # One of them is 1 - x, so they differ by rounding.
    same = {"a__pair_accuracy": 1 - 0.242, "a__pair_constant_accuracy": 0.758 - 2e-16}
    (row,) = cells(comparison.table([result("one", **same)] * 3))
    assert row[4] == "+0.00"


def test_a_failure_has_a_row_and_the_other_seeds_theirs():
    one = {"a__real_loss": 4.0, "a__unigram_loss": 5.0}
    table = comparison.table([result("one", **one), result("one", error="out | of memory"), result("two", **one)])
    assert "| one | failed: out \\| of memory |" in comparison.to_markdown(table)
    rows = cells(table)
    assert [(row[0], row[1]) for row in rows] == [
        ("one", "failed: out | of memory"),
        ("one", "a/real_loss"),
        ("two", "a/real_loss"),
    ]
    assert rows[1][5] == "1"


def test_baselines_have_welchs_interval():
    ours, other = [0.81, 0.83, 0.82], [0.60, 0.70, 0.64]
    results = seeded({"tuned": ours}, "s/accuracy", s__most_frequent_accuracy=0.5)
    results += seeded({"scratch": other}, "s/accuracy")
    baselines = {"trivial": "s/most_frequent_accuracy", "words": 0.815, "random weights": "scratch"}
    head, row = comparison.baselines_table(results, [comparison.Baselines("tuned", "s/accuracy", baselines)])
    assert head == ("Run", "Metric", "Value", *(cell for name in baselines for cell in (name, "gain [95 %]")))
    assert row[:4] == ("tuned", "s/accuracy", "82.00 ± 1.00 %", "50.00 ± 0.00 %")
    interval = scipy.stats.ttest_ind(ours, other, equal_var=False).confidence_interval(0.95)
    assert row[8] == f"+17.33 [{100 * interval.low:+.2f}, {100 * interval.high:+.2f}]"
    interval = scipy.stats.ttest_1samp(np.subtract(ours, 0.815), 0).confidence_interval(0.95)
    assert row[6] == f"+0.50 [{100 * interval.low:+.2f}, {100 * interval.high:+.2f}]"
    (loss,) = cells(
        comparison.baselines_table([result("a", s__loss=3.0)], [comparison.Baselines("a", "s/loss", {"b": 4.0})])
    )
    assert loss[2:] == ["3.000", "4.000", "+1.000"]


SEEDS = st.lists(st.floats(0, 1).map(lambda x: round(x, 3)), min_size=2, max_size=6)


@hypothesis.settings(deadline=None)
@hypothesis.given(SEEDS, SEEDS)
def test_the_interval_is_welchs(values, base):
    difference = significance.difference(significance.Sample(values), significance.Sample(base))
    if len({*values}) == len({*base}) == 1:
        assert difference[1:] == (None, None)
        return
    expected = scipy.stats.ttest_ind(values, base, equal_var=False).confidence_interval(0.95)
    assert difference == pytest.approx((np.mean(values) - np.mean(base), expected.low, expected.high))


@hypothesis.settings(deadline=None)
@hypothesis.given(SEEDS, st.lists(SEEDS, min_size=1, max_size=5))
def test_no_row_is_tested_less_carefully_than_by_welch_with_its_freedom(base, rows):
    """P-values are those of Welch's statistic with variances of at least those of the seeds."""
    p_values = significance.p_values(significance.Sample(base), [significance.Sample(row) for row in rows])
    upper = np.quantile([np.var(of, ddof=1) for of in (base, *rows)], 0.75)
    for row, value in zip(rows, p_values, strict=True):
        variances = [max(np.var(of, ddof=1), upper) / len(of) for of in (row, base)]
        if not sum(variances):
            assert value is None
            continue
        freedom = sum(variances) ** 2 / sum(v**2 / (len(of) - 1) for v, of in zip(variances, (row, base), strict=True))
        distance = abs(np.mean(row) - np.mean(base)) / sum(variances) ** 0.5
        assert value == pytest.approx(2 * scipy.stats.t.sf(distance, freedom), abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_holm_rejects_what_every_subset_would(seed):
    """Holm's method is the closed test of Bonferroni's: a row is rejected if each set with it has a small p-value."""
    values = np.random.default_rng(seed).random(5) ** 4 * 0.1
    sets = [np.flatnonzero([number >> i & 1 for i in range(5)]) for number in range(1, 32)]
    expected = [all(values[of].min() <= 0.05 / len(of) for of in sets if i in of) for i in range(5)]
    rejected = significance.holm([*values[:2], None, *values[2:]])
    assert rejected.pop(2) is False and rejected == expected


@pytest.mark.parametrize("limits", [(0.0, 1.0), (-1.0, 1.0), (0.0, 100.0)])
def test_no_mean_over_test_rows_varies_more_than_the_bound(limits):
    rng, (low, high) = np.random.default_rng(0), limits
    for draw in (lambda size: rng.random(size) < 0.3, rng.random, lambda size: rng.beta(0.2, 0.8, size)):
        means = (low + (high - low) * draw((4000, 50))).mean(1)
        bound = significance.bounded_variance(means.mean(), limits, 50)
        assert means.var() < 1.1 * bound
    assert significance.bounded_variance(high, limits, 50) > 0


def compared(values, base, paper=2.0, paper_base=1.0, name="MNLI", metric="s/accuracy", more=None):
    """Returns the comparison of a run with a paper's figures and the reference, for these values of the seeds."""
    leaf = metric.metric if isinstance(metric, comparison.SubstituteMetric) else metric
    results = seeded({"b": values, "a": base}, leaf, **(more or {}))
    first, second = comparison.compare_with_paper(results, published(name, a=paper_base, b=paper), name, metric)
    assert (first.run, first.verdict, first.difference, first.paper_difference) == ("a", "", None, None)
    assert second.values == list(values)
    return second


def verdict(*arguments, **more):
    return compared(*arguments, **more).verdict


WORSE, BETTER = [3.0, 3.01, 3.02], [2.0, 2.01, 2.02]
LOW, HIGH = [0.3, 0.31, 0.32], [0.7, 0.71, 0.72]


def test_a_papers_shares_are_per_cent_and_ours_fractions():
    compared_row = compared(HIGH, LOW, paper=84.5, paper_base=80.0)
    assert (compared_row.paper, compared_row.paper_difference) == pytest.approx((0.845, 0.045))
    assert compared_row.difference.mean == pytest.approx(0.4) and compared_row.verdict == comparison.AGREES
    assert compared(BETTER, WORSE, 24.5, 21.4, metric="s/bleu").paper == 24.5
    head, first, second = comparison.paper_table(
        seeded({"a": LOW, "b": LOW}, "s/accuracy"), published("GLUE", a=83.28, b=80.0), {"GLUE": "s/accuracy"}
    )
    row = dict(zip(head, second, strict=True))
    assert row["Paper"] == "80.00 %" and row["Ours"] == "31.00 ± 1.00 %" and row["vs. first"] == "-3.28"
    assert first[head.index("Verdict")] == "reference" and head.index("Verdict") > head.index("vs. first [95 %]")


@pytest.mark.parametrize(
    ("metric", "more_is_better"),
    [
        *[
            (f"s/{name}", False)
            for name in ("real_loss", "wer", "perplexity", "mse", "generator_loss", "bits_per_byte")
        ],
        *[(f"s/{name}", True) for name in ("accuracy", "bleu", "5_shots/f1", "acc_norm,none")],
    ],
)
def test_the_direction_of_a_metric_is_that_of_its_declaration(metric, more_is_better, declare):
    declare("wer", metrics.Metric("less", rows=("examples",)))
    assert verdict(WORSE, BETTER, 90.0, 80.0, "MNLI", metric) == comparison.AGREES
    assert verdict(WORSE, BETTER, 80.0, 90.0, "MNLI", metric) == comparison.DISAGREES
    better = comparison.BETTER if more_is_better else comparison.WORSE
    assert verdict(WORSE, BETTER, 1.0, 1.0, "MNLI", metric) == f"{better}, no difference in the paper"


@pytest.mark.parametrize("metric", ["error", "wer", "nll_of_mine"])
def test_an_undeclared_metric_has_no_verdict(metric):
    row = compared(WORSE, BETTER, metric=f"s/{metric}")
    assert row.verdict == comparison.NO_DIRECTION and row.difference.mean == pytest.approx(1.0)


def test_a_mean_of_metrics_has_the_direction_and_the_unit_that_all_have():
    names = ("c/matthews_corrcoef", "s/accuracy", "s/f1", "s/loss", "s/mine")
    results, figures = seeded({"a": LOW, "b": HIGH}, *names), published("GLUE", a=80.0, b=83.0)

    def row_of(metric):
        return comparison.compare_with_paper(results, figures, "GLUE", metric)[1]

    shares = row_of(("c/matthews_corrcoef", ("s/accuracy", "s/f1")))
    assert shares.verdict == comparison.AGREES and shares.paper == pytest.approx(0.83)
    assert row_of(("s/accuracy", "s/loss")).verdict == row_of(("s/f1", "s/mine")).verdict == comparison.NO_DIRECTION


def test_metrics_of_one_source_may_vary_together_those_of_others_do_not():
    more = {"a__accuracy": 0.5, "a__f1": 0.5, "a__examples": 100, "b__accuracy": 0.5, "b__examples": 100}
    one = comparison._test_variance([result("x", **more)["metrics"]], "a/accuracy")
    assert one == pytest.approx(0.25 / 102)
    for metric, factor in ((("a/accuracy", "a/f1"), 1.0), (("a/accuracy", "b/accuracy"), 0.5)):
        assert comparison._test_variance([result("x", **more)["metrics"]], metric) == pytest.approx(factor * one)


def test_a_metric_is_declared_once():
    with pytest.raises(UserError, match="metric 'accuracy' is declared as "):
        metrics.declare("accuracy", metrics.Metric("less"))
    with pytest.raises(UserError, match="unit of a metric is 'percent': use one of fraction"):
        metrics.Metric("more", "percent")


def test_a_stand_in_for_the_papers_metric_has_no_verdict_of_direction():
    stand_in = comparison.SubstituteMetric("s/accuracy")
    assert verdict(HIGH, LOW, metric=stand_in) == comparison.OTHER_METRIC
    results = seeded({"a": LOW, "b": HIGH}, "s/accuracy")
    figures = [comparison.Published(name, {}, "") for name in "ab"]
    assert comparison.compare_with_paper(results, figures, "GLUE", stand_in)[1].verdict == comparison.BETTER


@pytest.mark.parametrize(
    ("trivial", "name"),
    [
        *[(f"s__{trivial}", "s/accuracy") for trivial in ("trivial_accuracy", "most_frequent_accuracy", "chance")],
        ("s__trivial_accuracy", "s/5_shots/accuracy"),
    ],
)
def test_a_reference_at_chance_resolves_nothing(trivial, name):
    assert verdict(HIGH, LOW, metric=name, more={trivial: 0.31}) == comparison.TRIVIAL_REFERENCE
    # The mean is higher by less than seeds differ, then by more.
    assert verdict(HIGH, LOW, metric=name, more={trivial: 0.305}) == comparison.TRIVIAL_REFERENCE
    assert verdict(HIGH, LOW, metric=name, more={trivial: 0.2}) == comparison.AGREES
    # With 20 test rows, 31 % is not significantly above 20 %.
    assert verdict(HIGH, LOW, metric=name, more={trivial: 0.2, "s__examples": 20}) == comparison.TRIVIAL_REFERENCE


def test_a_language_model_at_the_unigrams_loss_resolves_nothing():
    for unigram, expected in ((2.01, comparison.TRIVIAL_REFERENCE), (3.0, comparison.DISAGREES)):
        results = seeded({"a": LOW, "b": HIGH}, "s/accuracy", s__unigram_loss=unigram)
        for one in results:
            one["metrics"]["s/real_loss"] = 2.0 + one["seed"] / 100
        rows = comparison.compare_with_paper(results, published("MLM", a=54.9, b=54.0), "MLM", "s/accuracy")
        assert rows[1].verdict == expected


def test_a_correlation_of_the_reference_must_be_above_0():
    assert verdict(HIGH, [-0.01, 0.0, 0.01], metric="s/pearson") == comparison.TRIVIAL_REFERENCE
    assert verdict(HIGH, LOW, metric="s/pearson") == comparison.AGREES


def test_no_spread_over_seeds_is_no_certainty():
    same, other = [0.5] * 3, [0.6] * 3
    assert verdict(other, same) == comparison.NOT_SIGNIFICANT
    row = compared(other, same, more={"s__examples": 40})
    # Binomial variances of 20 and 24 hits in 40, with one more hit and one more miss each.
    width = 1.959964 * ((21 / 42 * 21 / 42 + 25 / 42 * 17 / 42) / 42) ** 0.5
    assert row.difference == pytest.approx((0.1, 0.1 - width, 0.1 + width))
    assert row.verdict == comparison.NOT_SIGNIFICANT
    assert compared(other, same, more={"s__examples": 4000}).verdict == comparison.AGREES
    assert compared([1.0] * 3, [0.95] * 3, more={"s__examples": 40}).verdict == comparison.NOT_SIGNIFICANT


def test_without_two_seeds_there_is_no_verdict_and_no_interval():
    for values, base in (([0.9], [0.1, 0.2]), ([0.9, 0.9], [0.1])):
        for metric, more in (("s/accuracy", None), ("s/accuracy", {"s__examples": 4000}), ("s/loss", None)):
            row = compared(values, base, metric=metric, more=more)
            assert row.verdict == comparison.ONE_SEED and row.difference.low is None
    results = [result("a", s__accuracy=0.5), result("c", error="full disk"), result("b", s__accuracy=0.25)]
    figures = {"a": {"GLUE": 83.28, "SQuAD": 80.88}, "b": {}, "c": {"GLUE": 80.69}}
    papers = [comparison.Published(name, of_run, "Table 4") for name, of_run in figures.items()]
    assert cells(comparison.paper_table(results, papers, {"GLUE": "s/accuracy"})) == [
        ["GLUE vs. our s/accuracy", "a", "83.28 %", "", "50.00 %", "", "reference", "1"],
        ["GLUE vs. our s/accuracy", "b", "not available", "", "25.00 %", "-25.00", "no verdict: one seed", "1"],
        ["GLUE vs. our s/accuracy", "c", "80.69 %", "-2.59", "not run yet", "", "not run yet", ""],
    ]


@pytest.mark.parametrize("lost", [[np.nan, 0.5, 0.6], [0.5, np.nan, 0.6], [0.5, 0.6, np.nan]])
def test_a_diverged_seed_changes_no_other_test(lost):
    rows = [significance.Sample(values) for values in ([0.806, 0.806, 0.8065], [0.5, 0.6, 0.7], [0.3, 0.5, 0.4])]
    reference = significance.Sample([0.8, 0.8, 0.801])
    expected = significance.p_values(reference, rows)
    assert expected[0] > 0.9
    assert significance.p_values(reference, [*rows, significance.Sample(lost)]) == [*expected, None]


def test_a_run_that_diverged_resolves_nothing_and_spoils_no_other():
    results = seeded({"a": WORSE, "b": [2.0, np.nan, 2.02], "c": BETTER}, "s/loss")
    rows = comparison.compare_with_paper(results, [], "loss", "s/loss")
    assert [row.verdict for row in rows] == ["", comparison.NOT_SIGNIFICANT, comparison.BETTER]
    assert comparison.compare_with_paper(results[3:], [], "loss", "s/loss")[1].verdict == comparison.NOT_SIGNIFICANT


def test_only_the_first_metric_of_a_page_has_verdicts():
    results = seeded({"a": LOW, "b": HIGH}, "s/accuracy", "t/accuracy", "s/f1")
    names = {"A": "t/accuracy", "B": "s/accuracy", "C": "s/f1"}
    head, *lines = comparison.paper_table(results, [], names)
    verdicts = [line[head.index("Verdict")] for line in lines]
    assert verdicts == ["reference", comparison.BETTER, "", "", "", ""] and "Paper" not in head
    assert all("[" in line[head.index("vs. first [95 %]")] for line in lines[1::2])
    assert "Verdict" not in comparison.paper_table(results, [], names, "B")[0]


@pytest.mark.parametrize(
    ("name", "metric", "expected", "expected_with_paper"),
    [
        ("accuracy", "s/accuracy", "s/accuracy", "accuracy vs. our s/accuracy"),
        ("s/accuracy", "s/accuracy", "s/accuracy", "s/accuracy"),
        ("reviews", "s/accuracy", "reviews (s/accuracy)", "reviews vs. our s/accuracy"),
        ("mean", ("s/f1", "t/f1"), "mean (mean of s/f1, t/f1)", "mean vs. our mean of s/f1, t/f1"),
    ],
)
def test_only_comparisons_with_a_paper_distinguish_its_results_from_ours(name, metric, expected, expected_with_paper):
    results = seeded({"a": LOW, "b": HIGH}, "s/accuracy", "s/f1", "t/f1")
    for papers, value, first in (([], "Value", expected), (published(name, a=1.0), "Ours", expected_with_paper)):
        head, *lines = comparison.paper_table(results, papers, {name: metric})
        assert value in head and {line[0] for line in lines} == {comparison.title(name, metric, papers)} == {first}


def test_a_page_corrects_for_all_of_its_rows():
    rng = np.random.default_rng(0)
    rows = 5 + 0.1 * rng.normal(size=(10, 3))
    rows[1] = rows[0] + 0.6
    alone = significance.p_values(significance.Sample(rows[0]), [significance.Sample(rows[1])])[0]
    assert alone < 0.05
    results = seeded({f"r{i}": row for i, row in enumerate(rows)}, "s/loss")
    few = [one for one in results if one["name"] in ("r0", "r1")]
    assert comparison.compare_with_paper(few, [], "loss", "s/loss")[1].verdict == comparison.WORSE
    compared_rows = comparison.compare_with_paper(results, [], "loss", "s/loss")
    tested = significance.p_values(significance.Sample(rows[0]), [significance.Sample(row) for row in rows[1:]])
    assert [row.verdict == comparison.WORSE for row in compared_rows[1:]] == significance.holm(tested)


@pytest.mark.parametrize(("changed", "expected"), [((), "s/real_loss"), (("objective.rate",), "m/accuracy")])
def test_a_sweep_that_names_no_metric_is_compared_by_one_that_all_runs_have(changed, expected):
    figures = {"s__tokens": 9.0, "s__loss": 2.0, "s__real_loss": 2.0, "s__unigram_loss": 3.0, "s__mine": 1.0}
    figures |= {"m__examples": 10.0, "m__accuracy": 0.5, "m__trivial_accuracy": 0.25}
    results = [result("a", **figures), result("b", **figures)]
    assert comparison.default_comparison(results, changed) == ({expected: expected}, "")
    assert comparison.default_comparison(results[:1], changed) == ({}, "")
    results[1]["metrics"] = {"other/accuracy": 0.5}
    compared, reason = comparison.default_comparison(results, changed)
    assert compared == {} and reason == (
        "no comparison: the runs have no metric in common whose direction is known: choose a metric, such as "
        'compared = {"real_loss": "s/real_loss"}'
    )


@pytest.mark.parametrize(
    ("changed", "problem", "remedy"),
    [
        (["objective.rate"], "objective.rate", "set the same evaluation.objective in all runs, or choose"),
        (["objective.kind", "objective.rate"], "objective.kind, objective.rate", "choose"),
        (["objective.rate", "data.length"], "objective.rate, data.length", "choose"),
        (["data.a", "data.b", "data.c", "data.d"], "data.a, data.b, data.c and more", "choose"),
    ],
)
def test_a_missing_comparison_has_a_reason_and_a_remedy(changed, problem, remedy):
    results = seeded({"a": WORSE, "b": BETTER}, "s/loss", "s/real_loss", s__unigram_loss=9.0)
    assert comparison.default_comparison(results, changed) == (
        {},
        f"no comparison: the runs differ in {problem}, so their language models are validated on different targets: "
        f'{remedy} a metric, such as compared = {{"real_loss": "s/real_loss"}}',
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"schedule.learning_rate": 1.0}, []),
        ({"objective.rate": 0.3}, ["objective.rate"]),
        ({"objective.rate": 0.3, "evaluation.objective": {"rate": 0.15}}, []),
        ({"objective.rate": 0.3, "evaluation.objective": {"rate": 0.2}}, ["objective.rate"]),
        ({"objective": objectives.SpanMaskedLM()}, ["objective"]),
        ({"data.length": 8, "data.cache_dir": "x"}, ["data.length"]),
    ],
)
def test_targets_are_those_of_validation(changes, expected):
    base = config.to_dict(tiny.RUNS["roberta"])
    runs = [config.from_dict(overrides.apply(base, list(of.items()), config.Run)) for of in ({}, changes, {})]
    assert comparison.changed_targets(runs) == expected


@pytest.mark.parametrize(("rows", "seeds"), [(10, 3), (17, 5)])
def test_with_nothing_true_few_pages_show_a_verdict(rows, seeds):
    """Fewer than 6 % of pages show a verdict, for normal and binomial metrics with at least 40 test rows."""
    rng, num_pages = np.random.default_rng(rows * seeds), 60
    test_sets = ((40, 0.02), (1000, 0.5))
    kinds = [(draw, test_set) for test_set in test_sets for draw in (verdicts.binomial, verdicts.shared_test_set)]
    for draw, test_set in [(verdicts.normal, ()), *kinds]:
        pages = (verdicts.page(draw(rng, rows, seeds, *test_set), *test_set[:1]) for _ in range(num_pages))
        assert sum(map(verdicts.shows, pages)) <= 0.06 * num_pages, draw


def test_an_effect_of_eight_deviations_is_found():
    (normal, binomial) = verdicts.power(60, seed=1, pages_of=((10, 3),))
    assert min(normal["with_effect_found"], binomial["with_effect_found"]) >= 0.8 * 60


def test_a_rival_may_be_another_metric_of_another_run():
    results = seeded({"tuned": (0.8, 0.82)}, "s/accuracy") + seeded({"prompted": (0.5, 0.52)}, "s/5_shots/accuracy")
    baselines = [comparison.Baselines("tuned", "s/accuracy", {"5 shots": ("prompted", "s/5_shots/accuracy")})]
    (row,) = cells(comparison.baselines_table(results, baselines))
    assert row[3] == "51.00 ± 1.41 %" and row[4].startswith("+30.00 [")


def test_tuned_runs_count_for_their_parent_and_several_metrics_have_a_mean():
    results = []
    for seed, value in enumerate((0.1, 0.2)):
        results += [result("a", seed=seed, s__x=value), result("b", seed=seed, s__x=0.5)]
        results += [result("b-t", seed=seed, t__x=value + 0.5), result("a-t", seed=seed, t__x=value, t__y=1.0)]
        results += [result("a_c", seed=seed, t__x=9.0)]
    figures = published("mean", a=1.0, b=2.0)
    first, second = comparison.compare_with_paper(results, figures, "mean", ("s/x", ("t/x", "t/y")))
    np.testing.assert_allclose(first.values, [(0.1 + 0.55) / 2, (0.2 + 0.6) / 2])
    assert second.values == []  # It has no t/y.
    assert comparison.compare_with_paper(results, figures, "mean", "t/x")[1].values == [0.6, 0.7]


def test_a_run_counts_for_the_longest_name_that_its_name_begins_with():
    results = [result("rms", s__x=1.0), result("rms-gelu", s__x=2.0), result("rms-gelu-tuned", t__x=3.0)]
    figures = [comparison.Published(name, {}, "") for name in ("rms", "rms-gelu")]
    tables = [comparison.compare_with_paper(results, figures, "x", metric) for metric in ("s/x", "t/x")]
    assert [[row.values for row in rows] for rows in tables] == [[[1.0], [2.0]], [[], [3.0]]]
