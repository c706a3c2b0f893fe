"""Relative scores in the attention kernels against plain attention, and that against sums over indices."""

import functools
import importlib.util

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plm_jax import config, models
from plm_jax.common.errors import UserError
from plm_jax.models.attention import attend
from plm_jax.models.kernels import Context, pick, plain, tiles
from plm_jax.models.kernels.context import FIRST, RelativeScores
from plm_jax.models.positions import SelfAttentionLayer
from plm_jax.planning.plan import slice_devices
from plm_jax.training import mesh
from tests.models.test_gpu_kernel import sizes
from tests.models.test_kernels import HOPPER, TPU, devices, with_gradients

ROWS, HEADS, HEAD_DIM = 2, 4, 8
SEED = jnp.array([5, 7], jnp.uint32)
VECTORS = ("key_vectors", "query_vectors")
EVERY = (*VECTORS, "key_bias", "segment_scores")
XLNET = ("key_vectors", "reverse_key_vectors", "key_bias", "segment_scores")


def normal(number, *shape):
    return jax.random.normal(jax.random.key(number), shape)


def inputs(queries, keys, groups, names):
    """Returns query, key, value, a bias by distance, and the arrays of relative scores with these names."""
    shapes = {
        **dict.fromkeys((*VECTORS, "reverse_key_vectors"), (HEADS, queries + keys - 1, HEAD_DIM)),
        "key_bias": (ROWS, HEADS, keys),
        "segment_scores": (ROWS, HEADS, queries, 2),
    }
    relative = {name: normal(10 + i, *shapes[name]) for i, name in enumerate((*EVERY, XLNET[1])) if name in names}
    arrays = [normal(i, ROWS, *shape, HEAD_DIM) for i, shape in enumerate([(HEADS, queries), *[(groups, keys)] * 2])]
    return *arrays, normal(3, HEADS, queries + keys - 1), relative


