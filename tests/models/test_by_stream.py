"""Both streams of XLNet by a flash kernel, interpreted, against XLA's attention."""

import functools
import importlib.util
import math
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plm_jax import config, losses
from plm_jax.configs import xlnet
from plm_jax.models import registry
from plm_jax.models.kernels import Context, gpu, tiles, tpu
from plm_jax.planning.plan import slice_devices
from plm_jax.training import mesh
from tests.models.test_gpu_kernel import sizes
from tests.models.test_kernels import HOPPER, TPU, devices
from tests.support import runs
from tests.support.random_models import random_params

VOCAB, LENGTH, MEMORY, WIDTH, ROWS = 20, 20, 9, 16, 2


def batch_of():
    """Returns rows in a random order; the last target of the first row is an unused slot at another one's position."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, VOCAB, (ROWS, LENGTH), np.int32)
    order = 1 + np.argsort(rng.random((ROWS, LENGTH)), axis=1).astype(np.int32)
    order[:, [5, 6, 13]] = 0  # Visible to all.
    targets = np.array([[0, 3, 8, 17, 0], [1, 2, 9, 11, 18]], np.int32)
    return {
        "tokens": tokens,
        "order": order,
        "target_positions": targets,
        "targets": np.take_along_axis(tokens, targets, axis=1),
        "target_weights": np.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], np.float32),
    }


SEGMENTS = (np.arange(LENGTH) >= [[6], [10]]).astype(np.int32)
FORWARD = np.arange(LENGTH, dtype=np.int32)
# Length of the memory, rate of dropout, and further inputs.
CASES = {
    "published": (
        *(MEMORY, 0.2),
        {
            "mask": (FORWARD < [[LENGTH], [19]]).astype(np.int32),
            "token_types": SEGMENTS,
            "positions": np.stack([FORWARD, 30 - FORWARD]),
        },
    ),
    "packed": (
        *(0, 0.0),
        {
            "segment_ids": SEGMENTS,
            "positions": np.where(SEGMENTS, FORWARD - [[6], [10]], FORWARD),
            "token_types": np.stack([FORWARD // 3, FORWARD // 4]) % 2,
        },
    ),
}


def loss_and_gradients(name, kernel, sizes):
    """Returns the loss of a case and the gradients by path, on a mesh of these sizes."""
    memory_length, dropout, inputs = CASES[name]
    model = xlnet.model(1, WIDTH, 2, VOCAB, memory_length, min(memory_length, 8), dropout)
    module, params = registry.build(model.with_speed(attention_kernel=kernel)), random_params(model)
    batch, loss = batch_of() | inputs, losses.get("permutation_lm")
    memory = np.random.default_rng(1).normal(size=(ROWS, 1, memory_length, WIDTH)).astype(np.float32)
    carry = {"memory": memory} if memory_length else {}

    def mean(params):
        keys = {"dropout": jax.random.key(3)} if dropout else None
        return sum(loss(module, params, batch, keys, carry)[0].values())

    built = mesh.build(config.MeshConfig(**{"data": 1} | sizes), jax.devices()[: math.prod(sizes.values())])
    with jax.set_mesh(built), nn.logical_axis_rules(config.MeshConfig().rules):
        value, gradients = jax.jit(jax.value_and_grad(mean))(params)
    return value, runs.flat(gradients)


def compare(name, sizes):
    """Asserts that the flash kernel on a mesh and XLA on one device have the same loss and gradients."""
    expected, exact = loss_and_gradients(name, "xla", {})
    got, gradients = loss_and_gradients(name, "flash", sizes)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    for path, leaf in exact.items():
        scale = np.abs(leaf).max()
        assert scale > 0, path
        np.testing.assert_allclose(gradients[path], leaf, atol=2e-5 * scale, err_msg=path)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch, request):
    if "score" not in request.node.name:
        monkeypatch.setattr(tiles, "choose", lambda *_, **__: tiles.Tile(16, 16, 1))
        monkeypatch.setattr(tiles, "on_gpu", lambda *_: tiles.GpuTile(16, 16, 4, 2))


def test_loss_and_gradients_by_tpu_kernel_on_a_mesh_equal_those_by_xla():
    compare("published", {"fsdp": 2, "context": 2})


def test_loss_and_gradients_by_gpu_kernel_equal_those_by_xla(monkeypatch):
    monkeypatch.setattr(tpu, "flash", gpu.flash)
    compare("packed", {})


LONG, NUM_TARGETS, HEADS = 512, 64, 2
NUM_SCORES = ROWS * HEADS * (LONG + NUM_TARGETS) * 2 * LONG


def gradients_of_step(kernel="auto"):
    """Returns the gradients of the loss with a memory of a row's length as a function, and the shapes of its inputs."""
    model = xlnet.model(1, 64 * HEADS, HEADS, VOCAB, LONG, LONG).with_speed(attention_kernel=kernel)
    module, loss = registry.build(model, dtype=jnp.bfloat16), losses.get("permutation_lm")

    def mean(params, batch, memory):
        return sum(loss(module, params, batch, {"dropout": jax.random.key(0)}, {"memory": memory})[0].values())

    integers = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    tokens, targets = integers((ROWS, LONG)), integers((ROWS, NUM_TARGETS))
    batch = dict.fromkeys(("tokens", "order", "token_types", "positions", "mask"), tokens)
    batch |= {"target_positions": targets, "targets": targets}
    batch["target_weights"] = jax.ShapeDtypeStruct(targets.shape, jnp.float32)
    memory = jax.ShapeDtypeStruct((ROWS, 1, LONG, 64 * HEADS), jnp.float32)
    return jax.grad(mean), (registry.shapes(model), batch, memory)


@pytest.mark.parametrize(
    ("kernel", "device"), [("auto", TPU), ("auto", HOPPER), ("xla", TPU)], ids=["tpu", "gpu", "xla"]
)
def test_program_has_no_score_array(kernel, device):
    gradients, shapes = gradients_of_step(kernel)
    with devices(device):
        program = jax.make_jaxpr(gradients)(*shapes).jaxpr
    largest = max(sizes(program))
    assert largest >= NUM_SCORES if kernel == "xla" else largest < NUM_SCORES / 2


@pytest.mark.parametrize("topology", ["v5e:2x2", "gpu:h100:1"])
def test_compilers_need_no_score_memory(topology):
    module = "jax_cuda13_plugin" if topology.startswith("gpu") else "libtpu"
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs the compiler in {module}")
    one = Mesh(np.array(slice_devices(topology)[:1]), ("data",))
    sharding = NamedSharding(one, PartitionSpec())
    with jax.set_mesh(one):
        gradients, shapes = gradients_of_step()
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)
        program = jax.jit(gradients).lower(*shapes).compile()
    shapes = re.findall(r"\b(?:pred|[a-z]+\d+)\[([\d,]+)\]", program.as_text())
    largest = max(math.prod(map(int, shape.split(","))) for shape in shapes)
    assert ROWS * LONG * 64 * HEADS <= largest < NUM_SCORES / 2


def test_tokens_and_targets_have_dropout_masks_of_their_own():
    context = Context(targets=jnp.array([[0, 3, 3], [1, 2, 0]]))
    numbers = context.numbers(jnp.zeros((1, 1, 5 + 3, 1)))[:, 0, :, 0]
    assert numbers[:, :5].tolist() == [[0, 1, 2, 3, 4]] * 2
    # Equal targets share a mask, but no target shares the mask of a token.
    assert len({*numbers[0].tolist()}) == 5 + 2 and len({*numbers[1].tolist()}) == 5 + 3
