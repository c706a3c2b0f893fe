"""`train.epochs`: the steps in which all rows are read so often, and what follows them."""

import dataclasses
import math

import jax.numpy as jnp
import pytest

from plm_jax import config
from plm_jax.common import trees
from plm_jax.common.errors import UserError
from plm_jax.data.reader import Reader
from plm_jax.runs import epochs, loop, run_directory
from tests.support import runs


def made(folder, **train):
    """The tiny run with so many epochs and no steps."""
    return runs.make(folder, train={"steps": 0, **train})


def test_steps_read_all_rows(tiny):
    run = made(tiny, epochs=2.0)
    rows = sum(Reader(config.reader_config(runs.make(tiny))).num_rows("train").values())
    assert epochs.resolve_steps(run).train.steps == math.ceil(2 * rows / 8)
    # To the row: where they divide there is no step more.
    exact = made(tiny, epochs=3.0, batch_size=rows)
    assert epochs.resolve_steps(exact).train.steps == 3
    assert epochs.resolve_steps(runs.make(tiny)).train == runs.make(tiny).train


def test_phases_have_their_shares_of_the_steps(tiny):
    phases = (config.PhaseConfig(0.5, length=16), config.PhaseConfig(1.0, batch_size=16))
    found = epochs.resolve_steps(made(tiny, epochs=1.0, phases=phases))
    reader = Reader(config.reader_config(found))
    read = sum(
        (stage.end_step - stage.first_step)
        * stage.batch_size
        / sum(reader.num_rows("train", length=stage.length).values())
        for stage in config.resolve_phases(found)
    )
    assert read == pytest.approx(1.0, abs=0.05)


def test_run_ends_after_its_epochs(tiny, tmp_path):
    schedule = config.LinearSchedule(1e-3, warmup_fraction=0.5)
    loop.pretrain(runs.make(tiny, train={"steps": 0, "epochs": 0.1}, schedule=schedule), str(tmp_path))
    steps = epochs.resolve_steps(made(tiny, epochs=0.1)).train.steps
    described = run_directory.read(str(tmp_path))["config"]["train"]
    assert (described["steps"], described["epochs"]) == (steps, 0.1)
    rates = runs.column(tmp_path, "train/learning_rate")
    peak = round(steps / 2)
    assert len(rates) == steps and rates[peak + 1] == pytest.approx(1e-3) == max(rates.values())
    loop.pretrain(runs.make(tiny, train={"steps": 0, "epochs": 0.1}, schedule=schedule), str(tmp_path))  # It is over.


def test_warmup_may_be_a_share_of_the_steps():
    rate = config.ConstantSchedule(0.5, warmup_fraction=0.1).rate(200)
    assert [float(rate(jnp.int32(step))) for step in (0, 10, 20, 200)] == pytest.approx([0, 0.25, 0.5, 0.5])
    with pytest.raises(UserError, match="set one of them to 0"):
        config.LinearSchedule(0.5, warmup_steps=3, warmup_fraction=0.1)


@pytest.mark.parametrize(
    ("train", "says"),
    [({}, r"train.steps is 0: must be at least 1"), ({"epochs": 0.0}, r"train.epochs is 0.0: must be")],
)
def test_run_needs_steps_or_epochs(train, says):
    with pytest.raises(UserError, match=says):
        trees.checked(config.TrainConfig(batch_size=8, **train), "config.train")
    assert dataclasses.replace(config.TrainConfig(batch_size=8, epochs=1.0), steps=5).steps == 5
