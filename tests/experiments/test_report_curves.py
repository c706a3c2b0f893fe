"""What a report draws of runs: where steps lie on each axis, few points, which runs are one variant's."""

import dataclasses
import json

import numpy as np
import pytest

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.experiments import report_curves, report_page, run_logs
from plm_jax.training import flops
from tests.support import logs, tiny


def with_train(**changes):
    return dataclasses.replace(tiny.PLAIN, train=dataclasses.replace(tiny.PLAIN.train, **changes))


def log(tmp_path, metrics=(), **others):
    return run_logs.read(logs.write(tmp_path / "run", metrics, **others))


def test_tokens_and_flops_follow_the_phases(tmp_path):
    phases = (config.PhaseConfig(until=0.75, length=16, batch_size=4), config.PhaseConfig(until=1.0))
    run = with_train(steps=8, batch_size=2, phases=phases)
    run_log = log(tmp_path, [{"step": 8, "train/loss": 1.0}], run=run)
    length = run.data.length
    assert report_curves.axis(run_log, "tokens") == ([0, 6, 8], [0, 6 * 4 * 16, 6 * 4 * 16 + 2 * 2 * length])
    steps, work = report_curves.axis(run_log, "flops")
    assert steps == [0, 6, 8] and work[1] == 6 * flops.per_step(run.model, 4, 16, 16)
    assert work[2] - work[1] == 2 * flops.per_step(run.model, 2, length, length)


def test_the_time_is_that_of_all_steps_also_of_those_whose_rows_have_none(tmp_path):
    times = {1: None, 3: 0.5, 4: 2.0, 6: 1.0}
    rows = [{"step": step} | ({"train/step_seconds": took} if took else {}) for step, took in times.items()]
    assert report_curves.axis(log(tmp_path, rows), "seconds") == ([0, 3, 4, 6], [0, 1.5, 3.5, 5.5])


@pytest.mark.parametrize(
    ("field", "phases", "is_known"),
    [
        ("train.batch_size", False, False),
        ("data.length", False, False),
        ("objective.mask_rate", False, False),
        ("train.steps", False, True),
        ("train.steps", True, False),
        ("model.remat", False, True),
        ("schedule.learning_rate", False, True),
        ("checkpoint.save_every", False, True),
        ("no.such.field", False, True),
    ],
)
def test_what_was_changed_on_the_way_makes_an_axis_unknown_where_it_counts(tmp_path, field, phases, is_known):
    run = with_train(phases=(config.PhaseConfig(until=0.5), config.PhaseConfig(until=1.0)) if phases else ())
    history = [{"step": 0, "changes": {}}, {"step": 7, "changes": {field: {"was": 1, "is": 2}}}]
    for axis in ("tokens", "flops"):
        found = report_curves.axis(log(tmp_path / axis, run=run, history=history), axis)
        assert isinstance(found, tuple) if is_known else found == f"{field} changed at step 7"


def test_unreadable_config_and_missing_times_are_reported(tmp_path):
    path = logs.write(tmp_path / "run", [{"step": 1, "train/loss": 1.0}])
    (tmp_path / "run" / "config.json").write_text('{"config": {"objective": {"kind": "a_users_own"}}}')
    axes = report_curves.page_data([run_logs.read(path)], [])["runs"][0]["axes"]
    assert axes["tokens"].startswith("its config cannot be read (") and axes["flops"] == axes["tokens"]
    assert axes["seconds"] == "the duration of its steps is not logged"


def decoded(run, key):
    index, *values = run["curves"][key]
    return np.cumsum(run["steps"][index]), *map(np.array, values)


def drawn(*runs):
    return report_curves.page_data(runs, report_curves.cards(runs))


def test_short_curves_are_whole_and_of_one_list_of_steps(tmp_path):
    rows = logs.rows(1000, every=5)
    (run,) = drawn(log(tmp_path, rows))["runs"]
    steps, losses = decoded(run, "train/loss")
    np.testing.assert_array_equal(steps, [row["step"] for row in rows])
    np.testing.assert_allclose(losses, [row["train/loss"] for row in rows], rtol=5e-5)
    assert len(run["steps"]) == 2 and len(decoded(run, "validation/loss")[0]) == 10


