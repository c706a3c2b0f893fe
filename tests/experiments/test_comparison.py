import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats

from plm_jax.experiments import comparison


def result(name, error=None, minutes=1.0, seed=0, **metrics):
    """What `comparison.table` takes of a run; `a__b` stands for a/b."""
    metrics = {key.replace("__", "/"): value for key, value in metrics.items()}
    return {"name": name, "seed": seed, "error": error, "minutes": minutes, "metrics": metrics}


def cells(table):
    """The table's lines after the head, as lists."""
    return [list(line) for line in table[1:]]


def test_what_has_a_trivial_predictor_stands_beside_it():
    metrics = {
        "a__loss": 5.0,
        "a__real_loss": 4.5,
        "a__unigram_loss": 5.25,
        "a__pair_accuracy": 0.75,
        "a__pair_constant_accuracy": 0.5,
        "a__discriminator_auc": 0.625,
    }
    assert cells(comparison.table([result("one", **metrics)])) == [
        ["one", "a/real_loss", "4.500", "5.250", "0.750", "", "1", "1.0"],
        ["one", "a/pair_accuracy", "0.750", "0.500", "0.250", "", "1", "1.0"],
        ["one", "a/discriminator_auc", "0.625", "0.500", "0.125", "", "1", "1.0"],
    ]


def test_a_worse_model_is_better_by_less_than_nothing():
    ((*_, gain, _, _, _),) = cells(comparison.table([result("one", a__real_loss=6.0, a__unigram_loss=5.5)]))
    assert gain == "-0.500"


def test_answers_are_judged_by_the_most_frequent_one():
    metrics = {"qa__examples": 90.0, "qa__accuracy": 0.75, "qa__f1": 0.5, "qa__most_frequent_accuracy": 0.25}
    assert cells(comparison.table([result("one", **metrics)])) == [
        ["one", "qa/accuracy", "0.750", "0.250", "0.500", "", "1", "1.0"]
    ]


def test_labels_are_judged_by_the_answer_that_looks_at_no_text():
    metrics = {"ner__examples": 9.0, "ner__f1": 0.75, "ner__trivial_f1": 0.25}
    assert cells(comparison.table([result("one", **metrics)])) == [
        ["one", "ner/f1", "0.750", "0.250", "0.500", "", "1", "1.0"]
    ]


def test_a_task_without_a_trivial_predictor_shows_all_it_has():
    table = comparison.table([result("one", glue_cola__matthews=12.5, glue_cola__count=1043.0)])
    assert [row[1:4] for row in cells(table)] == [
        ["glue_cola/matthews", "12.500", ""],
        ["glue_cola/count", "1,043.000", ""],
    ]


def test_seeds_are_one_row_with_their_spread():
    losses = [4.0, 4.25, 5.0]
    seeds = [result("one", minutes=i, a__real_loss=x, a__unigram_loss=5.0 + i) for i, x in enumerate(losses)]
    (row,) = cells(comparison.table(seeds))
    gains = 5.0 + np.arange(3) - losses
    assert row[2] == f"{np.mean(losses):.3f} ± {np.std(losses, ddof=1):.3f}"
    assert row[4] == f"{gains.mean():.3f} ± {gains.std(ddof=1):.3f}"
    assert row[6:] == ["3", "1.0"]


# The limits, in standard errors, are the 99 % points of Student's t with 1 to 4 degrees of freedom. The gains have a
# sample standard deviation of 1.
@pytest.mark.parametrize(
    ("spread", "errors"),
    [
        ([-(0.5**0.5), 0.5**0.5], 31.821),
        ([-1, 0, 1], 6.965),
        ([-(0.75**0.5), -(0.75**0.5), 0.75**0.5, 0.75**0.5], 4.541),
        ([-1, -1, 0, 1, 1], 3.747),
    ],
)
def test_a_gain_is_told_from_the_noise_of_the_seeds(spread, errors):
    limit = errors / len(spread) ** 0.5
    for mean, said in ((limit - 0.001, "no"), (limit + 0.001, "yes"), (-limit - 1, "no")):
        gains = [mean + x for x in spread]
        (row,) = cells(comparison.table([result("one", a__real_loss=9.0 - x, a__unigram_loss=9.0) for x in gains]))
        assert row[5] == said


