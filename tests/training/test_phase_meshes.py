"""Phases with meshes of their own: the state is laid out anew between them, and nothing else changes."""

import dataclasses
import json
import os
import types

import jax
import numpy as np
import pytest

from plm_jax import config, models
from plm_jax.common.errors import UserError
from plm_jax.runs import loop, setup
from plm_jax.runs.programs import Programs
from tests.support import runs
from tests.support.tiny import PLAIN

PHASES = (
    config.PhaseConfig(until=0.5, mesh={"data": 8}),
    config.PhaseConfig(until=1.0, batch_size=4, mesh={"fsdp": 4, "tensor": 2}),
)


def make(folder, meshes=True):
    """Four steps of 8 rows and four of 4, saved on the way."""
    phases = PHASES if meshes else tuple(config.PhaseConfig(p.until, batch_size=p.batch_size) for p in PHASES)
    # A vocabulary that `tensor` divides only when it is padded.
    model = {"stack": models.StackConfig(layers=1), "embedding": models.EmbeddingConfig(vocab_size=273, width=32)}
    train, checkpoint = {"steps": 8, "phases": phases}, {"save_every": 2, "keep_last": 9}
    evaluation = {"every": 6, "batch_size": 4}
    mesh = config.MeshConfig(data=1)
    return runs.make(folder, PLAIN, model=model, train=train, checkpoint=checkpoint, evaluation=evaluation, mesh=mesh)


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """A run directory of eight devices."""
    workdir = tmp_path_factory.mktemp("phases") / "run"
    loop.pretrain(make(tiny), str(workdir))
    return workdir


def test_losses_equal_those_of_one_device(tiny, trained):
    run = make(tiny, meshes=False)
    job = setup.build(run, devices=jax.devices()[:1])
    state, losses = job.program.new_state(job.run.train.seed), []
    batches = runs.batches(job, 0)
    for stage in job.programs.phases:
        step = job.program.phase_step(stage)
        for number in range(stage.first_step, stage.end_step):
            state, metrics = step(state, next(batches)[0], *job.programs.inputs(number))
            losses.append(float(metrics["loss"]))
            if number + 1 == 6:
                validated = job.validation(state.params, stage)["loss"]
    np.testing.assert_allclose(list(runs.column(trained, "train/loss").values()), losses, rtol=1e-5)
    found = runs.column(trained, "validation/loss")
    assert list(found) == [6, 8]  # The last step, too.
    np.testing.assert_allclose(found[6], validated, rtol=1e-5)


def test_state_is_on_the_mesh_of_its_phase(tiny):
    job = setup.build(make(tiny))
    first, second = map(job.programs.at, job.programs.phases)
    state = first.new_state(0)
    assert {leaf.sharding.num_devices for leaf in jax.tree.leaves(state)} == {8}
    whole = runs.flat(state.params)
    moved = second.place(state, first, 4)
    kernel = moved.params["stack"]["blocks"]["feed_forward"]["up"]["kernel"]
    assert kernel.sharding.shard_shape(kernel.shape) == (1, 32 // 4, 64 // 2)
    assert moved.params["token_embedding"].shape == (274, 32)
    for name, leaf in runs.flat(moved.params).items():
        np.testing.assert_array_equal(leaf[: len(whole[name])], whole[name], err_msg=name)


# Each takes long: PLM_JAX_FULL_TESTS=1 takes the boundary and the second phase, too.
@pytest.mark.parametrize("step", [2, 4, 6] if os.environ.get("PLM_JAX_FULL_TESTS") else [2])
def test_interrupted_run_resumes_exactly(step, tiny, trained, tmp_path, capsys):
    workdir = runs.copy_at(trained, tmp_path / "run", step)
    meta = json.loads((workdir / "checkpoints" / str(step) / "meta" / "metadata").read_text())
    assert meta["mesh"]["data"] == (8 if step <= 4 else 1)
    loop.pretrain(make(tiny), str(workdir))
    said = capsys.readouterr().err
    assert f"resumed after step {step}" in said and "changed since" not in said
    for name in ("train/loss", "train/batch_digest", "validation/loss"):
        assert runs.column(workdir, name) == runs.column(trained, name)


def test_rate_depends_on_the_tokens_of_all_phases(tiny):
    schedule = config.CosineSchedule(learning_rate=1.0, warmup_steps=2, by_tokens=True)
    run = dataclasses.replace(make(tiny), schedule=schedule)
    programs = Programs(run)
    resumed = Programs(run, first_step=programs.phases[-1].first_step)
    assert resumed.first.mesh != programs.first.mesh
    for step in range(8):
        assert resumed.inputs(step)[1] == programs.inputs(step)[1]


def test_finished_phases_need_not_fit_the_devices(tiny):
    phases = (
        config.PhaseConfig(until=0.25, batch_size=2, mesh={"data": 2}),
        config.PhaseConfig(until=0.5, mesh={"data": 4, "tensor": 2}),
        config.PhaseConfig(until=1.0, batch_size=16, mesh={"data": 8}),
    )
    run = runs.make(tiny, train={"steps": 8, "phases": phases}, mesh=config.MeshConfig(data=1))
    with pytest.raises(UserError, match="does not fit 8 devices"):
        Programs(run)
    programs = Programs(run, None, config.resolve_phases(run), first_step=2)
    assert programs.first.batch_size == run.train.batch_size and programs.first.mesh.shape["data"] == 4
    assert programs.at(programs.phases[-1]).mesh.shape["data"] == 8
    resumed = types.SimpleNamespace(plan=lambda phases: programs.phases, changes=lambda *_: [], step=2)
    assert setup.build(run, resumed).program.batch_size == run.train.batch_size


def test_batch_of_each_phase_must_fit_its_mesh(tiny):
    phases = (
        config.PhaseConfig(until=0.5, mesh={"fsdp": 8}),
        config.PhaseConfig(until=1.0, batch_size=4, mesh={"fsdp": 8}),
    )
    with pytest.raises(UserError, match=r"batch of 4 .* 8 "):
        Programs(runs.make(tiny, train={"phases": phases}, mesh=config.MeshConfig(data=1)))


def test_unknown_axes_are_rejected():
    with pytest.raises(UserError, match=r"'fdsp'.*fsdp"):
        config.PhaseConfig(until=1.0, mesh={"fdsp": 8})
