"""Metrics that are sent to Weights & Biases, replaced by a fake module, and traces of the profiler."""

import dataclasses
import sys
import types

import pytest

from plm_jax.runs import loop, weights_and_biases
from tests.support import runs
from tests.support import tiny as tiny_runs


@pytest.fixture
def wandb(monkeypatch):
    """A module `wandb` that notes its calls, and fails at those that `fails` names."""
    module = types.ModuleType("wandb")
    module.calls, module.fails = [], set()

    def noting(name):
        def call(*args, **kwargs):
            module.calls.append((name, args, kwargs))
            if name in module.fails:
                raise ConnectionError(f"no way to {name}\nand more")
            return types.SimpleNamespace(log=noting("log"), finish=noting("finish"))

        return call

    module.init, module.Settings = noting("init"), lambda **kwargs: kwargs
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def sink(said):
    train = dataclasses.replace(tiny_runs.PLAIN.train, wandb_project="ours")
    return weights_and_biases.WandbWriter(dataclasses.replace(tiny_runs.PLAIN, train=train), "some/run", said.append)


def test_run_sends_rows_and_traces_steps(tiny, wandb, tmp_path):
    run = runs.make(tiny, train={"steps": 5, "wandb_project": "ours", "profile_steps": (2, 3, 5)})
    loop.pretrain(run, str(tmp_path / "run"))
    assert [name for name, _, _ in wandb.calls] == ["init", *["log"] * 5, "finish"]
    init = wandb.calls[0][2]
    assert (init["project"], init["name"], init["config"]["train"]["steps"]) == ("ours", "run", 5)
    for row, (_, (sent,), kwargs) in zip(runs.rows(tmp_path / "run"), wandb.calls[1:-1], strict=True):
        assert {"step": kwargs["step"], **sent} == row
    # Two traces, of 2 and 3 together and of 5; within a second they have one name.
    traces = list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))
    assert 1 <= len(traces) <= 2 and all(path.stat().st_size for path in traces)


@pytest.mark.parametrize(("fails", "calls"), [("init", 1), ("log", 2), ("finish", 4)])
def test_failures_are_reported_once(wandb, fails, calls):
    said = []
    wandb.fails.add(fails)
    sent = sink(said)
    for step in (1, 2):
        sent.write({"step": step, "train/loss": 3.0})
    sent.close()
    assert len(wandb.calls) == calls and len(said) == 1
    assert "Weights & Biases" in said[0] and f"no way to {fails} and more" in said[0]


def test_nothing_is_sent_without_a_project(tiny, wandb, tmp_path):
    loop.pretrain(runs.make(tiny, train={"steps": 1}), str(tmp_path / "run"))
    assert not wandb.calls


def test_missing_extra_is_named(wandb, monkeypatch):
    said = []
    monkeypatch.setitem(sys.modules, "wandb", None)
    sink(said).write({"step": 1, "train/loss": 3.0})
    assert len(said) == 1 and "pip install '.[wandb]'" in said[0]
