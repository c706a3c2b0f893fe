"""Meshes: which fit, what lies where, sharding constraints, memory."""

import dataclasses
import importlib.util

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict as flatten
from jax.experimental import topologies

from plm_jax import config, models
from plm_jax.common.errors import UserError
from plm_jax.runs import loop, setup
from plm_jax.runs.checkpoints import Checkpoints, load_params
from plm_jax.runs.programs import Programs
from plm_jax.training import mesh
from tests.support import runs
from tests.support.tiny import RUNS


def fresh(folder, **sizes):
    """A job on a mesh, and the state before its first step."""
    run = runs.make(folder, mesh=config.MeshConfig(**{"data": 1} | sizes))
    job = setup.build(run, devices=jax.devices()[: int(np.prod(list(sizes.values())))])
    return job, job.program.new_state(job.run.train.seed)


def test_initial_parameters_equal_those_of_one_device(tiny):
    (_, state), (_, of_one) = fresh(tiny, fsdp=2, tensor=2, context=2), fresh(tiny, data=1)
    assert not state.params["token_embedding"].is_fully_replicated
    for path, leaf in runs.flat(state.params).items():
        np.testing.assert_allclose(leaf, runs.flat(of_one.params)[path], rtol=1e-6, err_msg=path)


def test_lowered_step_has_sharding_constraints(tiny):
    job, state = fresh(tiny, fsdp=4, tensor=2)
    batch, _ = next(runs.batches(job, 0))
    text = job.program.phase_step(job.programs.phases[0]).lower(state, batch, *job.programs.inputs(0)).as_text()
    constraints = [line for line in text.splitlines() if "sdy.sharding_constraint" in line]
    assert any('"fsdp"' in line and '"tensor"' in line for line in constraints)
    # The stream between layers: rows over one axis, their places over the other.
    assert any('[{"fsdp"}, {"tensor"}, {}]> : tensor<8x32x32xf32>' in line for line in constraints)
    # After the embeddings; in the block: query, key, value, mixed heads, hidden layer, output.
    assert len(constraints) >= 7


def test_bytes_of_matrices_are_divided_by_fsdp(tiny):
    def local_bytes(fsdp):
        _, state = fresh(tiny, fsdp=fsdp)
        leaves = [leaf for leaf in jax.tree.leaves((state.params, state.optimizer)) if leaf.ndim]
        device = jax.devices()[0]
        return state, sum(s.data.nbytes for leaf in leaves for s in leaf.addressable_shards if s.device == device)

    state, one = local_bytes(1)
    model = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
    assert one == 3 * model, "parameters and Adam's two moments"
    vectors = 3 * sum(leaf.nbytes for name, leaf in runs.flat(state.params).items() if name.endswith(("bias", "scale")))
    assert 0 < vectors < one / 10
    assert local_bytes(8)[1] == (one - vectors) / 8 + vectors, "biases and scales are whole"


def odd(folder, **sizes):
    """A run of a model with 273 tokens, which no mesh divides."""
    embedding = dataclasses.replace(RUNS["plain"].model.embedding, vocab_size=273)
    head = models.VocabularyHead(tied=False, bias=True)
    return runs.make(folder, model={"embedding": embedding, "head": head}, mesh=config.MeshConfig(**sizes))


def test_indivisible_axes_are_not_sharded(tiny):
    params = Programs(odd(tiny, data=1, fsdp=8), jax.devices()[:8]).first.abstract_state.params
    assert {leaf.shape[0] for leaf in (params["token_embedding"], params["head"], params["head_bias"])} == {273}
    assert params["token_embedding"].sharding.spec == jax.sharding.PartitionSpec(None, "fsdp")


