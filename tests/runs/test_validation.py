"""Rows that validate a run, and the means over its sources, compared with rows and means computed by hand."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

from plm_jax import config
from plm_jax.common import metrics
from plm_jax.common.errors import UserError
from plm_jax.data import cache
from plm_jax.data.reader import Reader
from plm_jax.models import registry
from plm_jax.models.decoder import Decoder
from plm_jax.runs import loop, preparation, setup
from plm_jax.runs.validation import Validation
from tests.support import runs, tiny

EOS, BATCH = 256, 4
# Source `c` has one document, which is for training.
NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("validation")
    tiny.write(path)
    (path / "c.jsonl").write_text(json.dumps({"text": "the sea " * 40}) + "\n")
    preparation.prepare(make(path), show_progress=False)
    return path


def make(folder, mixture=None, max_batches=0, phases=(), length=32):
    sources = {name: config.TextTable(f"{name}.jsonl") for name in NAMES}
    data = dataclasses.replace(
        tiny.PLAIN.data, sources=sources, mixture=mixture or {}, validation_fraction=0.2, length=length
    )
    evaluation = {"every": 2, "batch_size": BATCH, "max_batches": max_batches}
    return runs.make(folder, data=data, evaluation=evaluation, train={"phases": phases})


def trained(run, devices=1):
    """A job, and random parameters."""
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32) / 4, registry.shapes(run.model))
    return setup.build(run, devices=jax.devices()[:devices]), params


@functools.cache
def jitted(model):
    return jax.jit(Decoder(model).apply)


def by_hand(run, params, name, length, num_rows=None):
    """The mean loss of the first rows of a source's held-out text."""
    split = cache.open_source(run.data.cache_dir, name).splits["validation"]
    stream = []
    for start, stop in zip(split.documents[:-1].tolist(), split.documents[1:].tolist(), strict=True):
        stream += [*split.tokens(start, stop).tolist(), EOS]
    starts = range(0, len(stream) - 1, length)
    text = np.array([(stream[start : start + length + 1] + [-1] * length)[: length + 1] for start in starts])
    logits = jitted(run.model)({"params": params}, np.maximum(text[:, :-1], 0))
    log_p, targets = np.asarray(jax.nn.log_softmax(logits))[:num_rows], text[:num_rows, 1:]
    return -np.take_along_axis(log_p, targets[..., None], axis=2)[..., 0][targets >= 0].mean()


def test_selected_metrics_declare_their_direction(folder, monkeypatch):
    monkeypatch.setattr(metrics, "_DECLARED", dict(metrics._DECLARED))
    run = make(folder)
    run = dataclasses.replace(run, evaluation=dataclasses.replace(run.evaluation, select="a/mine"))
    with pytest.raises(UserError, match=r"select is 'a/mine', whose direction is not declared: declare 'mine' with"):
        setup.build(run, devices=jax.devices()[:1])
    metrics.declare("mine", metrics.Metric("less"))
    for select, best in (("a/mine", 1.0), ("a/accuracy", 2.0), ("a/loss", 1.0), ("a/perplexity", 1.0)):
        other = dataclasses.replace(run, evaluation=dataclasses.replace(run.evaluation, select=select))
        validation = setup.build(other, devices=jax.devices()[:1]).validation
        assert validation.is_better(best, 3.0 - best) and not validation.is_better(3.0 - best, best)
        assert not validation.is_better(best, best)


def test_sources_share_batches_and_mean_by_rate(folder):
    run = make(folder, {"a": 2.0, "b": 1.0, "c": 5.0}, max_batches=3)
    job, params = trained(run)
    found = job.validation(params, job.programs.phases[0])
    of_a, of_b = by_hand(run, params, "a", 32, 2 * BATCH), by_hand(run, params, "b", 32, BATCH)
    np.testing.assert_allclose([found["a/loss"], found["b/loss"]], [of_a, of_b], rtol=1e-5)
    np.testing.assert_allclose(found["loss"], (2 * of_a + of_b) / 3, rtol=1e-5)
    assert found.keys() == {f"{part}{name}" for part in ("", "a/", "b/") for name in ("loss", "nll", "accuracy")}
    assert job.validation(params, job.programs.phases[0]) == found
    assert job.validation.notes() == ["no held-out rows in c: only the other sources are validated"]


def test_smallest_share_is_a_batch(folder):
    counts = [Reader(config.reader_config(make(folder))).sources[name].splits["train"].num_tokens for name in "ab"]
    for run, rows, whole in (
        (make(folder), None, counts),
        (make(folder, {"a": 1.0, "b": 1e-4}, max_batches=1), BATCH, (1.0, 1e-4)),
        (make(folder, {"a": 1.0, "b": 3.0}), None, (1.0, 3.0)),
    ):
        job, params = trained(run)
        found = job.validation(params, job.programs.phases[0])
        means = [by_hand(run, params, name, 32, rows) for name in "ab"]
        np.testing.assert_allclose([found["a/loss"], found["b/loss"]], means, rtol=1e-5)
        np.testing.assert_allclose(found["loss"], np.average(means, weights=whole), rtol=1e-5)


