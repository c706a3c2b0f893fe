"""Parameters of microbatches: updates are the same if gathered at once or by layer, in either type."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from plm_jax import config
from plm_jax.models import layers, registry
from plm_jax.planning import hlo
from plm_jax.planning import plan as planning
from plm_jax.runs.programs import Programs
from plm_jax.training import step_parameters as weights
from tests.support import runs
from tests.support.tiny import RUNS


def make(folder, gather="layer", name="plain", **precision):
    return runs.make(
        folder,
        RUNS[name],
        mesh=config.MeshConfig(data=1, fsdp=4, tensor=2, gather=gather),
        train={"steps": 3, "microbatches": 2},
        precision=config.PrecisionConfig(**precision),
    )


def test_gathering_once_per_step_trains_alike(tiny):
    (want_losses, _, want, *_), (losses, _, got, *_) = (
        runs.steps(make(tiny, gather), 8) for gather in ("layer", "step")
    )
    np.testing.assert_allclose(losses, want_losses, rtol=1e-6)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], atol=1e-5, err_msg=name)
    (held,) = {kernel.spec for kernel in kernels_named("up", Programs(make(tiny, "step")).first.gathered_shardings)}
    assert tuple(held) == (None, None, "tensor")


def kernels_named(module, tree):
    return [
        leaf for path, leaf in jax.tree.leaves_with_path(tree) if [key.key for key in path[-2:]] == [module, "kernel"]
    ]


def traced(run):
    """Returns the step of a run on eight devices as text."""
    programs = Programs(run, jax.devices()[:8])
    (stage,) = programs.phases
    return str(programs.at(stage).phase_step(stage).trace(*planning.step_inputs(programs, stage)).jaxpr)


@pytest.mark.parametrize(
    ("compute", "gradients", "held"),
    [("bfloat16", "bfloat16", "bf16"), ("bfloat16", "float32", "f32"), ("float32", "bfloat16", "f32")],
)
def test_kernels_have_the_type_of_their_gradients(tiny, compute, gradients, held):
    # The kernels of both layers are converted before the loop over the layers.
    assert ("bf16[2,32,64]" in traced(make(tiny, compute=compute, gradients=gradients))) == (held == "bf16")


def test_model_without_token_embeddings_is_supported(tiny):
    model = RUNS["elmo"].model
    module = registry.build(model, jnp.bfloat16)
    held = jax.eval_shape(lambda params: weights.build(module, params, jnp.bfloat16).trained, registry.shapes(model))
    for path, leaf in jax.tree.leaves_with_path(held):
        assert leaf.dtype == (jnp.bfloat16 if path[-1].key == "kernel" else jnp.float32), path

    by_layer, by_step = (
        traced(make(tiny, gather, "elmo")).count("sharding_constraint") for gather in ("layer", "step")
    )
    paths = [path for path, _ in jax.tree.leaves_with_path(registry.shapes(model))]
    assert by_step - by_layer == sum(path[-1].key == "kernel" for path in paths)


def test_gradients_in_bfloat16_are_reduced_to_float32():
    model = RUNS["plain"].model
    module = registry.build(model, jnp.bfloat16)

    def gradients(params):
        prepared = weights.build(module, params, jnp.bfloat16)
        return prepared.trained, prepared.reduced(prepared.trained)

    trained, reduced = (jax.tree.leaves(tree) for tree in jax.eval_shape(gradients, registry.shapes(model)))
    assert {leaf.dtype for leaf in trained} == {jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)}
    assert {leaf.dtype for leaf in reduced} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize(("dtype", "error"), [(jnp.float32, 1e-6), (jnp.bfloat16, 4e-3)])
def test_gradient_has_the_type_of_the_kernel(dtype, error):
    rng = np.random.default_rng(0)
    x, d_y = (jnp.asarray(rng.normal(size=(5, 40, 8)), jnp.bfloat16) for _ in range(2))
    kernel = jnp.asarray(rng.normal(size=(8, 8)), dtype)
    got = jax.vjp(lambda kernel: layers.product(x, kernel, None), kernel)[1](d_y)[0]
    want = np.einsum("bli,blo->io", np.asarray(x, np.float64), np.asarray(d_y, np.float64))
    assert got.dtype == dtype
    off = np.abs(np.asarray(got, np.float64) - want).max() / np.abs(want).max()
    assert error / 100 < off < error or (dtype == jnp.float32 and off < error)


@pytest.mark.parametrize("sizes", [{"fsdp": 8}, {"fsdp": 4, "tensor": 2}, {"data": 2, "fsdp": 4}])
@pytest.mark.parametrize("axes", [("embed", "mlp"), ("mlp", "embed")])
def test_gradients_of_partial_tiles_are_scattered(sizes, axes):
    """No device ever has the sum of all: XLA for TPUs would leave it so, and so does XLA for CPUs."""
    lengths = {"embed": 24, "mlp": 32}
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(*sizes.values()), tuple(sizes))
    rng = np.random.default_rng(0)
    x, d_y = (jnp.asarray(rng.normal(size=(8, 4, lengths[axis])), jnp.float32) for axis in axes)
    dense = layers.Dense(lengths[axes[1]], axes, False, jax.nn.initializers.zeros, jnp.float32)

    def gradient(x, d_y):
        with nn.logical_axis_rules(config.MeshConfig().rules):
            kernel = jnp.zeros([lengths[axis] for axis in axes])
            return jax.vjp(lambda kernel: dense.apply({"params": {"kernel": kernel}}, x), kernel)[1](d_y)[0]

    with jax.set_mesh(mesh):
        rows = NamedSharding(mesh, PartitionSpec(tuple(axis for axis in sizes if axis != "tensor")))
        compiled = jax.jit(gradient, in_shardings=rows).lower(x, d_y).compile()
        got = compiled(jax.device_put(x, rows), jax.device_put(d_y, rows))
    np.testing.assert_allclose(got, np.einsum("bli,blo->io", x, d_y), rtol=1e-5, atol=1e-5)
    parts = np.prod(got.shape) // np.prod(got.sharding.shard_shape(got.shape))
    assert parts == 8 // sizes.get("data", 1)
    collectives = hlo.HloModule(compiled.as_text()).collectives()
    assert [c.kind for c in collectives].count("reduce-scatter") == 1
    # Between copies of the model parts are reduced.
    reduced = [array for c in collectives if c.kind == "all-reduce" for array in c.arrays]
    assert all(np.prod(array.dimensions) * parts <= got.size for array in reduced)


@pytest.mark.parametrize(
    ("kind", "rows", "scattered"),
    [("TPU v5", 24, 1), ("TPU v5", 1056, 1), ("TPU v5 lite", 24, 1), ("TPU v5 lite", 1056, 0), ("TPU v6 lite", 24, 0)],
)
def test_xla_scatters_gradients_itself_on_some_devices(kind, rows, scattered):
    dense = layers.Dense(32, ("embed", "mlp"), False, jax.nn.initializers.zeros, jnp.float32)
    device = AbstractDevice(kind, None, "tpu")
    mesh = AbstractMesh((8,), ("fsdp",), (AxisType.Auto,), abstract_device=device)

    def output(kernel, x):
        return dense.apply({"params": {"kernel": kernel}}, x).sum()

    with jax.sharding.use_abstract_mesh(mesh), nn.logical_axis_rules(config.MeshConfig().rules):
        program = str(jax.make_jaxpr(jax.grad(output))(jnp.zeros([rows, 32]), jnp.zeros([8, 4, rows])))
    assert program.count("reduce_scatter") == scattered