def test_vocabulary_is_padded_on_devices_and_not_in_checkpoints(tiny, tmp_path):
    run = dataclasses.replace(
        odd(tiny, data=1, fsdp=2, tensor=4),
        train=dataclasses.replace(RUNS["plain"].train, steps=4),
        checkpoint=config.CheckpointConfig(save_every=2),
        evaluation=config.EvaluationConfig(every=4, max_batches=1, batch_size=8),
    )
    state = Programs(run).first.abstract_state
    shapes = {leaf.sharding.shard_shape(leaf.shape) for leaf in jax.tree.leaves(state) if 276 in leaf.shape}
    assert shapes == {(69, 16), (69,)}
    loop.pretrain(run, str(tmp_path / "whole"))
    runs.copy_at(tmp_path / "whole", tmp_path / "resumed", 2)
    loop.pretrain(run, str(tmp_path / "resumed"))
    whole, resumed = (
        {path: leaf[()] for path, leaf in flatten(load_params(str(tmp_path / name)).params).items()}
        for name in ("whole", "resumed")
    )
    assert whole["token_embedding",].shape == whole["head",].shape == (273, 32) and whole["head_bias",].shape == (273,)
    for path, leaf in whole.items():
        np.testing.assert_array_equal(resumed[path], leaf, err_msg=path)
    for metric in ("train/loss", "validation/loss"):
        assert runs.column(tmp_path / "resumed", metric) == runs.column(tmp_path / "whole", metric)
    # Another mesh has another padding, or none.
    with Checkpoints(str(tmp_path / "whole"), run.checkpoint) as checkpoints:
        here = Programs(dataclasses.replace(run, mesh=config.MeshConfig(data=1)), jax.devices()[:1])
        restored = checkpoints.restore(4, here.first.abstract_state)
    np.testing.assert_array_equal(restored.params["head"], whole["head",])


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"data": -1, "fsdp": 3}, "does not fit 8 devices"),
        ({"data": -1, "fsdp": -1}, "one may be -1"),
        ({"data": 0}, "at least 1"),
        ({"data": 1}, "mesh.data=8$"),
        ({"data": 3}, "mesh.data=8$"),
        ({"fsdp": 6, "tensor": 2}, "mesh.fsdp=4 mesh.tensor=2$"),
    ],
)
def test_meshes_that_do_not_fit_are_rejected(sizes, says):
    with pytest.raises(UserError, match=says):
        mesh.build(config.MeshConfig(**sizes), jax.devices()[:8])


def test_data_axis_takes_the_remaining_devices():
    assert dict(mesh.build(config.MeshConfig(tensor=2), jax.devices()[:8]).shape)["data"] == 4


@pytest.mark.parametrize(
    ("name", "sizes", "fields", "says"),
    [
        ("plain", {"fsdp": 8}, {"batch_size": 12}, r"the 8 shards of the mesh.*fsdp=4 mesh.tensor=2, or set .* to 16$"),
        (
            "plain",
            {"fsdp": 8},
            {"batch_size": 24, "microbatches": 2},
            "of 12 rows .*, or set .*batch_size to 32$",
        ),
        ("elmo", {"data": 2, "context": 4}, {}, "kind 'elmo' reads a row sequentially, .*: use mesh.data=8$"),
    ],
)
def test_indivisible_batches_are_rejected_with_the_nearest_sizes(name, sizes, fields, says):
    train = dataclasses.replace(RUNS[name].train, **fields)
    run = dataclasses.replace(RUNS[name], train=train, mesh=config.MeshConfig(**{"data": 1} | sizes))
    with pytest.raises(UserError, match=says):
        Programs(run, jax.devices()[:8])


def test_rows_are_split_over_context(tiny):
    job, _ = fresh(tiny, data=2, context=4)
    batch, _ = next(runs.batches(job, 0))
    assert {shard.data.shape for shard in batch["tokens"].addressable_shards} == {(4, 8)}
    np.testing.assert_array_equal(batch["tokens"], job.reader.batch(0, range(8))["tokens"])
    run = dataclasses.replace(job.run, data=dataclasses.replace(job.run.data, length=30))
    with pytest.raises(
        UserError, match=r"mesh\.context=4 does not divide .* of 30 tokens: use mesh\.data=8, or change data\.length"
    ):
        Programs(run, jax.devices()[:8])


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, the TPU compiler")
def test_only_stage_and_data_axes_cross_slices():
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2", num_slices=2).devices

    def crossing(**sizes):
        """The axes along which the slice changes."""
        built = mesh.build(config.MeshConfig(**{"data": 1} | sizes), devices)
        slices = np.vectorize(lambda device: device.slice_index)(built.devices)
        axes = enumerate(built.axis_names)
        return {name for axis, name in axes if (slices != np.take(slices, [0], axis)).any()}

    assert crossing(data=2, fsdp=4) == crossing(data=4, tensor=2) == crossing(data=8) == {"data"}
    assert crossing(stage=2, fsdp=4) == crossing(stage=2, data=4) == {"stage"}
    with pytest.raises(UserError, match=r"2 slices.*mesh.data a multiple of 2"):
        crossing(fsdp=8)
