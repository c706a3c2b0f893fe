"""The encoder and the encoder-decoder: sizes, buckets, dropout, cache, packing and speed settings."""

from dataclasses import replace
from functools import cache, partial

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.configs import xlm
from plm_jax.hub.bert import BertFamily
from plm_jax.hub.t5 import T5Family
from plm_jax.models import registry
from plm_jax.models.positions.relative_bias import relative_buckets
from tests.support.random_models import random_params

VOCAB = 31


def small_encoder(**fields) -> models.EncoderConfig:
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 20, "num_hidden_layers": 2}
    model = BertFamily().to_settings(
        {"vocab_size": VOCAB, "max_position_embeddings": 16, "initializer_range": 0.3, **sizes}
    )
    return replace(model, **{"dropout": models.DropoutConfig(), **fields})


def small_encoder_decoder(**fields) -> models.EncoderDecoderConfig:
    sizes = {"d_model": 12, "d_kv": 5, "num_heads": 3, "d_ff": 20, "num_layers": 1, "num_decoder_layers": 2}
    model = T5Family().to_settings({"vocab_size": VOCAB, "feed_forward_proj": "gated-gelu", **sizes})
    return replace(model, **{"dropout": models.DropoutConfig(), **fields})


@cache
def randomized(model: models.TransformerConfig):
    """Returns a module and random parameters, including norms and biases, without compilation."""
    return registry.build(model), random_params(model, seed=0, scale=0.3)


def initial(model: models.TransformerConfig):
    """Returns the initial parameters by path."""
    params = jax.jit(partial(registry.init_params, registry.build(model)))(jax.random.key(0))
    return flax.traverse_util.flatten_dict(flax.linen.meta.unbox(params), sep="/")


def tokens_of(seed=0, batch=2, length=8):
    return jax.random.randint(jax.random.key(seed), (batch, length), 0, VOCAB)


@partial(jax.jit, static_argnames=("module", "method", "name"))
def apply(module, params, *args, method="__call__", **kwargs):
    return module.apply({"params": params}, *args, method=method, **kwargs)


