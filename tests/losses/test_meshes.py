"""The loss on meshes: values and gradients equal those of one device for any sharding."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config
from plm_jax.losses import cross_entropy
from plm_jax.models import tables
from plm_jax.training import mesh

LENGTH, WIDTH, VOCAB = 6, 16, 32
MESHES = (
    {"data": 8},
    {"data": 1, "fsdp": 8},
    {"data": 2, "fsdp": 2, "tensor": 2},
    {"data": 1, "fsdp": 2, "context": 2, "tensor": 2},
)


def arrays(rows, vocab):
    rng = np.random.default_rng(0)
    shapes = (rows, LENGTH, WIDTH), (vocab, WIDTH), (vocab,)
    features, matrix, bias = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    tokens, targets = (rng.integers(0, vocab, (rows, LENGTH)).astype(np.int32) for _ in range(2))
    return (features, matrix, bias), (tokens, targets, rng.random((rows, LENGTH)).astype(np.float32))


def plain(head, batch):
    """Reference loss of a tied table with all logits."""
    (features, matrix, bias), (tokens, targets, weights) = head, batch
    logits = (features + matrix[tokens]) @ matrix.T + bias
    log_p = jax.nn.log_softmax(logits)
    loss = -0.9 * jnp.take_along_axis(log_p, targets[..., None], -1)[..., 0] - 0.1 * log_p.mean(-1)
    return jnp.sum(weights * (loss + 0.1 * jax.nn.logsumexp(logits, -1) ** 2))


def ours(head, batch, chunk):
    (features, matrix, bias), (tokens, targets, weights) = head, batch
    table = tables.whole(matrix, jnp.float32)
    features = features + table.look_up(tokens, len(tokens))
    compute, at_once = cross_entropy.CrossEntropy(0.1, 0.1), chunk * len(tokens) * len(matrix)
    return cross_entropy.sum_over_vocabulary(compute, features, table, bias, (targets, weights), (), at_once).loss


# No axis divides 3, nor a vocabulary of 31.
CASES = [*((sizes, 8) for sizes in MESHES), (MESHES[0], 3), (MESHES[3], 3)]


@pytest.mark.parametrize(("sizes", "rows"), CASES, ids=str)
def test_value_and_gradients_equal_full_logits(sizes, rows):
    head, batch = arrays(rows, VOCAB if rows == 8 else 31)
    want = jax.jit(jax.value_and_grad(plain))(head, batch)

    def traced(head, batch):
        with nn.logical_axis_rules(config.MeshConfig().rules):
            return jax.value_and_grad(ours)(head, batch, 2 if rows == 8 else LENGTH)

    with jax.set_mesh(mesh.build(config.MeshConfig(**sizes), jax.devices()[:8])):
        got = jax.jit(traced)(head, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5), got, want)


def test_gradient_without_gathered_tables():
    head, batch = arrays(8, VOCAB)

    def by_array(matrix):
        table = tables.whole(matrix, jnp.float32)
        return jnp.sin(tables.array(table)).sum() + table.look_up(batch[0], len(batch[0])).sum()

    device_mesh = mesh.build(config.MeshConfig(**MESHES[2]), jax.devices()[:8])
    with jax.set_mesh(device_mesh), nn.logical_axis_rules(config.MeshConfig().rules):
        got = jax.jit(jax.grad(by_array))(head[1])
    counts = np.bincount(batch[0].ravel(), minlength=VOCAB)
    np.testing.assert_allclose(got, np.cos(head[1]) + counts[:, None], rtol=1e-5, atol=1e-5)