def test_a_batch_over_eight_devices_has_the_next_multiple_of_eight_rows(folder):
    run = make(folder, {"a": 1.0, "b": 1.0}, max_batches=2)
    job, params = trained(run, devices=8)
    metrics_of_sources = job.validation(params, job.programs.phases[0])
    means = [by_hand(run, params, name, 32, 8) for name in "ab"]
    np.testing.assert_allclose([metrics_of_sources[f"{name}/loss"] for name in "ab"], means, rtol=1e-5)


def test_phases_are_validated_at_their_and_the_last_length(folder):
    phases = (
        config.PhaseConfig(until=0.5, length=16, mixture={"b": 1.0}),
        config.PhaseConfig(until=1.0, length=64, mixture={"a": 1.0, "b": 1.0}),
    )
    run = make(folder, max_batches=2, phases=phases)
    job, params = trained(run)
    early, late = (job.validation(params, stage) for stage in job.programs.phases)
    assert {key for key in early if key.endswith("loss")} == {"loss", "b/loss", "64/loss", "64/b/loss"}
    assert {key for key in late if key.endswith("loss")} == {"loss", "a/loss", "b/loss"}
    for key, name, length, rows in (("", "b", 16, 2 * BATCH), ("64/", "b", 64, 2 * BATCH)):
        np.testing.assert_allclose(early[f"{key}loss"], by_hand(run, params, name, length, rows), rtol=1e-5)
    means = [by_hand(run, params, name, 64, BATCH) for name in "ab"]
    np.testing.assert_allclose(late["loss"], np.mean(means), rtol=1e-5)


def test_exhausted_sources_are_reported(folder):
    run = make(folder, {"a": 1.0, "b": 1.0}, max_batches=200)
    job, params = trained(run)
    opened = Reader(config.reader_config(run))
    counts = [opened.num_batches("validation", BATCH, name) for name in "ab"]
    parts = ", ".join(f"{number} of 100 batches of {name}" for name, number in zip("ab", counts, strict=True))
    assert job.validation.notes() == [f"fewer rows are held out than the rates require: {parts}"]
    found = job.validation(params, job.programs.phases[0])
    np.testing.assert_allclose(found["loss"], np.mean([by_hand(run, params, n, 32) for n in "ab"]), rtol=1e-5)


def test_missing_validation_rows_are_reported(folder):
    job, params = trained(make(folder, {"c": 1.0}))
    assert job.validation(params, job.programs.phases[0]) == {}
    assert job.validation.notes() == ["no held-out rows in c: the run is not validated"]
    run = make(folder, {"a": 1.0, "c": 1.0})
    run = dataclasses.replace(run, evaluation=dataclasses.replace(run.evaluation, select="c/loss"))
    with pytest.raises(UserError, match=r"select is 'c/loss', but 'c' has no held-out rows: add validation rows"):
        setup.build(run, devices=jax.devices()[:1])


def test_run_logs_validation(folder, tmp_path):
    """In metrics.jsonl; over eight devices, for which the batch of four is made eight."""
    phases = (config.PhaseConfig(until=0.5, length=16), config.PhaseConfig(until=1.0))
    run = make(folder, {"a": 2.0, "b": 1.0, "c": 1.0}, 3, phases)
    run = dataclasses.replace(run, train=dataclasses.replace(run.train, steps=5))
    loop.pretrain(run, str(tmp_path / "run"))
    rows = {row["step"]: row for row in runs.rows(tmp_path / "run") if "validation/loss" in row}
    assert rows.keys() == {2, 4, 5}  # Every second step, and the last one.
    assert {"validation/a/loss", "validation/32/loss", "validation/32/b/loss"} <= rows[2].keys()
    assert "validation/32/loss" not in rows[4]
    whole = (2 * rows[4]["validation/a/loss"] + rows[4]["validation/b/loss"]) / 3
    np.testing.assert_allclose(rows[4]["validation/loss"], whole, rtol=1e-6)


def test_non_finite_validation_is_reported_and_rows_stay_json(folder, tmp_path, monkeypatch, capsys):
    run = make(folder, mixture={"a": 1.0})
    monkeypatch.setattr(Validation, "__call__", lambda *_: {"loss": float("nan"), "accuracy": 0.5})
    loop.pretrain(run, str(tmp_path / "run"))
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert any("validation/accuracy" in row and "validation/loss" not in row for row in rows)
    assert "loss not finite" in capsys.readouterr().err
