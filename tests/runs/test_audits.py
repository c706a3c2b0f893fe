"""Audits of runs on eight fake devices: what they report, when they end a run, and that they change nothing."""

import contextlib
import dataclasses
import functools
import types
from typing import Any, cast

import jax
import numpy as np
import pytest

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.runs import audits, loop, setup
from plm_jax.runs.audits import CheckReplicas
from plm_jax.runs.callbacks import TrainingContext
from plm_jax.runs.coordination import Decision
from plm_jax.training import spikes
from plm_jax.training.program import Program
from tests.support import faulty_devices, planted, runs

MESH = config.MeshConfig(data=8)


def make(tiny, every, steps=4):
    train = {"steps": steps, "log_every": 1, "audits": config.AuditsConfig(every=every, at_incidents=False)}
    return runs.make(tiny, dropout=0.1, mesh=MESH, train=train)


def test_audits_leave_training_as_it_is(tiny, tmp_path):
    columns = []
    for every in (0, 1):
        loop.pretrain(make(tiny, every), str(tmp_path / str(every)))
        columns.append([runs.column(tmp_path / str(every), name) for name in ("train/loss", "train/grad_norm")])
    assert columns[0] == columns[1] and len(columns[0][0]) == 4


def test_device_that_computes_wrongly_ends_the_run(tiny, tmp_path, monkeypatch):
    faults = faulty_devices.faults(8, 5, "d_kernel")

    def check_devices(mesh, dtype):
        check = audits.audit.DeviceCheck(mesh, dtype, faulty_devices.block)
        return functools.partial(check, **{faulty_devices.NAME: faults})

    monkeypatch.setattr(audits, "DeviceCheck", check_devices)
    with pytest.raises(UserError, match=r"audit after step 2 found a device .* device 5 of process 0") as error:
        loop.pretrain(make(tiny, 2), str(tmp_path / "run"))
    assert str(error.value).count("of process") == 1 and "transient" not in str(error.value)


def test_transient_error_is_reported_without_a_device(tiny, tmp_path, monkeypatch, capsys):
    build, calls = Program.phase_gradients, []

    def phase_gradients(self, phase, options):
        compute = build(self, phase, options)

        def flip_a_bit(*arguments):
            results = {name: np.array(array) for name, array in compute(*arguments).items()}
            calls.append(results["checksums"].copy())
            results["checksums"][3] += np.uint32(len(calls) == 2)
            return results

        return flip_a_bit

    monkeypatch.setattr(Program, "phase_gradients", phase_gradients)
    loop.pretrain(make(tiny, 2), str(tmp_path / "run"))
    lines = [row["audit"] for row in runs.rows(tmp_path / "run") if "audit" in row]
    assert len(calls) == 4 and len(lines) == 1
    assert "differ in 1 of" in lines[0] and "transient error" in lines[0] and "of process" not in lines[0]
    assert f"audit after step 2: {lines[0]}" in capsys.readouterr().err


def test_spikes_of_the_data_blame_no_device(verb, tmp_path):
    planted.write(tmp_path)
    assert verb("prepare", f"--config={tmp_path}/planted.py").status == 0
    command = ("pretrain", f"--config={tmp_path}/planted.py", f"--workdir={tmp_path}/run", "--config.mesh.data=8")
    finished = verb(*command, devices=8)
    assert finished.status == 0, finished.err
    assert "the data are likely the cause" in finished.err and "computes a fixed block" not in finished.err


def test_incidents_soon_after_an_audit_are_not_audited(monkeypatch):
    audited = []

    def compute(state, batch, key):
        audited.append(batch)
        return {"checksums": np.zeros(1, np.uint32)}

    program: Any = types.SimpleNamespace(
        mesh=types.SimpleNamespace(devices=np.array(jax.devices())),
        precision=config.PrecisionConfig(),
        tensor_names=lambda: ["head"],
        phase_gradients=lambda phase, options: compute,
    )
    programs: Any = types.SimpleNamespace(inputs=lambda step: (None, None))
    logger: Any = types.SimpleNamespace(auditing=lambda compiles: contextlib.nullcontext())
    monkeypatch.setattr(audits, "DeviceCheck", lambda mesh, dtype: lambda: np.zeros((8, 1), np.uint32))
    settings = config.TrainConfig(8, steps=20, incidents=config.IncidentsConfig(window=6))
    audit, empty = audits.Audit(settings, programs, logger, None), cast(Any, None)
    context = TrainingContext(empty, program, empty, 0, 20)
    for step in range(1, 21):
        context.step, context.batch = step, cast(Any, step)
        context.metrics = {"incident": spikes.SPIKE if step in (2, 5, 7, 8, 9, 20) else spikes.NONE}
        audit.after_step(context)
    audit.end_phase(context)
    assert audited == [2, 2, 8, 8, 20, 20]  # Each is computed twice.


def test_replicas_are_compared_before_they_are_saved(tiny):
    job = setup.build(make(tiny, 0))
    state, phase = job.program.new_state(0), job.programs.phases[0]
    context = TrainingContext(phase, job.program, state, 8, 8)
    CheckReplicas(job.run.checkpoint, None).after_step(context)
    leaves, tree = jax.tree.flatten(state.params)
    shards = [np.array(shard.data) for shard in leaves[0].addressable_shards]
    devices = [shard.device for shard in leaves[0].addressable_shards]
    shards[6].flat[0] += 1e-3
    arrays = [jax.device_put(shard, device) for shard, device in zip(shards, devices, strict=True)]
    leaves[0] = jax.make_array_from_single_device_arrays(leaves[0].shape, leaves[0].sharding, arrays)
    context.state = state.replace(params=jax.tree.unflatten(tree, leaves))
    message = rf"not saved: the replicas of 1 parameters.*device {devices[6].id} of process"
    with pytest.raises(UserError, match=message):
        CheckReplicas(job.run.checkpoint, None).after_step(context)
    check = CheckReplicas(config.CheckpointConfig(save_every=4), None)
    for step, decision in ((5, Decision(save=True)), (4, Decision())):
        with pytest.raises(UserError, match=message):
            check.after_step(dataclasses.replace(context, step=step, decision=decision))
    check.after_step(dataclasses.replace(context, step=5))  # Not saved.