# First distance of each inexact bucket (Raffel et al. 2020 §2.1; computed by hand from the formula).
TWO_WAY = [12, 16, 23, 32, 46, 64, 91]
ONE_WAY = [19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


def test_relative_bucket_boundaries():
    position, distances = models.RelativeBias(), np.arange(200)
    expected = np.searchsorted([*range(1, 9), *TWO_WAY], distances, side="right")
    np.testing.assert_array_equal(relative_buckets(-distances, position, causal=False), expected)
    np.testing.assert_array_equal(relative_buckets(distances[1:], position, causal=False), 16 + expected[1:])
    expected = np.searchsorted([*range(1, 17), *ONE_WAY], distances, side="right")
    np.testing.assert_array_equal(relative_buckets(-distances, position, causal=True), expected)
    np.testing.assert_array_equal(relative_buckets(distances, position, causal=True), 0)


@pytest.mark.parametrize(("buckets", "max_distance"), [(4, 3), (5, 3), (8, 5), (32, 17), (32, 10_000)])
@pytest.mark.parametrize("causal", [True, False])
def test_distances_share_the_last_bucket_from_the_maximum(buckets, max_distance, causal):
    position, distances = models.RelativeBias(buckets, max_distance), np.array([*range(200), 9_999, 10_000, 2**24])
    assigned = np.asarray(relative_buckets(-distances, position, causal))
    last = (buckets if causal else buckets // 2) - 1
    assert assigned[0] == 0 and np.all(np.diff(assigned) >= 0) and assigned[-1] == last
    assert np.all(assigned[distances >= max_distance] == last)


@pytest.mark.parametrize(("buckets", "max_distance"), [(1, 128), (3, 128), (32, 8), (32, 16), (5, 2)])
@pytest.mark.parametrize("settings", [models.RelativeBias, partial(models.LearnedRelativeBias, 64)])
def test_buckets_that_do_not_fit_the_maximum_distance_are_rejected(settings, buckets, max_distance):
    message = f"^relative bias with {buckets} buckets and a max_distance of {max_distance}: set buckets to at least 4, "
    with pytest.raises(UserError, match=message):
        settings(buckets=buckets, max_distance=max_distance)


def assert_spread(leaf, std, cut=False):
    leaf = np.asarray(leaf)
    assert abs(leaf.std() / std - 1) < 4 / leaf.size**0.5
    assert abs(leaf.mean()) < 4 * std / leaf.size**0.5
    # One in twenty values of a normal is beyond two deviations; truncated_normal truncates there and rescales.
    assert np.any(np.abs(leaf) > 2.4 * std) != cut


def test_t5_initializers_have_published_spread():
    model = T5Family().to_settings(
        {"vocab_size": 500, "d_model": 64, "d_kv": 8, "num_heads": 16, "d_ff": 256, "tie_word_embeddings": False}
        | {"num_layers": 4, "feed_forward_proj": "gated-gelu"}
    )
    flat = initial(model)
    assert_spread(flat["token_embedding"], 1.0)
    for stack, attentions in (("encoder", ["attention"]), ("decoder", ["attention", "cross_attention"])):
        blocks = f"{stack}/blocks"
        for attention in attentions:
            assert_spread(flat[f"{blocks}/{attention}/query/kernel"], (64 * 8) ** -0.5, cut=True)
            assert_spread(flat[f"{blocks}/{attention}/key/kernel"], 64**-0.5, cut=True)
            assert_spread(flat[f"{blocks}/{attention}/value/kernel"], 64**-0.5, cut=True)
            assert_spread(flat[f"{blocks}/{attention}/out/kernel"], (16 * 8) ** -0.5, cut=True)
        assert_spread(flat[f"{blocks}/feed_forward/gate/kernel"], 64**-0.5, cut=True)
        assert_spread(flat[f"{blocks}/feed_forward/up/kernel"], 64**-0.5, cut=True)
        assert_spread(flat[f"{blocks}/feed_forward/down/kernel"], 256**-0.5, cut=True)
        bias = flat[f"{stack}/relative_bias"]  # Uniform with a variance of 2 / (32 + 16).
        assert np.abs(bias).max() < (3 * 2 / 48) ** 0.5 and abs(bias.std() / (2 / 48) ** 0.5 - 1) < 0.15
    assert_spread(flat["head"], 64**-0.5, cut=True)


def test_bert_initializers_are_truncated_at_two_deviations():
    model = small_encoder(
        embedding=models.EmbeddingConfig(2000, 12, token_types=2, norm=True),
        initializer=models.InitializerConfig(0.02, truncated=True),
    )
    flat = initial(model)
    table = np.asarray(flat["token_embedding"])
    assert 0.0399 < np.abs(table).max() <= 0.04
    assert abs(table.std() / 0.0176 - 1) < 0.02  # 0.8796 of 0.02: the deviation of a normal truncated at two.
    for name, leaf in flat.items():
        if name.endswith("kernel"):
            assert 0.035 < np.abs(leaf).max() <= 0.04, name
        elif name.endswith(("scale", "bias")):
            assert np.all(leaf == (1.0 if name.endswith("scale") else 0.0)), name


def test_xlm_initializers_are_those_of_torch():
    model = xlm.model(layers=2, width=64, heads=4, vocab_size=500, languages=40, length=300)
    flat = initial(model)
    for table in ("token_embedding", "token_type_embedding", "position_embedding"):
        assert_spread(flat[table], 64**-0.5)
    for name, inputs in (("attention/query", 64), ("attention/out", 64), ("feed_forward/down", 256)):
        kernel = np.asarray(flat[f"stack/blocks/{name}/kernel"])  # Uniform in ±inputs ** -0.5.
        assert 0.99 < np.abs(kernel).max() * inputs**0.5 <= 1
        assert abs(kernel.std() * (3 * inputs) ** 0.5 - 1) < 0.02


SMALL = {"encoder": small_encoder, "encoder_decoder": small_encoder_decoder}


def inputs_of(kind, length=8):
    return (tokens_of(length=length), *([tokens_of(1, length=6)] if kind == "encoder_decoder" else []))


@partial(jax.jit, static_argnames="module")
def trained_features(module, params, inputs):
    """With dropout."""
    rngs = {"dropout": jax.random.key(0, impl="unsafe_rbg")}  # Compiles faster.
    return module.apply({"params": params}, *inputs, method="features", rngs=rngs, deterministic=False)


@pytest.mark.parametrize("kind", SMALL)
def test_broadcast_dropout_drops_the_same_units_at_all_positions(kind):
    """With equal tokens and no position information, only dropout can make positions differ."""
    model = SMALL[kind]()
    model = replace(model, attention=replace(model.attention, position=models.NoPositions()))
    inputs = [jnp.full_like(tokens, 7) for tokens in inputs_of(kind)]
    for broadcast in (True, False):
        dropout = models.DropoutConfig(broadcast=broadcast).all_at(0.3)
        if kind == "encoder_decoder":  # Causal attention drops another share of keys at each position.
            dropout = replace(dropout, attention=0.0)
        module, params = randomized(replace(model, dropout=dropout))
        dropped = np.asarray(trained_features(module, params, inputs))
        assert np.allclose(dropped, dropped[:, :1], atol=1e-5) == broadcast
        assert not np.allclose(dropped[0], dropped[1], atol=1e-2)


def test_dropout_after_the_stack_zeroes_its_share():
    for broadcast in (True, False):
        dropout = models.DropoutConfig(output=0.5, broadcast=broadcast)
        zero = np.asarray(trained_features(*randomized(small_encoder(dropout=dropout)), [tokens_of(batch=32)]) == 0)
        assert abs(zero.mean() - 0.5) < 0.1
        assert np.all(zero == zero[:, :1]) == broadcast


@partial(jax.jit, static_argnames="module")
def trained_gradients(module, params, inputs):
    def loss(params):
        features = trained_features(module, params, inputs)
        return jnp.square(features * jnp.arange(features.shape[-1])).mean()

    return jax.value_and_grad(loss)(params)


def test_scanned_equals_unrolled_recomputed_stack():
    model = small_encoder_decoder(dropout=models.DropoutConfig(attention=0.2, residual=0.2, broadcast=True))
    inputs, params = inputs_of("encoder_decoder"), randomized(model)[1]
    expected = trained_gradients(registry.build(model), params, inputs)
    got = trained_gradients(registry.build(replace(model, scan_layers=False, remat="full")), params, inputs)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), got, expected)


