"""The layer that drops features: its rate, that draws do not depend on one another, and that a row's are its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.models.layers import Dropout

ROWS, PLACES, FEATURES = 64, 32, 96


def kept(rate=0.3, broadcast=False, rows=None, key=0, shape=(ROWS, PLACES, FEATURES)):
    """Which of so many ones are left, bool; those that are must have grown by 1 / (1 - rate)."""
    dropped = Dropout(rate, broadcast).apply(
        {}, jnp.ones(shape), rows, deterministic=False, rngs={"dropout": jax.random.key(key)}
    )
    found = np.asarray(dropped)
    np.testing.assert_allclose(found[found != 0], 1 / (1 - rate), rtol=1e-6)
    return found != 0


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_so_many_are_dropped(rate):
    found = kept(rate)
    assert abs(found.mean() - (1 - rate)) < 5 * (rate * (1 - rate) / found.size) ** 0.5
    # Of each row, place and feature about as many.
    for axes in ((1, 2), (0, 2), (0, 1)):
        size = found.size / found.mean(axes).size
        assert np.abs(found.mean(axes) - (1 - rate)).max() < 6 * (rate * (1 - rate) / size) ** 0.5


def test_what_is_dropped_tells_nothing_of_its_neighbours():
    found = kept(0.5) * 2.0 - 1
    for axis in range(3):
        for distance in (1, 2, 16):
            near = np.take(found, range(distance, found.shape[axis]), axis)
            far = np.take(found, range(found.shape[axis] - distance), axis)
            assert abs((near * far).mean()) < 5 / near.size**0.5
    # Neither does a square of rows or places tell its fourth corner.
    square = found[:-1, :-1] * found[1:, :-1] * found[:-1, 1:] * found[1:, 1:]
    assert abs(square.mean()) < 5 / square.size**0.5
    assert abs((found * (kept(0.5, key=1) * 2.0 - 1)).mean()) < 5 / found.size**0.5


def test_a_row_draws_for_itself():
    whole = kept()
    some = np.array([5, 0, 63])
    np.testing.assert_array_equal(kept(rows=jnp.array(some), shape=(3, PLACES, FEATURES)), whole[some])


def test_at_every_place_the_same_features_are_dropped_where_they_are_asked_to_be():
    found = kept(broadcast=True)
    assert np.all(found == found[:, :1]) and not np.all(found == found[:1])
