"""Attention with queries split over devices: equal to one device, with balanced work."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config
from plm_jax.models import registry
from plm_jax.models.attention import attend
from plm_jax.models.kernels import Context, tiles
from plm_jax.models.kernels.over_mesh import over_mesh, shards_queries
from plm_jax.training import mesh
from tests.models.test_kernels import with_gradients
from tests.support import tiny

ROWS, LENGTH, HEADS, GROUPS, HEAD_DIM = 2, 64, 4, 2, 8
MESHES = (
    *({"context": 4, "tensor": 2}, {"fsdp": 2, "context": 2, "tensor": 2}),
    *({"context": 2, "tensor": 2}, {"context": 8}),
)
SEGMENTS = jnp.sort(jax.random.randint(jax.random.key(7), (ROWS, LENGTH), 0, 4), axis=1)
DROPPED = {"dropout": 0.3}
# name: context; a bias by distance is added to it where it is said.
CASES = {
    "causal": (Context(causal=True, **DROPPED), True),
    "documents": (Context(causal=True, segment_ids=(SEGMENTS, SEGMENTS), windows=(0, 9), **DROPPED), False),
    "prefix": (Context(causal=True, prefix_lengths=jnp.array([5, 41]), mask=(SEGMENTS < 3).astype(int)), False),
    "bidirectional": (Context(mask=(SEGMENTS < 3).astype(int), broadcast=True, **DROPPED), True),
}


def on(sizes):
    """Returns the mesh with these sizes."""
    return mesh.build(config.MeshConfig(**{"data": 1} | sizes), jax.devices()[: int(np.prod(list(sizes.values())))])


def values_and_gradients(kernel, context, biased, sizes):
    """Returns the outputs and the gradients of query, key, value and bias on a mesh."""
    shapes = (HEADS, LENGTH), (GROUPS, LENGTH), (GROUPS, LENGTH)
    arrays = [jax.random.normal(jax.random.key(i), (ROWS, *shape, HEAD_DIM)) for i, shape in enumerate(shapes)]
    bias = jax.random.normal(jax.random.key(3), (HEADS, 2 * LENGTH - 1))

    def attend_with_bias(query, key, value, bias):
        ready = context.replace(distance_bias=bias if biased else None).with_kernel(kernel, LENGTH, LENGTH)
        return attend(query, key, value, ready, 1, jnp.array([3, 5], jnp.uint32) if context.dropout else None)

    with jax.set_mesh(on(sizes)), nn.logical_axis_rules(config.MeshConfig().rules):
        run = jax.jit(functools.partial(with_gradients, attend_with_bias))
        return run(jnp.ones((ROWS, LENGTH), bool), *arrays, bias)


@pytest.mark.parametrize(("name", "sizes"), [*zip(CASES, MESHES, strict=True)], ids=str)
def test_flash_over_split_queries_equals_plain_attention(name, sizes, monkeypatch):
    monkeypatch.setattr(tiles, "choose", lambda *_, **__: tiles.Tile(16, 16, 1))
    want, want_gradients = values_and_gradients("xla", *CASES[name], {"data": 1})
    got, got_gradients = values_and_gradients("flash", *CASES[name], sizes)
    np.testing.assert_allclose(got, want, atol=1e-5)
    for one, other in zip(got_gradients, want_gradients, strict=True):
        np.testing.assert_allclose(one, other, atol=5e-5)


def test_when_queries_are_split():
    cuts = []
    for sizes, groups in (({"context": 2}, 4), ({"tensor": 2}, 4), ({"tensor": 4}, 2), ({"fsdp": 8}, 4)):
        with jax.set_mesh(on(sizes)), nn.logical_axis_rules(config.MeshConfig().rules):
            cuts.append(shards_queries(groups, LENGTH))
    assert cuts == [True, False, True, False]


@pytest.mark.parametrize("causal", [True, False])
def test_causal_attention_balances_devices(causal):
    shapes = []

    def kernel(query, key, value, *, offsets, **arrays):
        """Returns the device that computes each query, and the position that it receives."""
        shapes.append((query.shape, key.shape))
        positions = offsets[2] + jnp.arange(query.shape[2])
        device_and_position = jnp.stack([jnp.full_like(positions, jax.lax.axis_index("context")), positions], axis=-1)
        return jnp.broadcast_to(device_and_position[None, None], (*query.shape[:3], 2))

    arrays = [jnp.zeros((ROWS, HEADS, LENGTH, HEAD_DIM))] * 3
    with jax.set_mesh(on({"context": 4, "tensor": 2})), nn.logical_axis_rules(config.MeshConfig().rules):
        run = jax.jit(
            lambda *x: over_mesh(
                kernel, *x, length="length", causal=causal, distance_bias=None, query_ids=None, query_order=None
            )
        )
        devices, positions = np.moveaxis(np.asarray(run(*arrays))[0, 0], -1, 0)
    np.testing.assert_array_equal(positions, np.arange(LENGTH))
    want = [0, 1, 2, 3, 3, 2, 1, 0] if causal else [0, 0, 1, 1, 2, 2, 3, 3]
    np.testing.assert_array_equal(devices, np.repeat(want, LENGTH // 8))
    assert set(shapes) == {((2, 2, LENGTH // (8 if causal else 4), HEAD_DIM), (2, 2, LENGTH, HEAD_DIM))}


@pytest.mark.parametrize(("tensor", "split"), [(2, True), (4, False)])
def test_heads_stay_split_unless_devices_outnumber_them(tensor, split):
    """Sharding constraints in a layer's trace: only keys and values are unsharded, if `tensor` has more parts."""
    module = registry.build(tiny.RUNS["llama"].model)  # Four heads, two of keys.
    params = registry.shapes(module.model)
    tokens = jax.ShapeDtypeStruct((2, 8), jnp.int32)
    with jax.set_mesh(on({"tensor": tensor})), nn.logical_axis_rules(config.MeshConfig().rules):
        text = str(jax.make_jaxpr(lambda params, tokens: module.apply({"params": params}, tokens))(params, tokens))

    def are_split(heads):
        """Whether each of the constraints of [B, L, heads · head_dim] shards the heads."""
        width = heads * module.model.attention.head_dim
        specs = re.findall(rf":f32\[2,8,{width}\] = sharding_constraint\[[^\]]*?spec=P\(([^)]*)\)", text, re.DOTALL)
        return ["tensor" in spec for spec in specs]

    assert are_split(module.model.attention.num_kv_heads) == [split, split]
