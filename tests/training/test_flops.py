"""Model FLOPs against the products of traced programs, and how these are counted."""

import dataclasses
import itertools
import os

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import AxisType, PartitionSpec

from plm_jax import models
from plm_jax.models import registry
from plm_jax.models.kernels import tiles, tpu
from plm_jax.planning import plan as planning
from plm_jax.runs import phase_costs
from plm_jax.runs.programs import Programs
from plm_jax.training import flops
from tests.models.test_encoder import small_encoder
from tests.models.test_encoder_decoder import MODELS
from tests.support.tiny import RUNS

FULL = bool(os.environ.get("PLM_JAX_FULL_TESTS"))
# Of runs that differ in more than their model one is enough.
FAMILIES = [name for name in RUNS if "everything" not in name and name not in ("dropout", "separate")]
SPEEDS = list(itertools.product(("xla", "flash"), models.DecoderConfig.remat_levels))
# By default each family has one of the six, and each of the six some families.
TRACED = [
    (name, *speed) for number, name in enumerate(FAMILIES) for speed in (SPEEDS if FULL else (SPEEDS[number % 6],))
]


@pytest.mark.parametrize(
    ("stack", "embedding_size"),
    [(models.StackConfig(3), None), (models.StackConfig(4, groups=1), 5), (models.StackConfig(4, 2, 2), None)],
)
def test_flops_of_an_encoder_equal_its_products(stack, embedding_size):
    embedding = models.EmbeddingConfig(31, 12, token_types=2, norm=True, embedding_size=embedding_size)
    model = small_encoder(stack=stack, embedding=embedding, pooler=models.NoHead())
    module, tokens = registry.build(model), jax.ShapeDtypeStruct((2, 8), "int32")
    traced = jax.make_jaxpr(lambda params, tokens: module.apply({"params": params}, tokens))(
        registry.shapes(model), tokens
    )
    assert flops.of_program(traced.jaxpr) == flops.per_step(model, 2, 8, targets=8) / 3


@pytest.mark.parametrize("name", MODELS)
def test_flops_of_an_encoder_decoder_equal_its_products(name):
    """But for the half of the decoder's attention to itself that is hidden."""
    model, rows, length, decoder_length = MODELS[name], 2, 8, 6
    module = registry.build(model)
    tokens, decoder_tokens = (jax.ShapeDtypeStruct((rows, n), "int32") for n in (length, decoder_length))
    traced = jax.make_jaxpr(lambda params, *inputs: module.apply({"params": params}, *inputs))(
        registry.shapes(model), tokens, decoder_tokens
    )
    joined = {"uneven": 2 * 5}.get(name, 3 * 4)
    hidden = 2 * rows * model.decoder_stack.layers * 2 * joined * decoder_length**2 // 2
    counted = flops.per_step(model, rows, length, targets=decoder_length, decoder_length=decoder_length) / 3
    assert flops.of_program(traced.jaxpr) == counted + hidden


@pytest.mark.parametrize(("name", "kernel", "remat"), TRACED)
def test_programs_compute_at_least_the_model_flops(name, kernel, remat):
    run = RUNS[name]
    run = dataclasses.replace(run, model=run.model.with_speed(attention_kernel=kernel, remat=remat))
    programs = Programs(run, jax.devices()[:1])
    (stage,) = programs.phases
    traced = programs.at(stage).phase_step(stage).trace(*planning.step_inputs(programs, stage))
    model = phase_costs.model_flops(run, stage)
    counted = flops.of_program(traced.jaxpr.jaxpr)
    assert counted >= model
    # What `xla` does besides: hidden halves, recomputation, norms of gradients, targets' slots that stay empty.
    assert kernel == "flash" or counted < 1.6 * model
    found = flops.kernels(traced.jaxpr.jaxpr)
    assert set(found) >= ({"flash_forward"} if kernel == "flash" and name != "elmo" else set())
    assert all(found.values()) and (kernel == "flash" or not found)


def product(x_ref, y_ref, out_ref):
    out_ref[...] = x_ref[...] @ y_ref[...]


