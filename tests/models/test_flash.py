"""Flash attention in interpreter mode against plain attention: values, memory and dropout."""

import importlib.util
import itertools
import os
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plm_jax import config
from plm_jax.models.attention import attend
from plm_jax.models.kernels import Context, plain, tiles, tpu
from plm_jax.models.kernels.dropout import keep_weights, realized
from plm_jax.planning.plan import slice_devices
from plm_jax.training import mesh
from tests.models.test_kernels import TPU, devices, with_gradients

FULL = bool(os.environ.get("PLM_JAX_FULL_TESTS"))
ROWS, HEADS, TILE = 2, 4, tiles.Tile(16, 16, 1)
MESHES = ({"data": 2, "fsdp": 2, "tensor": 2}, {"data": 4, "tensor": 2}, {"fsdp": 2, "tensor": 4})
SEED = jnp.array([123, 4_000_000_000], jnp.uint32)


def inputs(queries, keys, groups, head_dim):
    """Returns query, key and value of two rows, and a bias by distance."""
    shapes = (HEADS, queries), (groups, keys), (groups, keys)
    arrays = [jax.random.normal(jax.random.key(i), (ROWS, *shape, head_dim)) for i, shape in enumerate(shapes)]
    return *arrays, jax.random.normal(jax.random.key(3), (HEADS, queries + keys - 1))


