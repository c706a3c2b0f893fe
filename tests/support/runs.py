"""Runs of `tiny.py` in this process."""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Iterator

import flax
import jax
import numpy as np

from plm_jax import config
from plm_jax.runs import setup
from plm_jax.runs.setup import TrainingSetup
from plm_jax.training import state as states
from plm_jax.training.program import fitted
from tests.support import tiny


def make(folder: pathlib.Path, run: config.Run = tiny.PLAIN, dropout: float | None = None, **sections) -> config.Run:
    """Returns a run over the caches in `folder` with changed fields, such as `train={"steps": 3}`."""
    changed = {
        name: dataclasses.replace(getattr(run, name), **fields) if isinstance(fields, dict) else fields
        for name, fields in sections.items()
    }
    run = dataclasses.replace(run, **changed)
    if dropout is not None:
        run = dataclasses.replace(run, model=tiny.with_dropout(run.model, dropout))
    return config.resolve(config.to_config_dict(run), str(folder / "tiny.py"))


def rows(workdir) -> list[dict]:
    """Returns the rows of metrics.jsonl."""
    return [json.loads(line) for line in (pathlib.Path(workdir) / "metrics.jsonl").read_text().splitlines()]


def column(workdir, name: str) -> dict[int, float]:
    """Returns a metric by step. Asserts that no save failed and that no step has two rows."""
    metrics = rows(workdir)
    assert not [row for row in metrics if "checkpoint/error" in row]
    assert len({row["step"] for row in metrics}) == len(metrics)
    return {row["step"]: row[name] for row in metrics if name in row}


def flat(params) -> dict[str, np.ndarray]:
    """Returns the leaves by name as NumPy arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(params))
    return {"/".join(key.key for key in path): np.asarray(leaf) for path, leaf in leaves}


def batches(job: TrainingSetup, first_step: int) -> Iterator[tuple[dict, float]]:
    """Iterates over the global batches from a step on, each with the seconds of waiting for it."""
    return setup.global_batches(job.programs, job.reader, first_step)


def start(run: config.Run) -> tuple[states.TrainState, list[str]]:
    """Returns the state before the first step on one device, and the notes on it."""
    return setup.starting_state(setup.build(run, devices=jax.devices()[:1]), None)


def copy_at(workdir: pathlib.Path, copy: pathlib.Path, step: int) -> pathlib.Path:
    """Copies a run directory as it was when its newest checkpoint was that of `step`. Returns the copy."""
    shutil.copytree(workdir, copy)
    later = [path for path in (copy / "checkpoints").iterdir() if path.name.isdecimal() and int(path.name) > step]
    assert later and (copy / "checkpoints" / str(step)).exists()
    for path in later:
        shutil.rmtree(path)
    return copy


def _beginning(job: TrainingSetup, params: dict[str, np.ndarray]):
    """Returns the state before the first step with these parameters."""
    params = flax.traverse_util.unflatten_dict(params, sep="/")
    carry = job.program.new_carry(job.programs.phases[0].batch_size)
    state = states.new_state(params, job.program.optimizer, carry, job.run.train.incidents.window)
    return jax.device_put(fitted(state, job.program.abstract_state), job.program.shardings)


def steps(run: config.Run, devices: int, params=None) -> tuple[list[float], dict, dict, TrainingSetup, object]:
    """Trains on `devices` devices, by default from random parameters, otherwise from `params` (leaves by name).

    Returns:
      Losses, parameters before and after training, the job, and the last state.
    """
    job = setup.build(run, devices=jax.devices()[:devices])
    state = setup.starting_state(job, None)[0] if params is None else _beginning(job, params)
    before, losses = flat(fitted(state, job.program.published_state).params), []
    (stage,) = job.programs.phases
    train_step = job.program.phase_step(stage)
    for number, (batch, _) in enumerate(batches(job, 0)):
        state, metrics = train_step(state, batch, *job.programs.inputs(number))
        losses.append(float(metrics["loss"]))
    return losses, before, flat(fitted(state, job.program.published_state).params), job, state


def assert_eight_devices_equal_one(run: config.Run) -> TrainingSetup:
    """Trains a run on one device and on a mesh of eight, and compares losses and parameters. Returns the latter job."""
    expected = steps(run, 1)
    actual = steps(dataclasses.replace(run, mesh=config.MeshConfig(2, 2, 2)), 8, params=expected[1])
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5)
    for name, leaf in expected[2].items():
        np.testing.assert_allclose(actual[2][name], leaf, atol=1e-5, err_msg=name)
    return actual[3]
