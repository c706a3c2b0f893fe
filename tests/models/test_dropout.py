"""The dropout layer: its rate, independence of draws, and masks by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.models.layers import Dropout

ROWS, PLACES, FEATURES = 64, 32, 96


def draw_mask(rate=0.3, broadcast=False, rows=None, key=0, shape=(ROWS, PLACES, FEATURES)):
    """Returns which units dropout keeps, bool. Asserts that kept ones are multiplied by 1 / (1 - rate)."""
    dropped = Dropout(rate, broadcast).apply(
        {}, jnp.ones(shape), rows, deterministic=False, rngs={"dropout": jax.random.key(key)}
    )
    values = np.asarray(dropped)
    np.testing.assert_allclose(values[values != 0], 1 / (1 - rate), rtol=1e-6)
    return values != 0


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_rate(rate):
    mask = draw_mask(rate)
    assert abs(mask.mean() - (1 - rate)) < 5 * (rate * (1 - rate) / mask.size) ** 0.5
    # The rate holds for each row, position and feature.
    for axes in ((1, 2), (0, 2), (0, 1)):
        size = mask.size / mask.mean(axes).size
        assert np.abs(mask.mean(axes) - (1 - rate)).max() < 6 * (rate * (1 - rate) / size) ** 0.5


def test_dropped_units_are_independent():
    signs = draw_mask(0.5) * 2.0 - 1
    for axis in range(3):
        for distance in (1, 2, 16):
            near = np.take(signs, range(distance, signs.shape[axis]), axis)
            far = np.take(signs, range(signs.shape[axis] - distance), axis)
            assert abs((near * far).mean()) < 5 / near.size**0.5
    # Three corners of a square of rows or positions do not determine the fourth.
    square = signs[:-1, :-1] * signs[1:, :-1] * signs[:-1, 1:] * signs[1:, 1:]
    assert abs(square.mean()) < 5 / square.size**0.5
    assert abs((signs * (draw_mask(0.5, key=1) * 2.0 - 1)).mean()) < 5 / signs.size**0.5


def test_rows_have_their_own_masks():
    whole = draw_mask()
    some = np.array([5, 0, 63])
    np.testing.assert_array_equal(draw_mask(rows=jnp.array(some), shape=(3, PLACES, FEATURES)), whole[some])


def test_broadcast_drops_same_features_at_all_positions():
    mask = draw_mask(broadcast=True)
    assert np.all(mask == mask[:, :1]) and not np.all(mask == mask[:1])
