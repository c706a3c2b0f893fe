"""Attention kernels against each other, and the choice of a kernel."""

import contextlib
import logging
import re
from dataclasses import replace
from functools import cache, partial

import flax.linen as nn
import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh

from plm_jax import config, models
from plm_jax.common.errors import UserError
from plm_jax.models import kernels, registry
from plm_jax.models.attention import attend
from plm_jax.models.kernels import Context, choose, plain
from plm_jax.models.kernels.context import RelativeScores
from tests.models.own_positions import DistanceKeys

HEADS, HEAD_DIM = 4, 16


def inputs(queries, keys, groups):
    """Returns query, key and value of two rows."""
    shapes = [(2, HEADS, queries, HEAD_DIM), *[(2, groups, keys, HEAD_DIM)] * 2]
    return [jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes)]


def exactly(query, key, value, visible):
    """Reference attention in float64 with repeated heads; NaN for queries without visible keys."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    key, value = (np.repeat(x, HEADS // key.shape[1], axis=1) for x in (key, value))
    weights = np.exp(query @ key.swapaxes(2, 3)) * visible[:, None]
    with np.errstate(invalid="ignore"):
        return weights / weights.sum(-1, keepdims=True) @ value


def seen(context, queries, keys):
    """Returns the visibility, bool [2, Q, K], by the definitions of `Context`."""
    visible = np.ones((2, queries, keys), bool)
    if context.causal:
        visible = np.tril(visible)
    if context.mask is not None:
        visible &= np.asarray(context.mask)[:, None, :] == 1
    if context.segment_ids is not None:
        of_queries, of_keys = map(np.asarray, context.segment_ids)
        visible &= of_queries[:, :, None] == of_keys[:, None, :]
    return visible


def with_gradients(attend, used, *inputs):
    """Returns the outputs of used queries (bool [B, Q]), 0 for the others, and the gradients of a sum of them."""

    def weighed(*inputs):
        out = jnp.where(used[:, None, :, None], attend(*inputs), 0)
        return jnp.sum(out * jnp.sin(jnp.arange(out.size).reshape(out.shape))), out

    gradients, out = jax.grad(weighed, argnums=tuple(range(len(inputs))), has_aux=True)(*inputs)
    return out, gradients


@partial(jax.jit, static_argnames="kernel")
def values_and_gradients(kernel, context, used, *query_key_value):
    ready = context.with_kernel(kernel, query_key_value[0].shape[2], query_key_value[1].shape[2])
    return with_gradients(lambda *x: attend(*x, ready), used, *query_key_value)


PADDED = (jnp.arange(256) < jnp.array([[200], [256]])).astype(jnp.int32)
LEFT_PADDED = PADDED[:, ::-1]
STARTS = jnp.array([[99, 230], [56, 256]])
DOCUMENTS = (jnp.arange(256) >= STARTS[..., None]).sum(1)
# name: queries, keys, groups, context
CASES = {
    "causal_padded_documents_grouped": (256, 256, 2, Context(True, PADDED, (DOCUMENTS, DOCUMENTS))),
    "causal_left_padded": (256, 256, HEADS, Context(causal=True, mask=LEFT_PADDED)),
    "causal_of_odd_length": (150, 150, HEADS, Context(causal=True)),
    "all_of_an_odd_memory_in_one_group": (50, 150, 1, Context()),
    "documents_of_a_padded_memory": (70, 256, 2, Context(False, PADDED, (DOCUMENTS[:, 60:130], DOCUMENTS))),
}


@pytest.mark.parametrize("name", CASES)
def test_flash_equals_plain_attention(name):
    queries, keys, groups, context = CASES[name]
    arrays, visible = inputs(queries, keys, groups), seen(context, queries, keys)
    used = visible.any(-1)
    want, want_gradients = values_and_gradients("xla", context, used, *arrays)
    np.testing.assert_allclose(want, np.where(used[:, None, :, None], exactly(*arrays, visible), 0), atol=1e-5)
    got, got_gradients = values_and_gradients("flash", context, used, *arrays)
    np.testing.assert_allclose(got, want, atol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, atol=5e-5), got_gradients, want_gradients)


MODEL = models.DecoderConfig(
    embedding=models.EmbeddingConfig(31, 32),
    attention=models.AttentionConfig(4, 8, models.LearnedPositions(128), kv_heads=2),
    feed_forward=models.FeedForwardConfig(48),
    stack=models.StackConfig(2),
    remat="dots",
    attention_kernel="flash",
)
TOKENS = jax.random.randint(jax.random.key(0), (2, 128), 0, 31)
SEGMENTS = jnp.repeat(jnp.array([[1, 1, 2, 3], [1, 2, 2, 0]]), 32, axis=1)


@cache
def initial_params():
    return nn.unbox(jax.jit(partial(registry.init_params, registry.build(MODEL)))(jax.random.key(0)))


def gradients_of(model):
    """Returns the gradient as a function of the parameters, and random parameters."""
    module = registry.build(model)

    def loss(params):
        return jnp.square(module.apply({"params": params}, TOKENS, segment_ids=SEGMENTS)).mean()

    return jax.grad(loss), initial_params()


def test_mesh_gradients_equal_plain_attention():
    plain, params = gradients_of(replace(MODEL, attention_kernel="xla"))
    gradients, _ = gradients_of(replace(MODEL, remat="none"))
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(1, 2, 2), ("data", "fsdp", "tensor"))
    with jax.set_mesh(mesh), nn.logical_axis_rules(config.MeshConfig().rules):
        program = jax.jit(gradients).lower(params)
        got = program.compile()(params)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), got, jax.jit(plain)(params))
    # Each device computes one of two rows and two of four heads.
    assert "tensor<1x2x128x8xf32>" in program.as_text()


TPU, HOPPER = AbstractDevice("TPU v5", 2, "tpu"), AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")


@contextlib.contextmanager
def devices(device, data=1, tensor=1):
    """Simulates such devices."""
    axes = {"data": data, "fsdp": 1, "tensor": tensor}
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes), (AxisType.Auto,) * 3, abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh), nn.logical_axis_rules(config.MeshConfig().rules):
        yield


@pytest.mark.parametrize(("remat", "forward_kernels"), [("dots", 1), ("full", 2)])
def test_tpu_model_recomputes_flash_only_with_full_remat(remat, forward_kernels):
    gradients, params = gradients_of(replace(MODEL, remat=remat, attention_kernel="auto"))
    with devices(TPU, data=2, tensor=2):
        program = jax.jit(gradients).trace(params).lower(lowering_platforms=("tpu",)).as_text()
    called = re.findall(r'@tpu_custom_call.*kernel_name = "flash_(\w+)"', program)
    assert sorted(called) == ["backward", *["forward"] * forward_kernels]


@pytest.mark.parametrize(
    ("fields", "name", "is_causal"),
    [
        ({}, "__cudnn$fmhaSoftmax", True),
        ({"mask": PADDED}, "__cudnn$fmhaScaleBiasSoftmax", True),
        ({"prefix_lengths": jnp.array([100, 0])}, "__cudnn$fmhaScaleBiasSoftmax", False),
    ],
    ids=["causal", "padded", "prefix"],
)
def test_gpu_program_contains_cudnn(fields, name, is_causal, monkeypatch):
    """Includes the backward pass and masks on each device's part. Computing it requires a GPU."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    context = Context(causal=True, **fields)

    def loss(*query_key_value):
        ready = context.with_kernel("cudnn", 256, 256)
        return attend(*query_key_value, ready).astype(jnp.float32).sum()

    arrays = [x.astype(jnp.bfloat16) for x in inputs(256, 256, groups=2)]
    with devices(HOPPER, data=2, tensor=2):
        program = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(*arrays).lower(lowering_platforms=("cuda",))
    calls = [line for line in program.as_text().splitlines() if "__cudnn$fmha" in line]
    assert [f"@{name}(" in calls[0], f"@{name}Backward(" in calls[1], len(calls)] == [True, True, 2]
    assert all("tensor<1x256x2x16xbf16>, tensor<1x256x1x16xbf16>" in call for call in calls)
    assert all(("CAUSAL" in call) == is_causal for call in calls)


