"""Meshes of eight devices against one device: losses, updates, sharding constraints, memory."""

import functools
import os

import jax
import numpy as np
import pytest

from plm_jax import config
from plm_jax.common.errors import UserError
from plm_jax.training import loop, mesh
from tests.support import runs
from tests.support.tiny import RUNS

MESHES = [
    {"data": 8},
    {"data": 1, "fsdp": 8},
    {"data": 2, "fsdp": 4},
    {"data": 1, "fsdp": 4, "tensor": 2},
    {"data": 2, "fsdp": 2, "tensor": 2},
]
STEPS = 5
# Compiling takes long: PLM_JAX_FULL_TESTS=1 takes every mesh with and without dropout.
FULL = bool(os.environ.get("PLM_JAX_FULL_TESTS"))
FAMILIES = ("plain", "bert", "roberta", "albert", "distilbert", "electra", "spanbert", "t5", "bart", "transformer")
FAMILIES += ("llama", "gpt3", "glm", "chatglm")
CASES = [(family, sizes, dropout) for family in FAMILIES for dropout in (0.1, 0.0) for sizes in MESHES]
if not FULL:
    CASES = [("plain", MESHES[0], 0.1), ("plain", MESHES[1], 0.1), ("plain", MESHES[3], 0.1)]
    CASES += [("bert", MESHES[4], 0.1), ("t5", MESHES[4], 0.1)]
    CASES += [("llama", MESHES[3], 0.1)]


def make(folder, dropout, family="plain", **sizes):
    """A run on a mesh, and how many devices that has."""
    run = runs.make(folder, RUNS[family], dropout, mesh=config.Mesh(**sizes), train={"steps": STEPS})
    return run, int(np.prod(list(sizes.values())))


@functools.cache
def trained(folder, dropout, family, **sizes):
    return runs.steps(*make(folder, dropout, family, **sizes))


def fresh(folder, dropout, **sizes):
    """A trainer on a mesh, and the state before its first step."""
    run, devices = make(folder, dropout, **sizes)
    trainer = loop.Trainer(run, jax.devices()[:devices])
    return trainer, trainer.new_state()


@pytest.mark.parametrize(("family", "sizes", "dropout"), CASES, ids=str)
def test_losses_and_updates_are_those_of_one_device(tiny, family, sizes, dropout):
    want_losses, before, want, _, _ = trained(tiny, dropout, family, data=1)
    got_losses, same_before, got, _, _ = trained(tiny, dropout, family, **sizes)
    np.testing.assert_allclose(got_losses, want_losses, rtol=1e-5)
    assert want_losses[0] - want_losses[-1] > 0.05
    for name in want:
        np.testing.assert_allclose(same_before[name], before[name], rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(got[name], want[name], atol=1e-5, err_msg=name)
        if name.endswith("key/bias"):  # Its gradient is mathematically zero: what moves it is rounding.
            continue
        update = want[name] - before[name]
        difference = np.linalg.norm(got[name] - same_before[name] - update) / np.linalg.norm(update)
        assert difference < 1e-3, (name, difference)


def test_dropout_changes_the_losses(tiny):
    assert trained(tiny, 0.0, "plain", data=1)[0][1:] != trained(tiny, 0.1, "plain", data=1)[0][1:]


def test_the_lowered_step_holds_the_sharding_constraints(tiny):
    trainer, state = fresh(tiny, 0.1, data=1, fsdp=4, tensor=2)
    batch, _ = next(trainer.batches(0))
    text = trainer.stage_step(trainer.stages[0]).lower(state, batch).as_text()
    constraints = [line for line in text.splitlines() if "sdy.sharding_constraint" in line]
    assert any('"fsdp"' in line and '"tensor"' in line for line in constraints)
    # After the embeddings; in the block: query, key, value, mixed heads, hidden layer, output.
    assert len(constraints) >= 7


def test_bytes_per_device_fall_as_one_over_fsdp(tiny):
    def local_bytes(fsdp):
        _, state = fresh(tiny, 0.1, data=1, fsdp=fsdp)
        leaves = [leaf for leaf in jax.tree.leaves((state.params, state.optimizer)) if leaf.ndim]
        device = jax.devices()[0]
        return state, sum(s.data.nbytes for leaf in leaves for s in leaf.addressable_shards if s.device == device)

    state, one = local_bytes(1)
    model = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
    assert one == 3 * model, "parameters and Adam's two moments"
    assert local_bytes(8)[1] == one / 8


def test_what_does_not_divide_is_left_whole(tiny):
    odd = {"vocab_size": 271, "width": 32}
    run = runs.make(tiny, mesh=config.Mesh(data=1, fsdp=2, tensor=4))
    run = runs.make(tiny, run, model={"embedding": type(run.model.embedding)(**odd)})
    shardings = loop.Trainer(run, jax.devices()[:8]).shardings.params
    assert shardings["token_embedding"].spec == jax.sharding.PartitionSpec(None, "fsdp")


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"data": 3}, "does not fit 8 devices"),
        ({"data": -1, "fsdp": 3}, "does not fit 8 devices"),
        ({"data": -1, "fsdp": -1}, "one may be -1"),
        ({"data": 0}, "at least 1"),
        ({"data": 4, "context": 2}, "context"),
    ],
)
def test_a_mesh_that_does_not_fit_is_said(sizes, says):
    with pytest.raises(UserError, match=says):
        mesh.build(config.Mesh(**sizes), jax.devices()[:8])


def test_what_is_left_goes_to_minus_one():
    assert dict(mesh.build(config.Mesh(tensor=2), jax.devices()[:8]).shape)["data"] == 4
