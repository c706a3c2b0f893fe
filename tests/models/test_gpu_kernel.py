"""Flash attention for NVIDIA GPUs in interpreter mode against plain attention."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from plm_jax import models
from plm_jax.models import registry
from plm_jax.models.kernels import Context, gpu, plain, tile_mask, tiles, tpu
from plm_jax.training import flops
from tests.models.test_kernels import HOPPER, MODEL, TOKENS, devices, with_gradients

HEADS, SEED = 4, jnp.array([5, 7], jnp.uint32)


def starts(*rows, length):
    """Returns ids of documents that begin at these positions of each row."""
    return (jnp.arange(length) >= jnp.array(rows)[..., None]).sum(1)


def padding(*lengths, length):
    return (jnp.arange(length) < jnp.array(lengths)[:, None]).astype(jnp.int32)


DOCUMENTS = starts((9, 30, 31), (40, 56, 56), length=56)
PADDED = padding(56, 37, length=56)
PREFIXES = jnp.array([5, 33])
# Queries, keys, groups, head_dim, whether there is a bias, window and context. The cases cover every pair of features.
CASES = {
    "nothing": (64, 64, 4, 16, False, None, Context()),
    "causal": (56, 56, 2, 16, False, None, Context(causal=True, dropout=0.3)),
    "window_in_documents": (56, 56, 1, 8, False, 9, Context(causal=True, segment_ids=(DOCUMENTS, DOCUMENTS))),
    "bias_of_all_heads": (56, 56, 4, 24, True, None, Context(mask=PADDED, dropout=0.3, broadcast=True)),
    "bias_causal": (48, 48, 2, 16, True, 0, Context(causal=True, dropout=0.3, broadcast=True)),
    "memory": (40, 56, 2, 16, False, None, Context(mask=PADDED, dropout=0.3)),
    "all": (
        *(56, 56, 2, 24, True, 20),
        Context(True, PADDED, (DOCUMENTS, DOCUMENTS), prefix_lengths=PREFIXES, dropout=0.3),
    ),
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles in a short row."""
    monkeypatch.setattr(tiles, "on_gpu", lambda kernel, _: tiles.GpuTile(16, 16 if "dbias" in kernel else 32, 4, 2))


def arrays(queries, keys, groups, head_dim, biased):
    shapes = [(2, HEADS, queries, head_dim), *[(2, groups, keys, head_dim)] * 2]
    shapes += [(HEADS, queries + keys - 1)] if biased else []
    return [jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes)]


def by_flash(context, window, offsets=(0, 0, 0, 0)):
    def attend(query, key, value, bias=None):
        query_ids, key_ids = context.ids(query.shape[0], query.shape[2], key.shape[2])
        return gpu.flash(
            *(query, key, value),
            causal=context.causal,
            rate=context.dropout,
            broadcast=context.broadcast,
            interpret=True,
            query_ids=query_ids,
            key_ids=key_ids,
            prefix_lengths=context.prefix_lengths,
            window=window,
            distance_bias=bias,
            seed=SEED if context.dropout else None,
            offsets=jnp.array(offsets, jnp.int32),
        )

    return attend


def by_plain(context, window):
    def attend(query, key, value, bias=None):
        ready = replace(context, distance_bias=bias).with_kernel("xla", query.shape[2], key.shape[2])
        return plain.attend(query, key, value, ready, window, SEED if context.dropout else None)

    return attend


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_equal_plain_attention(name):
    queries, keys, groups, head_dim, biased, window, context = CASES[name]
    inputs = arrays(queries, keys, groups, head_dim, biased)
    window = None if window is None else jnp.int32(window)
    # Every query attends to itself, unless it is padding.
    used = jnp.ones((2, queries), bool) if context.mask is None or queries < keys else context.mask != 0
    want, got = (
        jax.jit(functools.partial(with_gradients, attend(context, window)))(used, *inputs)
        for attend in (by_plain, by_flash)
    )
    np.testing.assert_allclose(got[0], want[0], atol=1e-5)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-4), got[1], want[1])


def test_parts_drop_and_attend_like_the_whole():
    context = Context(causal=True, dropout=0.3)
    query, key, value = arrays(48, 48, HEADS, 8, False)
    whole = jax.jit(by_plain(context, jnp.int32(20)))(query, key, value)
    part = jax.jit(by_flash(context, jnp.int32(20), offsets=(1, 2, 16, 0)))
    outputs = part(query[1:, 2:, 16:], key[1:, 2:], value[1:, 2:])
    np.testing.assert_allclose(outputs, whole[1:, 2:, 16:], atol=1e-5)