def test_shares_are_drawn_in_per_cent_on_an_axis_of_their_own(tmp_path):
    """Shares of training, validation and tasks are drawn in percent; metrics defined on 0 to 100 are unchanged."""
    rows = [{"step": i, "train/accuracy": 0.25, "validation/accuracy": 0.5, "train/nll": 2.0} for i in (1, 2)]
    evaluation = [{"step": i, "s/accuracy": 0.75, "s/bleu": 30.0} for i in (1, 2)]
    drawing = drawn(log(tmp_path, rows, evaluation=evaluation))
    expected = {"train/accuracy": 25, "validation/accuracy": 50, "train/nll": 2}
    expected |= {"evaluation:s/accuracy": 75, "evaluation:s/bleu": 30}
    assert {key: decoded(drawing["runs"][0], key)[1].tolist() for key in expected} == {
        key: [value, value] for key, value in expected.items()
    }
    units = {card["title"]: card["units"] for card in drawing["cards"]}
    assert units["Other metrics"] == {"accuracy": "%", "nll": ""}
    assert units["Tasks"] == {"s/accuracy": "%", "s/bleu": ""}


def test_points_of_a_long_curve_are_means_between_the_lowest_and_highest(tmp_path):
    rows = logs.rows(20_000)
    (run,) = drawn(log(tmp_path, rows))["runs"]
    steps, means, lowest, highest = decoded(run, "train/grad_norm")
    norms = np.array([row["train/grad_norm"] for row in rows])
    assert len(steps) < 1000 and (np.diff(steps) > 0).all() and 0 < steps[0] < steps[-1] <= 20_000
    assert highest.max() == 50 and lowest.min() == 1  # A spike is seen.
    assert (lowest <= means).all() and (means <= highest).all()
    assert means.mean() == pytest.approx(norms.mean(), rel=1e-3)


@pytest.mark.parametrize("length", [1_000, 100_000])
def test_a_page_of_twenty_runs_is_small(tmp_path, length):
    one = log(tmp_path, logs.rows(1000))
    times = length // 1000
    metrics = {
        name: run_logs.Curve(np.arange(1, len(curve.steps) * times + 1), np.tile(curve.values, times))
        for name, curve in one.metrics.items()
    }
    rng = np.random.default_rng(0)
    metrics |= {name: curve._replace(values=curve.values * rng.uniform(0.9, 1.1)) for name, curve in metrics.items()}
    runs = [dataclasses.replace(one, name=f"run {i}", variant=f"run {i}", metrics=metrics) for i in range(20)]
    assert len(report_page.page(runs, []).encode()) < 3e6


def test_what_is_not_finite_is_not_drawn(tmp_path):
    rows = [
        {"step": i, "train/loss": loss} for i, loss in enumerate([1.0, float("nan"), 1e40, float("inf"), 2.0, 10**400])
    ]
    drawing = drawn(log(tmp_path, rows))
    steps, losses = decoded(drawing["runs"][0], "train/loss")
    assert steps.tolist() == [0, 4] and losses.tolist() == [1, 2]
    json.dumps(drawing, allow_nan=False)


def test_seeds_are_one_variant_and_other_configs_are_others(tmp_path):
    for seed in (0, 1):
        logs.write(tmp_path / f"x2-seed1{seed}", run=with_train(seed=seed))
        logs.write(tmp_path / "tuned" / f"seed-{seed}", run=with_train(seed=seed, steps=5))
    logs.write(tmp_path / "other", run=with_train(steps=3))
    workdirs = [str(tmp_path / name) for name in ("x2-seed10", "tuned", "other", "x2-seed11")]
    runs, sweeps = run_logs.gather(workdirs)
    assert not sweeps and [(run.name, run.variant) for run in runs] == [
        ("x2-seed10", "x2"),
        ("x2-seed11", "x2"),
        ("tuned/seed-0", "tuned"),
        ("tuned/seed-1", "tuned"),
        ("other", "other"),
    ]


def test_runs_of_one_name_are_told_apart(tmp_path):
    paths = [logs.write(tmp_path / folder / "run", run=with_train(steps=n)) for n, folder in enumerate("ab", 1)]
    runs, _ = run_logs.gather(paths)
    assert [run.name for run in runs] == [run.variant for run in runs] == ["run", "run (2)"]


def test_more_figures_than_a_page_can_show_are_one_line(tmp_path):
    rows = [{"step": 1} | {f"train/x{i}": 1.0 for i in range(501)}]
    with pytest.raises(UserError, match="run and the other runs log more than 500 metrics: report fewer runs"):
        report_curves.cards([log(tmp_path, rows)])