def features(queries, keys, present, names):
    """Returns inputs of attention by name. Those not in `present` are neutral arrays of the same shape."""
    halves = [(jnp.arange(n) >= jnp.array([[n // 3], [n // 2]])).astype(jnp.int32) for n in (queries, keys)]
    values = {
        "segments": tuple(halves),
        "padding": (jnp.arange(keys) < jnp.array([[keys - 9], [keys]])).astype(jnp.int32),
        "window": jnp.int32(5),
        "prefix": jnp.array([11, 0]),
    }
    silent = {"padding": jnp.ones_like(values["padding"]), "window": jnp.int32(0), "prefix": jnp.zeros(2, jnp.int32)}
    silent["segments"] = tuple(map(jnp.zeros_like, halves))
    return {name: (values if name in present else silent)[name] for name in names}


@partial(jax.jit, static_argnames=("flash", "causal", "rate", "broadcast"))
def both(flash, causal, rate, broadcast, inputs, query, key, value, bias):
    """Returns the outputs and the gradients of a weighted sum of them."""
    context = Context(
        causal=causal,
        mask=inputs.get("padding"),
        segment_ids=inputs.get("segments"),
        prefix_lengths=inputs.get("prefix"),
    ).replace(dropout=rate, broadcast=broadcast)
    queries, keys = query.shape[2], key.shape[2]
    seed, window = SEED if rate else None, inputs.get("window")

    def attend(query, key, value, bias=None):
        if not flash:
            ready = context.replace(distance_bias=bias).with_kernel("xla", queries, keys)
            return plain.attend(query, key, value, ready, window, seed)
        query_ids, key_ids = context.ids(ROWS, queries, keys)
        return tpu.flash(
            *(query, key, value),
            causal=causal,
            rate=rate,
            broadcast=broadcast,
            interpret=True,
            query_ids=query_ids,
            key_ids=key_ids,
            prefix_lengths=context.prefix_lengths,
            window=window,
            distance_bias=bias,
            seed=seed,
            offsets=jnp.zeros(4, jnp.int32),
            tile=TILE,
        )

    # Fully masked queries are unused, and their outputs differ between kernels.
    used = sees(context, window, queries, keys)
    return with_gradients(attend, used, query, key, value, *([] if bias is None else [bias]))


def sees(context, window, queries, keys):
    """Whether a query sees any key, bool [B, Q]."""
    near = jnp.abs(context.distances_back(queries, keys))
    in_window = jnp.broadcast_to(
        (near < window) | (window == 0) if window is not None else near >= 0, (ROWS, queries, keys)
    )
    visible = context.with_kernel("xla", queries, keys).visible
    return (in_window if visible is None else in_window & visible[:, 0]).any(-1)


def equal(causal, rate, broadcast, inputs, arrays):
    """Asserts that both attentions return the same."""
    got, want = (both(flash, causal, rate, broadcast, inputs, *arrays) for flash in (True, False))
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5), got, want)


NAMES = ("segments", "padding", "window")
# The lengths differ and are not multiples of a tile; two heads share a key head; with bias and dropout.
PROGRAMS = {"causal": (True, 0.3, False, 37, 37), "broadcast": (False, 0.3, True, 20, 50)}
PROGRAMS |= {"all": (False, 0.3, False, 37, 37), "kept": (True, 0.0, False, 37, 37)} if FULL else {}


@pytest.mark.parametrize("name", PROGRAMS)
def test_feature_pairs_equal_plain_attention(name):
    causal, rate, broadcast, queries, keys = PROGRAMS[name]
    arrays, names = inputs(queries, keys, 2, 8), (*NAMES, *["prefix"] * causal)
    for present in [*itertools.combinations(names, 2), names, ()]:
        equal(causal, rate, broadcast, features(queries, keys, present, names), arrays)


SETS = [
    (causal, rate, biased, present, length, groups, head_dim)
    for causal, rate, biased in itertools.product((False, True), (0.0, 0.1), (False, True))
    for present in [(), *itertools.combinations((*NAMES, *["prefix"] * causal), 1)]
    for length, groups, head_dim in ((32, 4, 8), (1, 1, 80))
]


@pytest.mark.parametrize("case", SETS if FULL else [(False, 0.1, False, (), 1, 1, 80)], ids=str)
def test_omitted_features_equal_neutral_inputs(case):
    causal, rate, biased, present, length, groups, head_dim = case
    *arrays, bias = inputs(length, length, groups, head_dim)
    equal(causal, rate, False, features(length, length, present, present), (*arrays, bias if biased else None))


def test_two_pass_gradients_equal_plain_attention(monkeypatch):
    """Two passes are used if a row's gradients are too large for fast memory."""
    monkeypatch.setattr(tiles, "queries_fit", lambda *_: False)
    length = 25  # A length of no other test, because compiled programs are cached by shapes.
    equal(True, 0.3, False, features(length, length, ("segments",), ("segments",)), inputs(length, length, 4, 8))


@pytest.mark.skipif(not FULL, reason="compiles for minutes; test_over_mesh compares meshes with one device")
@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_dropout_is_equal_on_every_mesh(sizes):
    """Values are bitwise equal. Gradients differ by rounding, as fewer heads may be summed in another order."""
    length, heads = 24, 4
    query, key = (jax.random.normal(jax.random.key(i), (4, heads, length, length)) / 4 for i in range(2))
    # With these values, the outputs are the weights.
    value = jnp.broadcast_to(jnp.eye(length), query.shape)
    bias = jax.random.normal(jax.random.key(3), (heads, 2 * length - 1))

    def weighed(query, key, value, bias):
        context = Context(causal=True, distance_bias=bias, dropout=0.3).with_kernel("flash", length, length)
        weights = attend(query, key, value, context, 0, SEED)
        return jnp.square(weights).sum(), weights

    def gradients(sizes):
        devices = jax.devices()[: int(np.prod(list(sizes.values())))]
        with (
            jax.set_mesh(mesh.build(config.MeshConfig(**sizes), devices)),
            nn.logical_axis_rules(config.MeshConfig().rules),
        ):
            return jax.jit(jax.grad(weighed, argnums=range(4), has_aux=True))(query, key, value, bias)

    want, weights = gradients({"data": 1})
    got, got_weights = gradients(sizes)
    in_window = np.tril(np.ones((length, length), bool))
    assert 0.2 < (np.asarray(weights) == 0)[..., in_window].mean() < 0.4
    np.testing.assert_array_equal(np.asarray(got_weights) == 0, np.asarray(weights) == 0)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), (got, got_weights), (want, weights))


def sizes(jaxpr):
    """Returns the dimensions of every array of a program, including those in kernels."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars if hasattr(variable.aval, "shape"))
        for inner in core.jaxprs_in_params(equation.params):
            yield from sizes(inner)


@pytest.mark.parametrize("kernel", ["flash", "xla"])
def test_program_has_no_score_array(kernel):
    length, heads = 2048, 2

    def loss(query, bias):
        context = Context(causal=True, distance_bias=bias, dropout=0.1, segment_ids=(ids, ids))
        return attend(*[query] * 3, context.with_kernel(kernel, length, length), 0, SEED).sum()

    ids = jnp.zeros((1, length), jnp.int32)
    with devices(TPU):
        arrays = jnp.ones((1, heads, length, 64), jnp.bfloat16), jnp.ones((heads, 2 * length - 1))
        program = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(*arrays)
    largest = max(sizes(program.jaxpr.jaxpr), key=np.prod)
    assert (np.prod(largest) >= length**2) == (kernel == "xla"), largest


def near(share, chance, count):
    """Whether a share of independent draws is within four standard deviations of their chance."""
    return abs(share - chance) <= 4 * (chance * (1 - chance) / count) ** 0.5


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropped_weights_have_rate_and_are_independent(rate):
    """The share is the rate; pairs of weights agree like independent ones, those from one word included."""
    shape = (3, 4, 96, 160)
    coordinates = [jnp.arange(n).reshape([-1 if i == axis else 1 for i in range(4)]) for axis, n in enumerate(shape)]
    masks = {
        seed: np.asarray(keep_weights(jnp.array(seed, jnp.uint32), *coordinates, rate))
        for seed in ((1, 2), (1, 3), (2, 2))
    }
    first = masks[1, 2]
    assert near(1 - first.mean(), rate, first.size)
    for axis in range(4):
        for apart in (1, 2, 8, 16, 64) if axis > 1 else (1,):
            one, other = (np.take(first, range(at, first.shape[axis] - apart + at), axis) for at in (0, apart))
            assert near((~one & ~other).mean(), rate**2, one.size), (axis, apart)
    for seed in ((1, 3), (2, 2)):
        assert near((~first & ~masks[seed]).mean(), rate**2, first.size)
    # Two keys share a word if their numbers differ only in bit 3: the rate of each, and of both, also of other queries.
    one, other = np.moveaxis(~first.reshape(*shape[:3], -1, 2, 8), 4, 0)
    assert near(one.mean(), rate, one.size) and near(other.mean(), rate, other.size)
    for shift in range(3):
        assert near((one & np.roll(other, shift, 2)).mean(), rate**2, one.size), shift
    # Corners of a rectangle, which reveal hashes that add words of rows and columns.
    for apart in (1, 8):
        left, right = first[..., :-apart], first[..., apart:]
        corners = ~(left[..., :-1, :] ^ left[..., 1:, :] ^ right[..., :-1, :] ^ right[..., 1:, :])
        assert near(corners.mean(), (1 + (1 - 2 * rate) ** 4) / 2, corners.size), apart
    # Queries that share masks have position 0.
    shared = keep_weights(SEED, *coordinates[:2], jnp.zeros((1, 1, 1, 1), jnp.int32), coordinates[3], rate)
    assert np.asarray(shared).shape[2] == 1


@pytest.mark.parametrize("rate", [0.9999, 0.99999999, 0.1, 1e-4, 1e-7])
def test_chance_of_a_weight_is_realized(rate):
    """The chance of a weight is a multiple of 2^-16, near 1 - rate, and not 0."""
    indices = [jnp.arange(n).reshape(shape) for n, shape in ((64, (64, 1, 1)), (256, (256, 1)), (512, (512,)))]
    masks = keep_weights(SEED, indices[0], 0, *indices[1:], rate)
    assert near(float(masks.mean()), 1 - realized(rate), masks.size)
    assert abs(realized(rate) - rate) <= 2**-16 and realized(rate) < 1 and (realized(rate) * 2**16) % 1 == 0


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="the TPU compiler is not there")
@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"] if FULL else ["v5e:2x2"])
def test_tpu_compiler_accepts_kernels_without_score_memory(topology):
    length, heads = 256, 16
    one = Mesh(np.array(slice_devices(topology)[:1]), ("data",))
    placed = partial(jax.ShapeDtypeStruct, sharding=NamedSharding(one, PartitionSpec()))

    def loss(query, bias, ids):
        context = Context(causal=True, distance_bias=bias, dropout=0.1, segment_ids=(ids, ids))
        query = query.reshape(1, length, heads, 64).swapaxes(1, 2)
        return attend(*[query] * 3, context.with_kernel("flash", length, length), 0, SEED).astype(jnp.float32).sum()

    shapes = ((1, length, heads * 64), jnp.bfloat16), ((heads, 2 * length - 1), jnp.float32), ((1, length), jnp.int32)
    with jax.set_mesh(one):
        program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*(placed(*shape) for shape in shapes)).compile()
    assert program.as_text().count("tpu_custom_call") >= 2
    assert program.memory_analysis().temp_size_in_bytes < heads * length**2