def test_packed_texts_equal_separate_texts():
    module, params = randomized(small_encoder())
    tokens = tokens_of(batch=1)
    positions, segments = jnp.array([[0, 1, 2, 0, 1, 2, 3, 4]]), jnp.array([[1, 1, 1, 2, 2, 2, 2, 2]])
    packed = apply(module, params, tokens, method="features", positions=positions, segment_ids=segments)
    for span in (slice(0, 3), slice(3, 8)):
        alone = apply(module, params, tokens[:, span], method="features")
        np.testing.assert_allclose(packed[:, span], alone, atol=1e-4)


@pytest.mark.parametrize(
    "position", [models.RelativeBias(), models.Rotary(theta=10.0), models.Rotary2D(theta=10.0)], ids=lambda p: p.kind
)
def test_packed_pairs_equal_separate_pairs(position):
    """Positions of the encoder count on from pair to pair, and those of the decoder may also begin again."""
    attention = replace(small_encoder_decoder().attention, head_dim=8, position=position)
    module, params = randomized(small_encoder_decoder(attention=attention))
    assert not module.model.uses_absolute_positions
    tokens, decoder_tokens = tokens_of(batch=1), tokens_of(1, batch=1, length=6)
    segments, decoder_segments = jnp.array([[1, 1, 1, 2, 2, 2, 2, 2]]), jnp.array([[1, 1, 1, 1, 2, 2]])
    inputs = {"segment_ids": segments, "decoder_segment_ids": decoder_segments}
    counted_on = apply(module, params, tokens, decoder_tokens, **inputs)
    restarted = apply(
        module, params, tokens, decoder_tokens, decoder_positions=jnp.array([[0, 1, 2, 3, 0, 1]]), **inputs
    )
    for span, decoder_part in ((slice(0, 3), slice(0, 4)), (slice(3, 8), slice(4, 6))):
        alone = apply(module, params, tokens[:, span], decoder_tokens[:, decoder_part])
        np.testing.assert_allclose(counted_on[:, decoder_part], alone, atol=1e-4)
        np.testing.assert_allclose(restarted[:, decoder_part], alone, atol=1e-4)


@partial(jax.jit, static_argnames="module")
def reach(module, params, tokens, decoder_tokens, query):
    """Returns the rows of the token table that the decoder's output at `query` depends on."""

    def output(table):
        params_ = {**params, "token_embedding": table}
        features = module.apply({"params": params_}, tokens, decoder_tokens, method="features")
        return features[0, query] @ jnp.arange(1.0, 1 + features.shape[-1])

    return jnp.any(jax.grad(output)(params["token_embedding"]) != 0, axis=-1)


def test_decoder_attends_to_input_and_past():
    tokens, decoder_tokens = jnp.arange(5, 11)[None], jnp.arange(20, 25)[None]
    for query in (0, 2, 4):
        reached = reach(*randomized(small_encoder_decoder()), tokens, decoder_tokens, query)
        assert np.flatnonzero(reached).tolist() == [*range(5, 11), *range(20, 21 + query)]