def test_no_gain_is_not_beyond_the_noise():
    # One of them is 1 - x, so they differ by rounding.
    same = {"a__pair_accuracy": 1 - 0.242, "a__pair_constant_accuracy": 0.758 - 2e-16}
    (row,) = cells(comparison.table([result("one", **same)] * 3))
    assert row[4:6] == ["0.000 ± 0.000", "no"]


def test_a_failure_has_a_row_and_the_other_seeds_theirs():
    one = {"a__real_loss": 4.0, "a__unigram_loss": 5.0}
    table = comparison.table([result("one", **one), result("one", error="out | of memory"), result("two", **one)])
    assert "| one | failed: out \\| of memory |" in comparison.markdown(table)
    rows = cells(table)
    assert [(row[0], row[1]) for row in rows] == [
        ("one", "failed: out | of memory"),
        ("one", "a/real_loss"),
        ("two", "a/real_loss"),
    ]
    assert rows[1][6] == "1"


def test_runs_stand_beside_their_rivals_with_welchs_test():
    ours, other = [0.81, 0.83, 0.82], [0.60, 0.70, 0.64]
    results = [result("tuned", s__accuracy=x, s__most_frequent_accuracy=0.5) for x in ours]
    results += [result("scratch", s__accuracy=x) for x in other]
    others = {"trivial": "s/most_frequent_accuracy", "words": 0.815, "random weights": "scratch"}
    found = comparison.beside(results, [comparison.Rivals("tuned", "s/accuracy", others)])
    (row,) = cells(found)
    assert found[0].count("better by") == 3
    assert row[:3] == ["tuned", "s/accuracy", "0.820 ± 0.010"]
    assert row[3:6] == ["0.500 ± 0.000", "+0.320", "yes"] and row[6:9] == ["0.815", "+0.005", "no"]
    expected = scipy.stats.ttest_ind(ours, other, equal_var=False, alternative="greater").pvalue
    assert row[11] == ("yes" if expected < 0.01 else "no")


@hypothesis.settings(deadline=None)
@hypothesis.given(*[st.lists(st.floats(0, 1).map(lambda x: round(x, 3)), min_size=2, max_size=6)] * 2)
def test_the_verdict_is_that_of_scipys_test(values, others):
    if len({*values}) == len({*others}) == 1:
        expected = values[0] > others[0]
    else:
        expected = scipy.stats.ttest_ind(values, others, equal_var=False, alternative="greater").pvalue < 0.01
    results = [result("a", s__x=x) for x in values] + [result("b", s__x=x) for x in others]
    (row,) = cells(comparison.beside(results, [comparison.Rivals("a", "s/x", {"b": "b"})]))
    assert row[5] == ("yes" if expected else "no")


def verdict(values, base, paper=2.0, paper_base=1.0, name="MNLI", metric="s/accuracy"):
    """What is said of a run beside a paper's figures, ours being of these seeds."""
    key = metric.replace("/", "__")
    seeded = [("b", *of) for of in enumerate(values)] + [("a", *of) for of in enumerate(base)]
    results = [result(name, seed=seed, **{key: value}) for name, seed, value in seeded]
    published = [comparison.Published("a", {name: paper_base}, "A"), comparison.Published("b", {name: paper}, "A")]
    first, second = comparison.beside_paper(results, published, name, metric)
    assert (first.run, first.verdict, first.difference, first.paper_difference) == ("a", "", None, None)
    assert second.values == list(values) and second.paper == paper
    return second.verdict


@hypothesis.settings(deadline=None)
@hypothesis.given(*[st.lists(st.floats(0, 1).map(lambda x: round(x, 3)), min_size=2, max_size=6)] * 2)
def test_the_verdict_beside_a_paper_is_that_of_scipys_two_sided_test(values, base):
    gain = np.mean(values) - np.mean(base)
    if len({*values}) == len({*base}) == 1:
        is_resolved = values[0] != base[0]
    else:
        is_resolved = scipy.stats.ttest_ind(values, base, equal_var=False).pvalue < 0.01
    for up in (1, -1):
        agrees = "agrees in direction beyond noise" if gain * up > 0 else "disagrees beyond noise"
        assert verdict(values, base, paper=5 + up, paper_base=5) == (agrees if is_resolved else "not resolved")


