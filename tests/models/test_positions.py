"""Position schemes: biases of tiles, and schemes of users."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import models
from plm_jax.common import trees
from plm_jax.common.errors import UserError
from plm_jax.models import registry
from plm_jax.models.attention import attend, causal_positions
from plm_jax.models.kernels import Context
from plm_jax.models.kernels.context import expand_distance_bias
from plm_jax.models.positions import Position, SelfAttentionLayer
from tests.models.own_positions import DistanceKeys, Slopes
from tests.models.test_decoder import small
from tests.models.test_encoder import apply, randomized, small_encoder, tokens_of

OWN = {"slopes": Slopes(), "distance_keys": DistanceKeys()}
user_positions = pytest.mark.parametrize("position", OWN.values(), ids=OWN)


def with_position(model, position):
    return replace(model, attention=replace(model.attention, position=position))


def rng_arrays(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("position", [models.RelativeBias(8, 20), *OWN.values()], ids=lambda p: p.kind)
def test_bias_of_tile_equals_slice_of_whole(position, causal):
    model, heads, length = small_encoder(), 3, 12
    attention, width = model.attention, model.embedding.width
    declared = position.score_tables(width, attention.heads, attention.head_dim, model.initializer)
    tables = {name: rng_arrays(table.shape)[0] for name, table in declared.items()}
    query, key = rng_arrays((2, heads, length, 4), (2, heads, length, 4))

    def bias(queries, keys):
        positions = jnp.arange(length)[queries], jnp.arange(length)[keys]
        if position.has_layer_bias:
            rows = [each[None] for each in positions]
            layer = SelfAttentionLayer(0, {}, tables, lambda name, x: x, lambda x: x, 1.0, *rows, arrays={})
            return position.layer_bias(layer, query[:, :, queries], key[:, :, keys])
        first = positions[1][0] - positions[0][-1]
        distances = first + jnp.arange(len(positions[0]) + len(positions[1]) - 1)
        return expand_distance_bias(position.distance_bias(tables, distances, heads, causal), len(positions[0]))[None]

    whole = bias(slice(None), slice(None))
    assert whole.shape in {(1, heads, length, length), (2, heads, length, length)}
    np.testing.assert_allclose(bias(slice(4, 8), slice(2, 12)), whole[:, :, 4:8, 2:12], rtol=1e-6)


def test_scores_decrease_with_slope_of_head():
    """Compares with the formula in NumPy, for each head, query and key."""
    query, key, value = rng_arrays((1, 2, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4))
    bias = Slopes().distance_bias({}, jnp.arange(-4, 5), 2, causal=False)
    got = attend(query, key, value, Context(distance_bias=bias).with_kernel("xla", 5, 5))
    for head, slope in enumerate((1 / 16, 1 / 256)):
        for index in range(5):
            scores = [query[0, head, index] @ key[0, head, k] - slope * abs(k - index) for k in range(5)]
            weights = np.exp(scores) / np.exp(scores).sum()
            np.testing.assert_allclose(got[0, head, index], weights @ value[0, head], rtol=1e-5)


@dataclass(frozen=True)
class SlopesOfKeys(Slopes):
    """Slopes, and a bias that depends on the position of the key alone."""

    kind = "slopes_of_keys"

    def bias(self, tables, query_positions, key_positions, heads, causal):
        return jnp.broadcast_to(3 * jnp.sin(key_positions), (1, heads, len(query_positions), len(key_positions)))


@dataclass(frozen=True)
class OneBias(Position):
    """The scores of `SlopesOfKeys` without a separate bias by distance."""

    kind = "one_bias"

    def bias(self, tables, query_positions, key_positions, heads, causal):
        slopes = 2.0 ** (-8 * jnp.arange(1, heads + 1) / heads)
        distances = jnp.abs(key_positions - query_positions[:, None])
        return (3 * jnp.sin(key_positions) - slopes[:, None, None] * distances)[None]


def test_both_biases_of_a_scheme_are_added():
    """Also if the slots of a cache are not sorted by position."""
    tokens, order = tokens_of(), jnp.array([0, 3, 1, 2, 7, 5, 4, 6])
    module, params = randomized(with_position(small(attention_kernel="xla"), SlopesOfKeys()))

    def apply_with(position, tokens, **inputs):
        model = registry.build(with_position(module.model, position))
        return jax.jit(partial(model.apply, mutable=["cache"]))({"params": params}, tokens, **inputs)[0]

    both, sum_of_both, slopes = (apply_with(position, tokens) for position in (SlopesOfKeys(), OneBias(), Slopes()))
    np.testing.assert_allclose(both, sum_of_both, atol=1e-5)
    assert np.abs(both - slopes).max() > 0.01
    cache = {"mask": jnp.ones_like(tokens), "positions": order[None], "cache_index": 0, "slot_positions": order}
    cached = apply_with(SlopesOfKeys(), tokens[:, order], **cache)
    np.testing.assert_allclose(cached, both[:, order], atol=1e-4)


@user_positions
def test_user_positions_scanned_equals_unrolled(position):
    model = with_position(small_encoder(), position)
    _, params = randomized(model)
    tokens, mask = tokens_of(), jnp.ones((2, 8), jnp.int32).at[1, 5:].set(0)
    scanned, unrolled, without = (
        apply(registry.build(one), params, tokens, mask)
        for one in (model, replace(model, scan_layers=False), with_position(model, models.NoPositions()))
    )
    np.testing.assert_allclose(unrolled, scanned, rtol=1e-4, atol=1e-4)
    assert np.abs(scanned - without).max() > 1e-3


def test_text_dependent_bias_is_trained():
    module, params = randomized(with_position(small_encoder(), DistanceKeys()))
    gradients = jax.grad(lambda params: jnp.sin(apply(module, params, tokens_of())).sum())(params)
    assert np.abs(gradients["stack"]["distance_keys"]).max() > 1e-4


@user_positions
def test_user_positions_are_a_config_choice(position):
    model = with_position(small(), position)
    assert model.num_positions is None and not position.uses_absolute_positions
    assert trees.parse(models.ModelConfig, trees.to_dict(model), "model") == model
    assert Position.choices[position.kind] is type(position)


@pytest.mark.parametrize("position", [models.Disentangled(), models.RelativeSinusoids()], ids=lambda p: p.kind)
def test_scores_of_keys_with_distances_need_a_key_per_head(position):
    with pytest.raises(UserError, match=rf"^attention\.kv_heads is 2, .* of kind '{position.kind}' need a key"):
        models.AttentionConfig(4, 6, position, kv_heads=2)
    assert models.AttentionConfig(4, 6, position, kv_heads=4).num_kv_heads == 4
    assert models.AttentionConfig(4, 6, models.LearnedRelativeBias(8), kv_heads=2).num_kv_heads == 2


def test_rotary_2d_needs_even_halves():
    with pytest.raises(UserError, match=r"attention\.head_dim is 6: set it to a multiple of 4"):
        models.AttentionConfig(2, 6, models.Rotary2D())


def test_tokens_of_a_causal_stack_are_counted_from_the_first_one_after_padding():
    mask = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 0, 1], [1, 1, 1, 1, 1]])
    for row, positions in zip(mask, causal_positions(5, jnp.asarray(mask)).tolist(), strict=True):
        assert [position for position, real in zip(positions, row, strict=True) if real] == list(range(row.sum()))
    assert causal_positions(5).tolist() == [[0, 1, 2, 3, 4]]
    assert causal_positions(2, jnp.asarray(mask), 3).tolist() == [[3, 4]]