PLAIN = {"dtype": jnp.bfloat16, "head_dim": 64, "queries": 512, "keys": 512}


@pytest.mark.parametrize(
    ("setting", "platform", "facts", "kernel", "says"),
    [
        ("auto", "cpu", {}, "xla", ""),
        ("auto", "gpu", {}, "xla", ""),
        ("auto", "tpu", {"dense": True, "dropout": True, "distance_bias": True, "windows": True}, "flash", ""),
        ("auto", "tpu", {"dtype": jnp.float32, "queries": 114, "head_dim": 24}, "flash", ""),
        ("auto", "tpu", {"prefix": True}, "flash", ""),
        ("auto", "tpu", {"bias": True}, "xla", "only a bias that depends on distances"),
        ("auto", "tpu", {"head_dim": 12}, "xla", "divisible by 8, not 12"),
        ("auto", "cuda", {"dense": True}, "cudnn", ""),
        ("auto", "cuda", {"queries": 113}, "cudnn", ""),
        ("auto", "cuda", {"queries": 113, "dense": True}, "flash", ""),
        ("auto", "cuda", {"dtype": jnp.float32}, "flash", ""),
        ("auto", "cuda", {"head_dim": 256}, "flash", ""),
        ("auto", "cuda", {"dropout": True}, "flash", ""),
        ("auto", "cuda", {"distance_bias": True}, "flash", ""),
        ("auto", "cuda", {"cut": True}, "flash", ""),
        ("auto", "cuda", {"windows": True}, "flash", ""),
        ("auto", "cuda", {"prefix": True}, "cudnn", ""),
        ("auto", "cuda", {"bias": True}, "xla", "only a bias that depends on distances"),
        ("auto", "cuda", {"head_dim": 12}, "xla", "divisible by 8, not 12"),
        ("cudnn", "cuda", {"queries": 113, "dense": True}, "flash", "even lengths, not 113 and 512"),
        ("cudnn", "cuda", {"queries": 513, "prefix": True}, "flash", "even lengths"),
        ("cudnn", "cuda", {"windows": True}, "flash", "windows are not implemented for cudnn"),
        ("cudnn", "cuda", {"dropout": True}, "flash", "not reproducible"),
        ("xla", "tpu", {"bias": True, "dropout": True}, "xla", ""),
        ("xla", "cuda", {}, "xla", ""),
        ("cudnn", "cpu", {}, "xla", "needs an NVIDIA GPU, not a cpu"),
        ("flash", "cpu", {}, "flash", "interpreted"),
        ("flash", "cpu", {"bias": True}, "xla", "only a bias that depends on distances"),
    ],
)
def test_kernel_choice_by_device(setting, platform, facts, kernel, says):
    picked, reason = choose(setting, platform, **PLAIN | facts)
    assert picked == kernel
    assert says in reason and bool(says) == bool(reason)