def test_less_is_better_of_losses_and_perplexities():
    worse, better = [3.0, 3.01, 3.02], [2.0, 2.01, 2.02]
    assert verdict(worse, better, 80.0, 90.0, "MNLI", "s/real_loss") == comparison.AGREES
    assert verdict(worse, better, 90.0, 80.0, "MNLI", "s/real_loss") == comparison.DISAGREES
    assert verdict(worse, better, 24.5, 21.4, "ELI5 PPL", "s/real_loss") == comparison.AGREES
    assert verdict(worse, better, 24.5, 21.4, "ELI5 PPL", "s/accuracy") == comparison.DISAGREES


def test_without_two_seeds_or_a_figure_or_a_difference_there_is_no_verdict():
    assert verdict([0.9], [0.1, 0.2]) == verdict([0.9, 0.9], [0.1]) == "not resolved"
    assert verdict([0.9, 0.8], [0.1, 0.2], paper=1.0) == "not resolved"
    results = [result("a", s__x=0.5), result("c", error="full disk"), result("b", s__x=0.25)]
    published = [
        comparison.Published("a", {"GLUE": 83.28, "SQuAD": 80.88}, "Table 4"),
        comparison.Published("b", {}, "Table 4"),
        comparison.Published("c", {"GLUE": 80.69}, "Table 4"),
    ]
    assert cells(comparison.papers(results, published, {"GLUE": "s/x"})) == [
        ["GLUE; s/x", "a", "83.28", "", "0.500", "", ""],
        ["GLUE; s/x", "b", "not at hand", "", "0.250", "-0.250", "not resolved"],
        ["GLUE; s/x", "c", "80.69", "-2.590", "not run yet", "", "not run yet"],
    ]


def test_where_a_paper_says_nothing_stands_what_ours_say():
    assert verdict([0.9, 0.91, 0.92], [0.1, 0.11, 0.12], paper=1.0) == "better beyond noise, no difference in the paper"
    results = [result("a", seed=seed, s__loss=0.5 + seed / 100) for seed in range(3)]
    results += [result("b", seed=seed, s__loss=0.7 + seed / 100) for seed in range(3)]
    published = [comparison.Published(name, {}, "not at hand") for name in "ab"]
    _, row = comparison.beside_paper(results, published, "loss", "s/loss")
    assert row.verdict == "worse beyond noise, no figure at hand"


def test_a_run_stands_beside_another_metric_of_another_run():
    results = [result("tuned", s__accuracy=x) for x in (0.8, 0.82)]
    results += [result("given", **{"s__5_shots/accuracy": x}) for x in (0.5, 0.52)]
    rivals = [comparison.Rivals("tuned", "s/accuracy", {"5 shots": ("given", "s/5_shots/accuracy")})]
    (row,) = cells(comparison.beside(results, rivals))
    assert row[3:5] == ["0.510 ± 0.014", "+0.300"]


def test_what_runs_tuned_from_one_reached_counts_for_it_and_several_metrics_have_a_mean():
    results = []
    for seed, value in enumerate((0.1, 0.2)):
        results += [result("a", seed=seed, s__x=value), result("b", seed=seed, s__x=0.5)]
        results += [result("b-t", seed=seed, t__x=value + 0.5), result("a-t", seed=seed, t__x=value, t__y=1.0)]
        results += [result("a_c", seed=seed, t__x=9.0)]
    published = [comparison.Published(name, {"mean": value}, "") for name, value in (("a", 1.0), ("b", 2.0))]
    first, second = comparison.beside_paper(results, published, "mean", ("s/x", ("t/x", "t/y")))
    np.testing.assert_allclose(first.values, [(0.1 + 0.55) / 2, (0.2 + 0.6) / 2])
    assert second.values == []  # It has no t/y.
    assert comparison.beside_paper(results, published, "mean", "t/x")[1].values == [0.6, 0.7]


def test_what_begins_with_two_names_counts_for_the_longer_one():
    results = [result("rms", s__x=1.0), result("rms-gelu", s__x=2.0), result("rms-gelu-tuned", t__x=3.0)]
    published = [comparison.Published(name, {}, "") for name in ("rms", "rms-gelu")]
    found = [comparison.beside_paper(results, published, "x", metric) for metric in ("s/x", "t/x")]
    assert [[row.values for row in rows] for rows in found] == [[[1.0], [2.0]], [[], [3.0]]]
