"""The position scheme of DeBERTa: buckets of distances, and the order of its computations."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.configs import deberta
from plm_jax.models import registry
from plm_jax.models.kernels import tiles
from plm_jax.models.positions import SelfAttentionLayer
from tests.support import runs
from tests.support.random_models import random_params

KERNELS = ("xla", "flash")


def test_buckets_begin_at_published_distances():
    """Distances at which buckets begin, from microsoft/DeBERTa's make_log_bucket_position with 256 and 512."""
    begins = {131: 131, 132: 133, 134: 136, 136: 139, 150: 161, 175: 212, 200: 278, 225: 365, 250: 479, 255: 506}
    position = models.Disentangled()
    buckets = np.array(position.bucket_of_distance())
    np.testing.assert_array_equal(buckets[:129], np.arange(129))
    assert {bucket: int(np.argmax(buckets == bucket)) for bucket in begins} == begins
    assert buckets[511] == 255 and np.all(np.diff(buckets) >= 0)
    distances = np.array([-600, -511, -200, -1, 0, 1, 200, 511, 600])
    signed = np.sign(distances) * buckets[np.minimum(np.abs(distances), 512)] + 256
    np.testing.assert_array_equal(position.rows(jnp.array(distances)), np.clip(signed, 0, 511))


def test_without_buckets_every_distance_has_a_row():
    rows = models.Disentangled(4, buckets=0).rows(jnp.arange(-6, 7))
    np.testing.assert_array_equal(rows, [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7])


@pytest.mark.parametrize(("length", "buckets"), [(512, 5), (5, 8)])
def test_invalid_buckets_are_rejected(length, buckets):
    with pytest.raises(UserError, match="set buckets to an even number, and length to more than buckets"):
        models.Disentangled(length, buckets)


def test_repeated_terms_are_rejected():
    with pytest.raises(UserError, match="name each term once"):
        models.Disentangled(terms=("c2p", "c2p"))


def test_normalized_table_is_dropped_before_projections():
    position, dropped, projected = models.Disentangled(8, 4, epsilon=0.0), [], []
    tables = {"relative_embedding": jnp.array(np.random.default_rng(0).normal(size=(8, 6)), jnp.float32)}
    tables |= {"relative_norm_scale": jnp.full(6, 3.0), "relative_norm_bias": jnp.full(6, 2.0)}

    def drop(x):
        dropped.append(x)
        return jnp.zeros_like(x)

    def project(name, x):
        projected.append(x)
        return x[None, :, :2]

    indices = jnp.arange(5)[None]
    layer = SelfAttentionLayer(0, {}, tables, project, drop, 1.0, indices, indices, {})
    query = jnp.ones((1, 1, 5, 2))
    assert not position.layer_bias(layer, query, query).any() and not any(x.any() for x in projected)
    np.testing.assert_allclose(dropped[0].mean(-1), 2.0, rtol=1e-5)
    np.testing.assert_allclose(dropped[0].std(-1), 3.0, rtol=1e-5)


@pytest.mark.parametrize(
    "position",
    [
        models.Disentangled(9, 6),
        models.Disentangled(5, 0, norm=False),
        models.Disentangled(9, 6, terms=("p2c",)),
        models.Disentangled(9, 0, shared=False, key_bias=False),
    ],
)
def test_relative_scores_equal_the_bias(position):
    heads, head_dim, width, keys = 2, 4, 8, iter(range(99))

    def normal(*shape):
        return jax.random.normal(jax.random.key(next(keys)), shape)

    shared = position.score_tables(width, heads, head_dim, models.InitializerConfig())
    layer_tables = position.layer_tables(width, heads, head_dim, models.InitializerConfig())
    matrices = {name: normal(width, heads * head_dim) for name in ("query", "key")}
    indices = jnp.arange(12)[None]
    layer = SelfAttentionLayer(
        0,
        {name: normal(*table.shape) for name, table in layer_tables.items()},
        {name: normal(*table.shape) for name, table in shared.items()},
        lambda name, x: (x @ matrices[name]).reshape(-1, heads, head_dim).swapaxes(0, 1),
        lambda x: x,
        0.3,
        indices,
        indices,
        {},
    )
    query, key = normal(2, heads, 12, head_dim), normal(2, heads, 12, head_dim)
    expected = position.layer_bias(layer, query, key)
    query, relative = position.relative_scores(layer, query, key)
    np.testing.assert_allclose(relative.expand(query, key, None), expected, rtol=1e-4, atol=1e-4)
    # Positions that restart within a row do not matter, as in transformers.
    restarting = dataclasses.replace(layer, query_positions=indices % 5, key_positions=indices % 5)
    np.testing.assert_array_equal(position.layer_bias(restarting, query, key), expected)
    assert not position.expands_scores(in_order=True) and position.expands_scores(in_order=False)


def test_flash_kernel_equals_xla(monkeypatch):
    """Values and gradients of layers with padding, interpreted in small tiles."""
    monkeypatch.setattr(tiles, "choose", lambda *_, **__: tiles.Tile(16, 16, 1))
    model = deberta.model(2, 1, 16, 2, 20, 16, buckets=8, dropout=0.0)
    model = dataclasses.replace(model, head=models.VocabularyHead(), convolution=None)
    params = random_params(model)
    tokens = jax.random.randint(jax.random.key(1), (2, 24), 1, 20)
    mask = (jnp.arange(24) < jnp.array([[24], [19]])).astype(jnp.int32)

    @functools.partial(jax.jit, static_argnums=0)
    def loss(kernel, params):
        module = registry.build(model.with_speed(attention_kernel=kernel))
        features = module.apply({"params": params}, tokens, mask, method="features")
        return jnp.sum(jnp.sin(features) * mask[..., None])

    (expected, exact), (got, ours) = (jax.value_and_grad(functools.partial(loss, name))(params) for name in KERNELS)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    for name, leaf in runs.flat(exact).items():
        np.testing.assert_allclose(runs.flat(ours)[name], leaf, atol=1e-5 * np.abs(leaf).max() + 1e-6, err_msg=name)
