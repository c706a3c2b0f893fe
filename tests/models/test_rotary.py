"""Rotary positions against complex numbers, published frequencies and unpacked texts."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.models import Rotary, RotaryScaling
from plm_jax.models.decoder import Decoder
from plm_jax.models.encoder import Encoder
from tests.models.test_decoder import initial, logits, small, tokens_of

POSITIONS = jnp.array([[0, 1, 2, 3, 4], [7, 3, 900, 0, 11]])


def rotated(x_BNLH, positions_BL, dim, theta, interleaved=False):
    """Multiplies each pair of the first `dim` features, as a complex number, by e^(i · position · theta^(-2i/dim))."""
    x, half = np.array(x_BNLH, np.float64), dim // 2
    first, second = (slice(0, dim, 2), slice(1, dim, 2)) if interleaved else (slice(half), slice(half, dim))
    angles = np.asarray(positions_BL)[:, None, :, None] * theta ** (-np.arange(0, dim, 2) / dim)
    z = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)
    x[..., first], x[..., second] = z.real, z.imag
    return x


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.4])
def test_rotation_equals_complex_product(interleaved, fraction):
    position = Rotary(theta=50.0, fraction=fraction, interleaved=interleaved)
    x = jax.random.normal(jax.random.key(0), (2, 3, 5, 12))
    got = position.rotation(12, POSITIONS, None)(x)
    want = rotated(x, POSITIONS, {1.0: 12, 0.5: 6, 0.4: 4}[fraction], 50.0, interleaved)
    np.testing.assert_allclose(got, want, atol=2e-4)
    assert np.abs(want - x).max() > 1


def test_bfloat16_is_rotated_in_float32():
    x = jax.random.normal(jax.random.key(0), (2, 1, 5, 8), jnp.bfloat16)
    got = Rotary().rotation(8, POSITIONS, None)(x)
    want = Rotary().rotation(8, POSITIONS, None)(x.astype(jnp.float32)).astype(jnp.bfloat16)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


def test_scores_depend_only_on_distance():
    query, key = jax.random.normal(jax.random.key(1), (2, 1, 1, 1, 16))

    def score(position, at):
        positions = jnp.array([[at + 9], [at]])
        q, k = position.rotation(16, positions, None)(jnp.concatenate([query, key]))
        return float((q * k).sum())

    for position in (Rotary(theta=100.0), Rotary(theta=100.0, fraction=0.5, interleaved=True)):
        assert abs(score(position, 0) - score(position, 200)) < 1e-4
        assert abs(score(position, 0) - float((query * key).sum())) > 1e-2


def test_llama_3_1_scales_low_frequencies():
    """meta-llama/llama-models, llama3/model.py, head_dim 128, theta 500,000."""
    plain, scaled = (
        np.array(Rotary(500_000.0, scaling=scaling).frequencies(128)) for scaling in (None, RotaryScaling())
    )
    ratios = scaled / plain
    np.testing.assert_allclose(plain, 500_000.0 ** (-np.arange(64) / 64))
    np.testing.assert_array_equal(ratios[:29], 1)
    np.testing.assert_allclose(ratios[29:35], [0.8282, 0.6437, 0.4935, 0.3711, 0.2714, 0.1902], atol=5e-5)
    np.testing.assert_allclose(ratios[35:], 0.125)


ATTENTION = models.AttentionConfig(heads=3, head_dim=4, position=Rotary(theta=10.0), kv_heads=1)
ROTARY = small(attention=ATTENTION)
PARTIAL = small(attention=replace(ATTENTION, position=Rotary(theta=10.0, fraction=0.5, interleaved=True)))


@pytest.mark.parametrize("model", [ROTARY, PARTIAL], ids=["halves", "partial_neighbours"])
def test_packed_texts_have_logits_of_separate_texts(model):
    module, params = initial(model)
    tokens, segments = tokens_of(batch=1), jnp.array([[1, 1, 1, 1, 2, 2, 2, 2]])
    alone = [logits(module, params, tokens[:, span]) for span in (slice(4), slice(4, 8))]
    for positions in (None, jnp.array([[0, 1, 2, 3, 0, 1, 2, 3]])):
        packed = logits(module, params, tokens, positions=positions, segment_ids=segments)
        np.testing.assert_allclose(packed, jnp.concatenate(alone, axis=1), atol=1e-4)


def test_order_of_tokens_matters():
    """The causal mask alone does not reveal the order of the earlier tokens to the last one."""
    one_layer = replace(ROTARY, stack=models.StackConfig(1))
    module, params = initial(one_layer)
    tokens, swapped = jnp.array([[4, 9, 2, 7]]), jnp.array([[9, 4, 2, 7]])
    assert np.abs(logits(module, params, tokens) - logits(module, params, swapped))[0, -1].max() > 1e-3
    blind = Decoder(replace(one_layer, attention=replace(ATTENTION, position=models.NoPositions())))
    same = [logits(blind, params, t)[0, -1] for t in (tokens, swapped)]
    np.testing.assert_allclose(*same, atol=1e-5)


def test_encoder_supports_rotary_positions():
    model = models.EncoderConfig(
        embedding=ROTARY.embedding,
        attention=ATTENTION,
        feed_forward=ROTARY.feed_forward,
        stack=ROTARY.stack,
        initializer=ROTARY.initializer,
    )
    module = Encoder(model)
    params = jax.jit(module.init)(jax.random.key(0), tokens_of())["params"]
    run = jax.jit(partial(module.apply, {"params": params}))
    near = run(tokens_of())
    np.testing.assert_allclose(run(tokens_of(), positions=jnp.arange(50, 58)[None]), near, atol=1e-4)
    assert np.abs(run(tokens_of(), positions=jnp.arange(8)[None] * 2) - near).max() > 1e-3


def test_flash_supports_rotary_positions():
    model = small(attention=models.AttentionConfig(2, 8, Rotary(theta=10.0), kv_heads=1), attention_kernel="flash")
    tokens, segments = tokens_of(length=128), jnp.repeat(jnp.array([[1, 1, 2, 3], [1, 2, 2, 2]]), 32, axis=1)
    module, params = initial(model)
    want = logits(Decoder(replace(model, attention_kernel="xla")), params, tokens, segment_ids=segments)
    np.testing.assert_allclose(logits(module, params, tokens, segment_ids=segments), want, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "fields", "message"),
    [
        (Rotary, {"theta": 5.0, "thetas": (1.0, 2.0)}, "theta 5.0 and thetas .*: leave out one of them"),
        *((Rotary, fields, "rotary positions of") for fields in ({"theta": 0.0}, {"fraction": 0.0}, {"fraction": 1.5})),
        *((RotaryScaling, fields, "rotary scaling") for fields in ({"factor": 0.0}, {"low_frequency_factor": 4.0})),
    ],
)
def test_invalid_settings_are_rejected(settings, fields, message):
    with pytest.raises(UserError, match=message):
        settings(**fields)
