"""Training that ends because validation has stopped improving."""

import dataclasses

import pytest

import plm_jax
from plm_jax import config
from plm_jax.common.errors import UserError
from tests.support import moods, runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("moods")
    moods.write(path)
    return path


def finetune(folder, workdir, **sections):
    evaluation = {"every": 2, "select": "mood/loss", "patience": 3} | sections.pop("evaluation", {})
    # Without a learning rate, no validation is better than the first.
    run = runs.make(folder, moods.RUN, schedule={"learning_rate": 0.0}, evaluation=evaluation, **sections)
    (result,) = plm_jax.finetune(run, str(folder / "encoder"), str(workdir))
    return result


def test_training_stops_after_patience_and_stays_finished(folder, tmp_path, capfd):
    result = finetune(folder, tmp_path)
    assert result.step == 8  # Best at 2, then three validations.
    assert "stopped at step 8: mood/loss has stopped improving" in capfd.readouterr().err
    rows = runs.rows(tmp_path)
    assert finetune(folder, tmp_path).step == 8 and runs.rows(tmp_path) == rows
    assert "raise evaluation.patience to train further" in capfd.readouterr().err


def test_interrupted_runs_stop_at_the_same_step(folder, tmp_path):
    short = finetune(folder, tmp_path / "a", train={"steps": 5, "epochs": None})
    assert short.step == 5
    steps = {"steps": 24, "epochs": None}
    assert finetune(folder, tmp_path / "a", train=steps).step == finetune(folder, tmp_path / "b", train=steps).step == 8


def test_better_values_extend_training(folder, tmp_path):
    settings = dataclasses.replace(moods.RUN.evaluation, patience=10)
    run = runs.make(folder, dataclasses.replace(moods.RUN, evaluation=settings))
    (result,) = plm_jax.finetune(run, str(folder / "encoder"), str(tmp_path))
    losses = runs.column(tmp_path, "validation/mood/loss")
    best = min(losses, key=losses.get)
    assert result.step == min(24, best + 10) and result.step > 11


def test_patience_needs_a_metric():
    with pytest.raises(UserError, match=r"patience is 2: set config\.evaluation\.select too"):
        config.EvaluationConfig(every=1, patience=2)