def test_platform_follows_mesh():
    """A host without a TPU can compile for one."""
    platforms = [kernels.platform()]
    for device in (TPU, HOPPER, AbstractDevice("AMD Instinct MI300X", None, "gpu")):
        with devices(device):
            jax.make_jaxpr(lambda x: platforms.append(kernels.platform()) or x)(1.0)
    assert platforms == ["cpu", "tpu", "cuda", "gpu"]


def test_choice_is_logged_and_fallback_warned(caplog):
    caplog.set_level(logging.INFO, "plm_jax")
    position, dropout = models.RelativeBias(), models.DropoutConfig(attention=0.1)
    shared = {name: getattr(MODEL, name) for name in ("embedding", "feed_forward", "stack")}
    model = models.EncoderDecoderConfig(
        **shared, attention=models.AttentionConfig(4, 8, position), decoder_stack=MODEL.stack, dropout=dropout
    )
    module, shapes = registry.build(model), registry.shapes(model)

    def trace(**options):
        rngs = {"dropout": jax.random.key(0)}
        caplog.clear()
        jax.jit(lambda p: module.apply({"params": p}, TOKENS, TOKENS, rngs=rngs, **options)).trace(shapes)
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    names = "attention of 'encoder'", "attention of 'decoder'", "cross_attention of 'decoder'"
    with devices(TPU):
        assert trace() == trace(deterministic=False) == [("INFO", f"{name} uses the flash kernel") for name in names]
    assert trace() == [("INFO", f"{name} uses the xla kernel") for name in names]
    model = replace(model, attention=replace(model.attention, position=DistanceKeys()))
    module, shapes = registry.build(model), registry.shapes(model)
    said = "uses the xla kernel (flash supports only a bias that depends on distances)"
    with devices(TPU):
        assert trace() == [
            *(("WARNING", f"{name} {said}") for name in names[:2]),
            ("INFO", f"{names[2]} uses the flash kernel"),
        ]


