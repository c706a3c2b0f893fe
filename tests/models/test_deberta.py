"""The position scheme of DeBERTa: buckets of distances, and the order of its computations."""

import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.models.positions import SelfAttentionLayer


def test_buckets_begin_at_published_distances():
    """Distances at which buckets begin, from microsoft/DeBERTa's make_log_bucket_position with 256 and 512."""
    begins = {131: 131, 132: 133, 134: 136, 136: 139, 150: 161, 175: 212, 200: 278, 225: 365, 250: 479, 255: 506}
    position = models.Disentangled()
    buckets = position.bucket_of_distance()
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
    with pytest.raises(UserError, match="set buckets to an even number, and length above half of it"):
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
