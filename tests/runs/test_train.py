"""Training and evaluation from Python, as the verbs do them."""

import dataclasses
import json

import pytest

import plm_jax
from plm_jax.common import users
from plm_jax.common.errors import UserError
from plm_jax.evaluation.few_shot import FewShotOptions
from tests.support import tiny


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of two steps over files whose paths are relative to the working directory."""
    monkeypatch.chdir(tmp_path)
    tiny.write(tmp_path)
    train = dataclasses.replace(tiny.PLAIN.train, steps=2, log_every=1)
    return dataclasses.replace(tiny.PLAIN, train=train)


def test_run_is_prepared_trained_resumed_and_evaluated(run, tmp_path):
    result = plm_jax.pretrain(run, "run")
    assert (result.workdir, result.step) == ("run", 2)
    assert result.metrics["train/loss"] > 0
    assert (tmp_path / "cache" / "a" / "manifest.json").exists()
    longer = dataclasses.replace(run, train=dataclasses.replace(run.train, steps=3))
    assert plm_jax.pretrain(longer, "run").step == 3

    lm = plm_jax.load("run")
    metrics = plm_jax.evaluate(lm)
    assert metrics["a"]["perplexity"] > 1
    (row,) = map(json.loads, (tmp_path / "run" / "evaluation.jsonl").read_text().splitlines())
    assert row["step"] == 3 and row["a/loss"] == metrics["a"]["loss"]

    results = plm_jax.finetune(run, "run", "tuned", seeds=[0, 1])
    assert [result.workdir for result in results] == ["tuned/seed-0", "tuned/seed-1"]
    assert {result.step for result in results} == {2}


def test_fine_tuning_needs_an_existing_checkpoint(run):
    with pytest.raises(UserError):
        plm_jax.finetune(run, "nowhere", "tuned")


MINE = """
from dataclasses import dataclass
from typing import ClassVar

from plm_jax import config


@dataclass(frozen=True)
class Mine(config.AdamWConfig):
    kind: ClassVar[str] = "mine"
"""


def test_user_classes_reach_the_process_that_prepares(run, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    own = dataclasses.replace(run, optimizer=users.load("mine.py").Mine())
    assert plm_jax.pretrain(own, "own").step == 2


def test_conflicting_kinds_of_evaluation_are_rejected():
    for arguments in ({"texts": ["a.txt"], "tasks": ["a"]}, {"limit": 3}, {"few_shot": FewShotOptions(), "stride": 2}):
        with pytest.raises(UserError, match="leave"):
            plm_jax.evaluate("nowhere", **arguments)