def segments(queries, keys):
    """Returns two segments in each row, which begin elsewhere in the queries than in the keys."""
    of_queries = jnp.arange(queries) >= jnp.array([[3], [queries // 2]])
    return of_queries.astype(jnp.int32), (jnp.arange(keys) >= jnp.array([[7], [keys // 3]])).astype(jnp.int32)


@pytest.mark.parametrize("signs", [(1,), (-1,), (1, -1)], ids=["forward", "backward", "by row"])
@pytest.mark.parametrize("has_segments", [True, False])
def test_scores_of_relative_sinusoids_equal_their_bias(signs, has_segments):
    """Kernels get the scores in parts, whose sum is the bias that other attention gets; with a memory of five keys."""
    position, queries, keys = models.RelativeSinusoids(9, segments=has_segments), 12, 17
    tables = position.layer_tables(16, HEADS, HEAD_DIM, models.InitializerConfig())
    sign = jnp.array(signs)[:, None]
    of_queries, of_keys = segments(queries, keys)
    layer = SelfAttentionLayer(
        depth=0,
        tables={name: normal(i, *table.shape) for i, (name, table) in enumerate(tables.items())},
        shared_tables={},
        project=lambda name, x: x,
        drop=lambda x: x,
        scale=0.3,
        query_positions=sign * jnp.arange(keys - queries, keys),
        key_positions=sign * jnp.arange(keys),
        arrays={"query_segments": of_queries, "key_segments": of_keys},
    )
    query, key = normal(10, ROWS, HEADS, queries, HEAD_DIM), normal(11, ROWS, HEADS, keys, HEAD_DIM)
    expected = plain_scores(query, key) + position.layer_bias(layer, query, key)
    biased, relative = position.relative_scores(layer, query, key)
    np.testing.assert_allclose(plain_scores(biased, key) + relative.expand(biased, key, None), expected, atol=1e-4)


def plain_scores(query, key):
    return jnp.einsum("bnqh,bnkh->bnqk", query, key)


def by_kernel(name, context, window, tile):
    """Returns the attention of a kernel as a function of query, key, value, bias, and relative scores by name."""

    def attend(query, key, value, bias, relative):
        queries, keys = query.shape[2], key.shape[2]
        scores = RelativeScores(segments=segments(queries, keys), **relative)
        if scores.reverse_key_vectors is not None:
            scores = scores.replace(reverse=jnp.array([0, 1]))
        seed = SEED if context.dropout else None
        if name == "plain":
            ready = context.replace(distance_bias=bias, relative=scores).with_kernel("xla", queries, keys)
            return plain.attend(query, key, value, ready, window, seed)
        query_ids, key_ids = context.ids(len(query), queries, keys)
        query_order, key_order = context.order or (None, None)
        return importlib.import_module(f"plm_jax.models.kernels.{name}").flash(
            *(query, key, value),
            causal=context.causal,
            rate=context.dropout,
            broadcast=context.broadcast,
            interpret=True,
            query_ids=query_ids,
            key_ids=key_ids,
            query_order=query_order,
            key_order=key_order,
            prefix_lengths=context.prefix_lengths,
            window=window,
            distance_bias=bias,
            relative=scores,
            seed=seed,
            offsets=jnp.zeros(4, jnp.int32),
            **({"tile": tile} if name == "tpu" else {}),
        )

    return attend


def padding(*lengths, length):
    return (jnp.arange(length) < jnp.array(lengths)[:, None]).astype(jnp.int32)


def documents(length):
    return (jnp.arange(length) >= jnp.array([[length // 3], [length // 2]])).astype(jnp.int32)


def ranks(queries, keys):
    """Returns ranks of queries and of keys: every third query does not see itself, and all see the keys before them."""
    of_tokens = jax.random.randint(jax.random.key(4), (ROWS, queries), 0, queries)
    of_memory = jnp.full((ROWS, keys - queries), FIRST)
    return of_tokens + (jnp.arange(queries) % 3 > 0), jnp.concatenate([of_memory, of_tokens], axis=1)


# Queries, keys, groups, length of a TPU tile, terms, whether there is a bias, window, and context. The cases cover
# every pair of features; lengths are not multiples of a tile.
CASES = {
    "deberta": (37, 37, 4, 16, VECTORS, False, None, Context(mask=padding(30, 37, length=37), dropout=0.3)),
    "query_vectors": (37, 37, 4, 32, ("query_vectors",), False, 9, Context(dropout=0.3, broadcast=True)),
    "one_tile": (16, 12, 4, 16, EVERY, True, None, Context(mask=padding(12, 5, length=12))),
    "causal_window_of_documents": (
        *(40, 40, 2, 16, EVERY, True, 9),
        Context(True, None, (documents(40), documents(40)), prefix_lengths=jnp.array([11, 0]), dropout=0.3),
    ),
    "order": (37, 37, 2, 16, ("key_bias",), False, None, Context(order=ranks(37, 37))),
    "order_after_memory": (
        *(20, 50, 4, 16, XLNET, False, None),
        Context(order=ranks(20, 50), mask=padding(50, 44, length=50), dropout=0.3),
    ),
    "order_in_documents": (
        *(40, 40, 4, 16, ("key_vectors", "segment_scores"), True, 9),
        Context(order=ranks(40, 40), segment_ids=(documents(40), documents(40)), dropout=0.3, broadcast=True),
    ),
    "rows": (20, 37, 4, 16, ("key_bias", "segment_scores"), True, None, Context(mask=padding(37, 20, length=37))),
}


def results(kernel, name):
    """Returns the values and gradients of a case."""
    queries, keys, groups, size, names, biased, window, context = CASES[name]
    *arrays, bias, relative = inputs(queries, keys, groups, names)
    window = None if window is None else jnp.int32(window)
    used = jnp.ones((ROWS, queries), bool)
    if context.mask is not None and queries == keys:
        used = context.mask != 0
    if context.order is not None:
        visible = context.with_kernel("xla", queries, keys).visible
        assert visible is not None
        near = jnp.abs(context.distances_back(queries, keys)) < (queries + keys if window is None else window)
        used = (visible[:, 0] & near).any(-1)
        assert used.mean() > 0.9
    attention = by_kernel(kernel, context, window, tiles.Tile(size, size, 1))
    return jax.jit(functools.partial(with_gradients, attention))(used, *arrays, bias if biased else None, relative)


@functools.cache
def expected(name):
    return results("plain", name)


def compare(kernel, name):
    """Asserts that a kernel and plain attention have the same values and gradients."""
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=5e-5), results(kernel, name), expected(name))


@pytest.mark.parametrize("name", CASES)
def test_tpu_kernel_equals_plain_attention(name):
    compare("tpu", name)


@pytest.mark.parametrize("name", CASES)
def test_gpu_kernel_equals_plain_attention(name, monkeypatch):
    monkeypatch.setattr(tiles, "on_gpu", lambda *_: tiles.GpuTile(16, 16, 4, 2))
    compare("gpu", name)


def test_two_passes_of_tpu_kernel_equal_plain_attention(monkeypatch):
    """Two passes are used if a row's gradients are too large for fast memory."""
    monkeypatch.setattr(tiles, "queries_fit", lambda *_: False)
    compare("tpu", "causal_window_of_documents")


def test_plain_attention_sums_terms_of_each_pair():
    query, key, value, _, relative = inputs(5, 7, 2, EVERY)
    outputs = by_kernel("plain", Context(), None, None)(query, key, value, None, relative)
    of_queries, of_keys = (np.asarray(x) for x in segments(5, 7))
    arrays = {name: np.asarray(x, np.float64) for name, x in relative.items()}
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    for row, head, i in np.ndindex(ROWS, HEADS, 5):
        scores = np.empty(7)
        for j in range(7):
            entry, k = 4 + j - i, key[row, head // 2, j]
            scores[j] = query[row, head, i] @ (k + arrays["key_vectors"][head, entry])
            scores[j] += k @ arrays["query_vectors"][head, entry] + arrays["key_bias"][row, head, j]
            other = int(of_queries[row, i] != of_keys[row, j])
            scores[j] += arrays["segment_scores"][row, head, i, other]
        weights = np.exp(scores - scores.max())
        np.testing.assert_allclose(outputs[row, head, i], weights / weights.sum() @ value[row, head // 2], atol=1e-5)


def on_mesh(kernel, sizes):
    """Returns attention weights, and the gradients of a function of them, in a mesh of these sizes."""
    length = 32
    order = jnp.arange(length) * jnp.array([[5], [7]]) % 4
    context = Context(causal=True, dropout=0.3, mask=padding(20, 32, length=32), order=(order + 1, order))
    query, key, _, bias, relative = inputs(length, length, HEADS, (*EVERY, "reverse_key_vectors"))
    # With these values, the outputs are the weights.
    value = jnp.broadcast_to(jnp.eye(length), (ROWS, HEADS, length, length))
    query, key = (jnp.pad(x, ((0, 0),) * 3 + ((0, length - HEAD_DIM),)) for x in (query, key))
    for name in (*VECTORS, "reverse_key_vectors"):
        relative[name] = jnp.pad(relative[name], ((0, 0), (0, 0), (0, length - HEAD_DIM)))

    def weighed(query, key, value, bias, relative):
        scores = RelativeScores(segments=segments(length, length), reverse=jnp.array([0, 1]), **relative)
        ready = context.replace(distance_bias=bias, relative=scores).with_kernel(kernel, length, length)
        return attend(query, key, value, ready, 0, SEED)

    built = mesh.build(config.MeshConfig(**{"data": 1} | sizes), jax.devices()[: int(np.prod(list(sizes.values())))])
    with jax.set_mesh(built), nn.logical_axis_rules(config.MeshConfig().rules):
        run = jax.jit(functools.partial(with_gradients, weighed))
        return run(jnp.ones((ROWS, length), bool), query, key, value, bias, relative)


def test_dropout_is_equal_on_a_mesh(monkeypatch):
    """The same weights are dropped, bit for bit; values and gradients differ by rounding."""
    monkeypatch.setattr(tiles, "choose", lambda *_, **__: tiles.Tile(16, 16, 1))
    weights, gradients = on_mesh("xla", {})
    assert 0.5 < (weights == 0).mean() < 0.85  # Later keys and keys of a higher rank have no weights.
    got, got_gradients = on_mesh("flash", {"fsdp": 2, "context": 2, "tensor": 2})
    np.testing.assert_array_equal(got == 0, weights == 0)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), (got, got_gradients), (weights, gradients))


@pytest.mark.parametrize("kernel", ["tpu", "gpu"])
def test_bfloat16_is_near_float32(kernel, monkeypatch):
    monkeypatch.setattr(tiles, "on_gpu", lambda *_: tiles.GpuTile(32, 32, 4, 2))
    query, key, value, bias, relative = inputs(40, 40, HEADS, EVERY)
    relative["key_vectors"] = relative["key_vectors"].astype(jnp.bfloat16)  # Both dtypes are possible.
    rounded = *(x.astype(jnp.bfloat16) for x in (query, key, value)), bias, relative
    whole = jax.tree.map(lambda x: x.astype(jnp.float32), rounded)
    used = jnp.ones((ROWS, 40), bool)
    got, want = (
        jax.jit(functools.partial(with_gradients, by_kernel(name, Context(dropout=0.3), None, tiles.Tile(32, 32, 1))))(
            used, *arrays
        )
        for name, arrays in ((kernel, rounded), ("plain", whole))
    )
    assert jax.tree.map(lambda x: x.dtype, got[1]) == jax.tree.map(lambda x: x.dtype, rounded)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert jnp.abs(one - other).max() < 0.02 * jnp.abs(other).max()


LENGTH = 1024


def gradients_of_kernel():
    """Returns the gradient of flash attention with all terms as a function, and the shapes of its inputs."""

    def loss(query, key, value, bias, relative, ids):
        context = Context(distance_bias=bias, relative=RelativeScores(segments=(ids, ids), **relative), dropout=0.1)
        ready = context.with_kernel("flash", LENGTH, LENGTH)
        return attend(query, key, value, ready, 0, SEED).astype(jnp.float32).sum()

    shape = jax.ShapeDtypeStruct
    vectors = shape((HEADS, 2 * LENGTH - 1, 64), jnp.bfloat16)
    relative = {
        **dict.fromkeys(VECTORS, vectors),
        "key_bias": shape((ROWS, HEADS, LENGTH), jnp.float32),
        "segment_scores": shape((ROWS, HEADS, LENGTH, 2), jnp.float32),
    }
    arrays = [shape((ROWS, HEADS, LENGTH, 64), jnp.bfloat16)] * 3
    bias, ids = shape((HEADS, 2 * LENGTH - 1), jnp.float32), shape((ROWS, LENGTH), jnp.int32)
    return jax.grad(loss, argnums=range(5)), (*arrays, bias, relative, ids)


@pytest.mark.parametrize("device", [TPU, HOPPER], ids=["tpu", "gpu"])
def test_program_has_no_score_array(device):
    gradients, shapes = gradients_of_kernel()
    with devices(device):
        program = jax.make_jaxpr(gradients)(*shapes).jaxpr
    assert max(sizes(program)) < ROWS * HEADS * LENGTH**2


@pytest.mark.parametrize("topology", ["v5e:2x2", "gpu:h100:1"])
def test_compilers_accept_kernels_without_score_memory(topology):
    module = "jax_cuda13_plugin" if topology.startswith("gpu") else "libtpu"
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"needs the compiler in {module}")
    gradients, shapes = gradients_of_kernel()
    one = Mesh(np.array(slice_devices(topology)[:1]), ("data",))
    sharding = NamedSharding(one, PartitionSpec())
    with jax.set_mesh(one):
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)
        program = jax.jit(gradients).lower(*shapes).compile()
    assert (memory := program.memory_analysis()) is not None
    assert memory.temp_size_in_bytes < 2 * ROWS * HEADS * LENGTH**2  # In bytes of bfloat16.


def test_rows_that_exceed_fast_memory_of_tpus_are_reported():
    shapes = [jax.ShapeDtypeStruct((1, 2, 2**14, 64), jnp.bfloat16)] * 3
    vectors = jax.ShapeDtypeStruct((2, 2**15 - 1, 64), jnp.bfloat16)
    attention = by_kernel("tpu", Context(), None, None)
    arrays = *shapes, None, {"key_vectors": vectors}
    jax.eval_shape(attention, *arrays)
    with pytest.raises(UserError, match=r"16384 queries and 16384 keys exceed the fast memory of a TPU: use shorter"):
        jax.eval_shape(jax.grad(lambda *arrays: attention(*arrays).astype(jnp.float32).sum()), *arrays)


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_flash_is_chosen(platform, caplog):
    biases = {"adds_bias": True, "expanded": False}
    lengths = {"head_dim": 64, "groups": HEADS, "queries": 8, "keys": 8}
    with devices({"tpu": TPU, "cuda": HOPPER}[platform]):
        assert pick("attention", "auto", Context(), dtype=jnp.bfloat16, **biases, **lengths) == "flash"
    assert not caplog.records