def test_missing_cudnn_is_reported(monkeypatch):
    def missing(*_, **__):
        raise RuntimeError("cuDNN is not detected.")

    monkeypatch.setattr(jax.nn, "dot_product_attention", missing)
    arrays = inputs(8, 8, HEADS)
    with pytest.raises(UserError, match=r"no cuDNN that it can use \(cuDNN is not detected\.\): pip install"):
        attend(*arrays, Context(kernel="cudnn"))


ONE_BIAS, ROW_BIAS = (jax.random.normal(jax.random.key(9), (rows, HEADS, 50, 150)) for rows in (1, 2))
BY_ROW = {
    "plain": Context(),
    "padded": Context(mask=PADDED[:, 60:210]),
    "mask_by_query": Context(mask=jax.random.bernoulli(jax.random.key(8), 0.5, (2, 50, 150)).at[:, :, 0].set(True)),
    "bias_of_all": Context(bias=ONE_BIAS),
    "bias_of_rows": Context(bias=ROW_BIAS, mask=PADDED[:, 60:210]),
    "window": Context(windows=(20,)),
    "relative": Context(relative=RelativeScores(key_bias=jax.random.normal(jax.random.key(7), (2, HEADS, 150)))),
}


@pytest.mark.parametrize("context", BY_ROW.values(), ids=BY_ROW)
def test_rows_of_many_scores_are_computed_one_at_a_time(context, monkeypatch):
    arrays = inputs(50, 150, 2)

    def mix(bias, *arrays):
        ready = context.replace(bias=bias).with_kernel("xla", 50, 150)
        return attend(*arrays, ready)

    def sizes():
        jaxpr = jax.make_jaxpr(lambda *x: mix(*x))(context.bias, *arrays).jaxpr  # A new function: traces are cached.
        return {eqn.outvars[0].aval.size for eqn in equations(jaxpr)}

    def values_and_gradients():
        with_bias = (0, 1, 2, 3) if context.bias is not None else (1, 2, 3)
        gradients = jax.grad(lambda *x: jnp.sum(jnp.sin(mix(*x))), with_bias)
        return jax.jit(lambda *x: (mix(*x), *gradients(*x)))(context.bias, *arrays)

    all_scores = 2 * HEADS * 50 * 150
    expected = values_and_gradients()
    assert all_scores in sizes()
    monkeypatch.setattr(plain, "SCORES_AT_ONCE", all_scores - 1)
    assert all_scores // 2 in sizes()
    if context.relative is None and (context.bias is None or len(context.bias) == 1):
        assert all_scores not in sizes()
    for got, of_all in zip(values_and_gradients(), expected, strict=True):
        np.testing.assert_allclose(got, of_all, atol=1e-6)


def equations(jaxpr):
    """Yields the equations of a jaxpr, and those of the jaxprs in them."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from equations(inner)


@pytest.mark.parametrize("window", [1, 2, 5])
def test_equal_scores_average_the_keys_at_distances_below_the_window(window):
    zeros, values = jnp.zeros((1, 1, 9, 9)), jnp.eye(9)[None, None]
    context = Context(windows=(window,)).with_kernel("xla", 9, 9)
    weights = attend(zeros, zeros, values, context)[0, 0]
    is_near = np.abs(np.arange(9)[:, None] - np.arange(9)) < window
    np.testing.assert_allclose(weights, is_near / is_near.sum(1, keepdims=True), rtol=1e-6)