# Queries, keys, causality, window, whether rows hold several documents, offsets of row, head and query.
SHAPES = [
    (64, 65, True, None, False, (3, 8, 1)),
    (41, 41, False, 20, True, (0, 2, 0)),
    (17, 130, True, None, False, (1, 0, 113)),
]


@pytest.mark.parametrize(
    ("shape", "rate", "broadcast"), [*((shape, 0.3, False) for shape in SHAPES), (SHAPES[0], 0.7, True)], ids=str
)
def test_kernels_drop_the_same_weights(shape, rate, broadcast):
    """With keys and queries of 0 and values of an identity matrix, outputs are the weights after dropout."""
    queries, keys, causal, window, packed, offsets = shape
    offsets = jnp.array([*offsets, 0], jnp.int32)
    size = -(-keys // 8) * 8
    query, key = (jnp.zeros((2, HEADS, length, size)) for length in (queries, keys))
    value = jnp.broadcast_to(jnp.eye(keys, size), key.shape)
    ids = (starts((9, 30), (40, 50), length=queries), starts((9, 30), (40, 50), length=keys)) if packed else (None,) * 2
    window = None if window is None else jnp.int32(window)
    arguments = {"query_ids": ids[0], "key_ids": ids[1], "window": window, "seed": SEED, "offsets": offsets}
    options = {"causal": causal, "rate": rate, "broadcast": broadcast, "interpret": True}
    on_tpu = functools.partial(tpu.flash, tile=tiles.Tile(16, 32, 1))
    by_gpu, by_tpu = (
        jax.jit(functools.partial(flash, **options))(query, key, value, **arguments) for flash in (gpu.flash, on_tpu)
    )
    # The same rows, heads and queries of a larger attention.
    first_row, first_head, first_query, _ = map(int, offsets)
    larger = [(0, 0), *((first, 0) for first in (first_head, first_query)), (0, 0)]
    rows = first_row + jnp.arange(2)
    segments = None if not packed else ids
    context = Context(causal, segment_ids=segments, rows=rows, dropout=rate, broadcast=broadcast)
    context = context.with_kernel("xla", queries + first_query, keys)
    whole = [jnp.pad(query, larger), *(jnp.pad(x, [(0, 0), (first_head, 0), (0, 0), (0, 0)]) for x in (key, value))]
    by_xla = plain.attend(*whole, context, window, SEED)[:, first_head:, first_query:]
    assert (by_xla == 0).any() and (by_xla > 0).any()
    np.testing.assert_allclose(by_gpu, by_xla, rtol=1e-5)
    np.testing.assert_allclose(by_tpu, by_xla, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["xla", "gpu", "tpu"])
def test_dropout_keeps_the_expectation(kernel):
    """At a rate of 0.99999 the chance of a weight is 1 / 65536: the mean of outputs of 1 is 1, not 1.53."""
    batch, length, keys = 8, 512, 4096
    arrays = [jnp.zeros((batch, 1, length, 8)), jnp.zeros((batch, 1, keys, 8)), jnp.ones((batch, 1, keys, 8))]
    context = Context(dropout=0.99999)
    if kernel == "tpu":
        attend = functools.partial(
            tpu.flash,
            causal=False,
            rate=0.99999,
            broadcast=False,
            interpret=True,
            seed=SEED,
            offsets=jnp.zeros(4, jnp.int32),
            tile=tiles.Tile(length, 1024, 1),
        )
    else:
        attend = by_plain(context, None) if kernel == "xla" else by_flash(context, None)
    kept_weights = batch * length * keys / 65536
    assert abs(jax.jit(attend)(*arrays).mean() - 1) < 4 * kept_weights**-0.5 == 0.25


def test_fully_masked_queries_have_zero_output_and_gradient():
    query, key, value = arrays(32, 32, HEADS, 8, False)
    context = Context(mask=padding(32, 0, length=32), dropout=0.3)
    run = jax.jit(functools.partial(with_gradients, by_flash(context, None)))
    out, gradients = run(jnp.ones((2, 32), bool), query, key, value)
    for array in (out, *gradients):
        assert jnp.isfinite(array).all() and not array[1].any() and array[0].any()


@pytest.mark.parametrize("number", range(12))
def test_skipped_tiles_are_fully_masked(number):
    rng = np.random.default_rng(number)
    queries, keys, query_tile, key_tile = (int(rng.integers(1, high)) for high in (40, 40, 16, 16))
    offsets = np.array([0, 0, rng.integers(0, 9), rng.integers(0, 9)])
    back = np.arange(queries)[:, None] + offsets[2] - np.arange(keys) - offsets[3]
    options, visible = {"causal": bool(number % 2)}, np.ones((2, queries, keys), bool)
    if options["causal"]:
        visible &= back >= 0
        if number % 4 == 3:
            options["prefix_lengths"] = rng.integers(0, keys, 2)
            visible |= np.arange(keys) + offsets[3] < options["prefix_lengths"][:, None, None]
    if number % 3:
        options["window"] = np.array([rng.integers(0, 9)])
        visible &= (np.abs(back) < options["window"]) | (options["window"] == 0)
    if number % 5:
        ids = options["query_ids"], options["key_ids"] = (
            rng.integers(0, 2, (2, queries)),
            rng.integers(-1, 2, (2, keys)),
        )
        visible &= (ids[0][:, :, None] == ids[1][:, None]) & (ids[1][:, None] >= 0)
    if number % 4 > 1:
        order = options["query_order"], options["key_order"] = (
            rng.integers(0, 4, (2, queries)),
            np.sort(rng.integers(0, 4, (2, keys))),
        )
        visible &= order[0][:, :, None] > order[1][:, None]
    causal = options.pop("causal")

    @jax.jit
    def ranges_of(options):
        masks = tile_mask.tiles(queries, keys, query_tile, key_tile, causal=causal, offsets=offsets, **options)
        return tile_mask.ranges(*masks)

    ranges = ranges_of(options)
    ranges = np.broadcast_to(ranges, (2, *ranges.shape[1:]))
    for (row, query, key), is_visible in np.ndenumerate(visible):
        first, begin, end, last = ranges[row, query // query_tile]
        assert first <= begin <= end <= last
        assert not is_visible or first <= key // key_tile < last
        assert is_visible or not begin <= key // key_tile < end


@pytest.mark.parametrize(("remat", "forward_kernels"), [("dots", 1), ("full", 2)])
def test_gpu_model_with_dropout_uses_pallas_kernels(remat, forward_kernels):
    model = replace(MODEL, remat=remat, attention_kernel="auto", dropout=models.DropoutConfig(attention=0.1))
    once = flops.kernels(traced(replace(model, remat="none"), TOKENS))["triton_forward"]
    assert flops.kernels(traced(model, TOKENS)) == {
        "triton_forward": forward_kernels * once,
        "triton_dq": once * 3 // 2,
        "triton_dkv": once * 2,
    }


def test_trained_bias_needs_no_score_array(monkeypatch):
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    tokens = jnp.zeros((2, 1024), jnp.int32)
    shared = {name: getattr(MODEL, name) for name in ("embedding", "feed_forward", "stack")}
    attention = models.AttentionConfig(4, 8, models.RelativeBias())
    model = models.EncoderDecoderConfig(**shared, attention=attention, decoder_stack=MODEL.stack, dropout=MODEL.dropout)
    program = traced(model, tokens, tokens)
    assert {"triton_forward", "triton_dbias"} <= set(flops.kernels(program))
    assert max(sizes(program)) < 4 * 1024 * 1024


def traced(model, *tokens):
    """Returns the program of a model's gradients in bfloat16 on an NVIDIA GPU."""
    module, shapes = registry.build(model, dtype=jnp.bfloat16), registry.shapes(model)

    def loss(params):
        rngs = {"dropout": jax.random.key(0)}
        return jnp.square(module.apply({"params": params}, *tokens, deterministic=False, rngs=rngs)).mean()

    with devices(HOPPER):
        return jax.make_jaxpr(jax.grad(loss))(shapes).jaxpr


def sizes(program):
    """Iterates over the sizes of the arrays that a program creates outside kernels."""
    for equation in program.eqns:
        yield from (variable.aval.size for variable in equation.outvars if hasattr(variable.aval, "size"))
        if equation.primitive.name != "pallas_call":
            for inner in core.jaxprs_in_params(equation.params):
                yield from sizes(inner)
