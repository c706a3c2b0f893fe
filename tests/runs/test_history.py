"""State of a run at a step, from checkpoints that are only described."""

import dataclasses
import json

import pytest

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.runs import history, run_directory
from tests.support import tiny


def with_batches_of(size):
    return dataclasses.replace(tiny.PLAIN, train=config.TrainConfig(steps=8, batch_size=size))


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """A run with checkpoints 2 and 4, which was then resumed with larger batches."""
    run_directory.write(str(tmp_path), "id", with_batches_of(16), {"data": 1}, [])
    meta = {"config": config.to_dict(with_batches_of(8)), "mesh": {"data": 2}}
    monkeypatch.setattr(history.folders, "finished", lambda _: [2, 4])
    monkeypatch.setattr(history.folders, "checked", lambda path, _: meta | {"step": int(path.name)})
    rows = [{"step": 5, "train/loss": 2.0}, {"step": 5, "checkpoint/error": "full"}, {"step": 6, "train/loss": 1.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("step", "batch_size", "sizes"),
    [(1, 8, {(0, 8): 8}), (4, 8, {(0, 8): 8}), (5, 16, {(0, 4): 8, (4, 8): 16}), (8, 16, {(0, 4): 8, (4, 8): 16})],
)
def test_a_step_has_the_config_of_the_next_checkpoint_and_the_rows_that_were_read(workdir, step, batch_size, sizes):
    """After the last checkpoint, the run reads by its new config, and the rows up to the checkpoint stay."""
    state = history.read_history(workdir, step)
    assert state.run.train.batch_size == batch_size
    assert {(phase.first_step, phase.end_step): phase.batch_size for phase in state.phases} == sizes
    assert state.computed_with["mesh"] == {"data": 2 if step <= 4 else 1}


def test_rows_of_a_step_are_joined(workdir):
    state = history.read_history(workdir, 4)
    assert state.rows[5] == {"step": 5, "train/loss": 2.0, "checkpoint/error": "full"}
    assert state.last_step == 6 and state.saved == [2, 4]


@pytest.mark.parametrize("step", [0, 9])
def test_steps_outside_the_run_are_rejected(workdir, step):
    with pytest.raises(UserError, match="choose one from 1 to 8"):
        history.read_history(workdir, step)
