"""Comparisons of bits that reveal devices that compute wrongly, on eight fake devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config
from plm_jax.runs import setup
from plm_jax.training import audit, compiler
from plm_jax.training import mesh as meshes
from plm_jax.training.audit import DeviceCheck, ReplicaCheck, Vote
from tests.support import faulty_devices, runs
from tests.support.faulty_devices import NAME, faults

DEVICES = 8
MESH = config.MeshConfig(data=DEVICES)


@pytest.fixture(scope="module")
def mesh():
    return meshes.build(MESH)


@pytest.fixture(scope="module")
def check(mesh):
    return DeviceCheck(mesh, compute=faulty_devices.block)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.uint8, np.int32])
def test_checksum_is_the_sum_of_bits(dtype):
    array = np.random.default_rng(0).integers(0, 200, (3, 5, 7)).astype(dtype)
    unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32}[array.dtype.itemsize]
    bits = array.view(unsigned).astype(np.uint64)
    assert int(audit.checksum(jnp.asarray(array))) == int(bits.sum()) % 2**32
    by_layer = audit.tensor_checksums({"stack": {"blocks": {"kernel": jnp.asarray(array)}}, "bias": jnp.asarray(array)})
    assert by_layer.tolist() == [int(total) % 2**32 for total in (bits.sum(), *bits.sum((1, 2)))]


def test_equal_devices_have_no_vote_against_them(mesh, check):
    results = DeviceCheck(mesh)()
    assert results.shape[0] == DEVICES and audit.count_votes(results) == Vote()
    # The injection itself changes no bit.
    assert audit.count_votes(check(**{NAME: faults(DEVICES)})) == Vote()


@pytest.mark.parametrize("kind", faulty_devices.KINDS)
def test_faulty_device_is_named(check, kind):
    for device in (0, 5):
        vote = audit.count_votes(check(**{NAME: faults(DEVICES, device, kind, column=17 * device)}))
        assert vote == Vote(differing=(device,))


def test_votes_need_a_majority():
    results = np.zeros((4, 3), np.uint32)
    results[2, 1] = 1
    assert audit.count_votes(results) == Vote(differing=(2,))
    results[3, 1] = 2
    assert audit.count_votes(results) == Vote(undecided=(0, 1, 2, 3))
    assert audit.count_votes(results[:1]) == Vote()


def test_faulty_replica_is_named(mesh):
    replicated, split = meshes.replicated(mesh), jax.NamedSharding(mesh, jax.P("data"))
    values = np.arange(16, dtype=np.float32)
    tree = {"a": jax.device_put(values, split), "b": jax.device_put(values, replicated)}
    replicas = ReplicaCheck(mesh, tree)
    assert replicas.has_replicas and replicas(tree) == {}
    assert not ReplicaCheck(mesh, {"a": tree["a"]}).has_replicas
    changed = values.copy()
    changed[3] = np.nextafter(values[3], np.float32(9))
    copies = [jax.device_put(changed if device.id == 6 else values, device) for device in mesh.devices.flat]
    tree["b"] = jax.make_array_from_single_device_arrays(values.shape, replicated, copies)
    assert replicas(tree) == {"b": Vote(differing=(6,))}


def test_repeated_gradients_reveal_transient_errors_alone(tiny):
    """The loss and the norm equal those of the train step, and an error of 1e-4 in one device changes checksums."""
    run = runs.make(tiny, mesh=MESH, dropout=0.1, train={"microbatches": 2, "batch_size": 16})
    job = setup.build(run)
    (phase,) = job.programs.phases
    state = setup.starting_state(job, None)[0]
    batch, _ = next(runs.batches(job, 0))
    key, _ = job.programs.inputs(0)
    with faulty_devices.faulty_losses():
        compute = job.program.phase_gradients(phase)

        def gradients(*arguments, **fields):
            rows = np.repeat(faults(DEVICES, *arguments, **fields), 2, axis=0)
            sharded = meshes.to_global({NAME: rows}, np.arange(16), 16, job.program.mesh)
            return jax.device_get(compute(state, batch | sharded, key))

        clean, again, sticky = gradients(), gradients(), gradients(3, "d_x")
        assert (clean["checksums"] == again["checksums"]).all()
        assert (sticky["checksums"] == gradients(3, "d_x")["checksums"]).all()
        assert len(clean["checksums"]) == len(job.program.tensor_names())
        for kind in faulty_devices.KINDS:
            assert (gradients(3, kind, column=5)["checksums"] != clean["checksums"]).any(), kind
    # The state was not donated.
    _, metrics = job.program.phase_step(phase)(state, batch, *job.programs.inputs(0))
    np.testing.assert_allclose(clean["loss"], [metrics["loss"]], rtol=1e-6)
    np.testing.assert_allclose(clean["grad_norm"], [metrics["grad_norm"]], rtol=1e-5)


def test_options_of_audits():
    assert compiler.audit_options("cpu", True) == {}
    assert compiler.audit_options("TPU v5p", False) == {}
    checked = compiler.audit_options("TPU v5p", True)
    assert checked["xla_tpu_enable_sdc_checker"] == "true" and checked["xla_tpu_sdc_replicate_llo"] == "false"
    assert compiler.audit_options("TPU v5 lite", True)["xla_tpu_sdc_replicate_llo"] == "true"
    assert compiler.audit_options("NVIDIA H100", True) == {"xla_gpu_deterministic_ops": "True"}