@pytest.mark.parametrize("estimated", [None, 12345])
def test_kernels_count_their_estimate_or_their_grid(estimated):
    def multiply(x, y):
        cost = estimated and pl.CostEstimate(flops=estimated, transcendentals=7, bytes_accessed=0)
        return pl.pallas_call(
            product,
            out_shape=jax.ShapeDtypeStruct((64, 32), x.dtype),
            grid=(4,),
            in_specs=[pl.BlockSpec((16, 8), lambda i: (i, 0)), pl.BlockSpec((8, 32), lambda i: (0, 0))],
            out_specs=pl.BlockSpec((16, 32), lambda i: (i, 0)),
            cost_estimate=cost,
            name="product",
            interpret=True,
        )(x, y)

    def twice(x, y):
        return jax.lax.scan(lambda total, _: (total + multiply(x, y), None), jnp.zeros((64, 32)), length=2)[0]

    traced = jax.make_jaxpr(twice)(jnp.ones((64, 8)), jnp.ones((8, 32)))
    assert flops.of_program(traced.jaxpr) == 2 * (estimated or 2 * 64 * 8 * 32)
    assert flops.kernels(traced.jaxpr) == {"product": flops.of_program(traced.jaxpr)}
    assert flops.scores(traced.jaxpr) == {"product": 2 * 7 if estimated else 0}


def test_recomputed_kernels_count_again():
    @jax.custom_vjp
    def multiply(x, y):
        return forward(x, y)[0]

    def forward(x, y):
        cost = pl.CostEstimate(flops=1000, transcendentals=0, bytes_accessed=0)
        result = pl.pallas_call(
            product,
            out_shape=jax.ShapeDtypeStruct((16, 16), x.dtype),
            cost_estimate=cost,
            name="forward",
            interpret=True,
        )(x, y)
        return result, (x, y, result)

    def backward(residuals, gradient):
        x, y, result = residuals
        return (gradient * result) @ y.T, x.T @ gradient

    multiply.defvjp(forward, backward)

    def loss(x, y, function):
        return jnp.sum(jnp.sin(function(x, y)))

    for function, times in ((multiply, 1), (jax.checkpoint(multiply), 2)):
        traced = jax.make_jaxpr(jax.grad(lambda x, y, f=function: loss(x, y, f)))(
            jnp.ones((16, 16)), jnp.ones((16, 16))
        )
        assert flops.kernels(traced.jaxpr) == {"forward": 1000 * times}


def scores_of_flash(queries, tile=128, keys=2048, groups=2, head_dim=64):
    """Returns the number of scores that flash attention computes for some queries of a causal row."""

    def attend(query, key):
        return tpu.flash(
            query,
            key,
            key,
            causal=True,
            rate=0.0,
            broadcast=False,
            interpret=True,
            offsets=jnp.zeros(4, jnp.int32),
            tile=tiles.Tile(tile, tile, groups),
        )

    query, key = (jax.ShapeDtypeStruct((1, groups, length, head_dim), jnp.bfloat16) for length in (queries, keys))
    (found,) = flops.scores(jax.make_jaxpr(attend)(query, key).jaxpr).values()
    return found / groups


def test_parts_of_a_causal_row_count_like_the_whole():
    """Their places in the row are not known where they are counted: each is an average one."""
    tiles_of_row = 2048 // 128
    assert scores_of_flash(2048) == 128**2 * tiles_of_row * (tiles_of_row + 1) / 2
    assert 8 * scores_of_flash(2048 // 8) == scores_of_flash(2048)


def test_shard_map_counts_the_devices_of_its_axes():
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

    def products(x, axes):
        spec = PartitionSpec(axes)
        run = jax.shard_map(
            lambda x: x @ x.T @ x, mesh=mesh, in_specs=spec, out_specs=spec, axis_names=set(axes), check_vma=False
        )
        return jax.make_jaxpr(run)(x).jaxpr

    x = jnp.ones((16, 3))
    for axes, devices in ((("a",), 2), (("a", "b"), 8)):
        assert flops.of_program(products(x, axes)) == devices * 2 * (2 * (16 // devices) ** 2 * 3)


def test_costliest_branch_counts():
    def either(x):
        return jax.lax.cond(x.sum() > 0, lambda x: x @ x @ x, lambda x: x @ x, x)

    assert flops.of_program(jax.make_jaxpr(either)(jnp.ones((8, 8))).jaxpr) == 2 * 2 * 8**3


@pytest.mark.parametrize(("causal", "seen"), [(False, 1.0), (True, 0.5)])
def test_cudnn_counts_by_its_shapes(monkeypatch, causal, seen):
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91200)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda capability: True)
    query, key = (jnp.ones((2, length, 4, 64), jnp.bfloat16) for length in (128, 256))

    def attend(query, key, value):
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=causal, implementation="cudnn")
        return mixed.astype(jnp.float32).sum()

    product = 2 * 2 * 128 * 4 * 64 * 256 * seen
    traced = jax.make_jaxpr(jax.grad(attend, (0, 1, 2)))(query, key, key)
    assert flops.of_program(traced.jaxpr) == (2 + 5) * product
    assert flops.of_program(jax.make_jaxpr(attend)(query, key, key).jaxpr) == 2 * product
