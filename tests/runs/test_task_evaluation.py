"""`evaluation.tasks`: a process beside the run scores its checkpoints; the run holds no TensorFlow, and outlives it."""

import json
import signal
import sys

import pytest

from plm_jax.common import children, users
from plm_jax.common.errors import UserError
from plm_jax.runs import loop, task_evaluation
from tests.support import runs


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_checkpoint_is_evaluated(tiny, verb, tmp_path):
    workdir = tmp_path / "run"
    options = ["--config.train.steps=4", "--config.checkpoint.save_every=2", "--config.evaluation.tasks=b"]
    finished = verb("pretrain", f"--config={tiny}/tiny.py", f"--workdir={workdir}", *options)
    assert finished.status == 0, finished.err
    found = rows(workdir / "evaluation.jsonl")
    assert [row["step"] for row in found] == [2, 4] and all(
        {key.split("/")[0] for key in row} == {"step", "b"} for row in found
    )
    assert {row["step"] for row in rows(workdir / "samples.jsonl")} == {2, 4}


@pytest.fixture
def starts(monkeypatch):
    """Lists Python programs that replace the processes of `evaluate`, in the order of their starts."""
    codes, start = [], children.start

    def instead(command, environment, output):
        assert (
            command[1:6] == ["-P", "-m", "plm_jax", "evaluate", "--checkpoint=W"]
            and environment["JAX_PLATFORMS"] == "cpu"
        )
        return start([sys.executable, "-c", codes.pop(0)], environment, output)

    monkeypatch.setattr(children, "start", instead)
    return codes


def evaluation(tiny_folder):
    run = runs.make(tiny_folder, evaluation={"tasks": ("a",)})
    return task_evaluation.TaskEvaluation(run.evaluation.tasks, run.data.sources, "W", users.flags(run))


def test_failed_evaluation_is_reported_and_restarted(starts, tiny, capsys):
    starts += ["print('error: no such thing'); exit(2)", "exit(3)", "exit(4)"]
    said = []
    with evaluation(tiny) as tasks:
        tasks.start(said.append)
        tasks._process.wait()
        assert not said
        tasks.start(said.append)
        tasks._process.wait()
    assert said == ["the evaluation of config.evaluation.tasks ended (no such thing); it is restarted"]
    told = capsys.readouterr().err
    assert "ended (status 3); it is restarted" in told
    assert "ended (status 4); to resume it, run: plm_jax evaluate --checkpoint=W --tasks=a --watch" in told


def test_failing_run_ends_its_evaluation(starts, tiny):
    starts += ["import time; time.sleep(1000)"]
    with pytest.raises(KeyError), evaluation(tiny) as tasks:
        tasks.start(print)
        tasks.start(print)
        raise KeyError
    assert tasks._process.returncode == -signal.SIGTERM


def test_unknown_tasks_are_rejected_before_training(tiny, tmp_path):
    run = runs.make(tiny, evaluation={"tasks": ("a:train", "c")})
    with pytest.raises(UserError, match=r"config\.evaluation\.tasks names 'c': choose from: a, b"):
        loop.pretrain(run, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
