"""The decoder: sizes, causality, cache, dropout, initializers and speed settings."""

from dataclasses import replace
from functools import cache, partial

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.models.decoder import Decoder

VOCAB, POSITIONS = 31, 16


def small(layers=2, tied=True, **fields) -> models.DecoderConfig:
    defaults = {
        "embedding": models.EmbeddingConfig(VOCAB, 12),
        "attention": models.AttentionConfig(heads=3, head_dim=4, position=models.LearnedPositions(POSITIONS)),
        "feed_forward": models.FeedForwardConfig(20),
        "stack": models.StackConfig(layers),
        "head": models.VocabularyHead(tied),
        "initializer": models.InitializerConfig(std=0.3),
    }
    return models.DecoderConfig(**{**defaults, **fields})


@cache
def initial(model: models.DecoderConfig):
    """Returns a module and its unboxed parameters."""
    module = Decoder(model)
    variables = jax.jit(module.init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    return module, flax.linen.meta.unbox(variables["params"])


@partial(jax.jit, static_argnames="module")
def logits(module, params, tokens, *args, **kwargs):
    return module.apply({"params": params}, tokens, *args, **kwargs)


@partial(jax.jit, static_argnames=("module", "deterministic"))
def stream(module, params, tokens, seed=0, deterministic=False):
    """Returns the embeddings [B, L, D] and the outputs of the blocks [layers, B, L, D], by default with dropout."""
    rngs = {"dropout": jax.random.key(seed)}
    sown = module.apply({"params": params}, tokens, rngs=rngs, deterministic=deterministic, mutable=["intermediates"])[
        1
    ]["intermediates"]
    return sown["embedded"][0], sown["stack"]["hidden"][0]


def tokens_of(seed=0, batch=2, length=8):
    return jax.random.randint(jax.random.key(seed), (batch, length), 0, VOCAB)


def with_dropout(model=None, **rates):
    return replace(model or small(), dropout=models.DropoutConfig(**rates))


@partial(jax.jit, static_argnames="module")
def trained_logits(module, params, tokens, seed=0):
    """With dropout."""
    return module.apply({"params": params}, tokens, rngs={"dropout": jax.random.key(seed)}, deterministic=False)


@partial(jax.jit, static_argnames="module")
def reach(module, params, tokens, query, **kwargs):
    """Returns whether the output at `query` depends on each of the distinct `tokens`: whether a gradient is not 0."""

    def output(table):
        features = module.apply({"params": {**params, "token_embedding": table}}, tokens, method="features", **kwargs)
        return features[0, query] @ jnp.arange(1.0, 1 + features.shape[-1])

    gradient = jax.grad(output)(params["token_embedding"])
    return jnp.any(gradient[tokens[0]], axis=-1)


def test_tokens_attend_within_their_segment():
    tokens, segments = jnp.arange(5, 13)[None], jnp.array([[1, 1, 1, 2, 2, 2, 2, 0]])
    reached = reach(*initial(small()), tokens, 5, segment_ids=segments)
    assert reached.tolist() == [False] * 3 + [True] * 3 + [False] * 2


@partial(jax.jit, static_argnames="module")
def extend(module, variables, tokens, mask, positions, cache_index):
    return module.apply(variables, tokens, mask=mask, positions=positions, cache_index=cache_index, mutable=["cache"])


def test_cache_needs_positions():
    module, params = initial(small())
    with pytest.raises(ValueError, match="positions"):
        module.apply({"params": params}, tokens_of(), mask=jnp.ones((2, 8)), cache_index=0, mutable=["cache"])


def test_shared_heads_equal_repeated_heads():
    attention = models.AttentionConfig(heads=6, head_dim=2, kv_heads=2, position=models.LearnedPositions(POSITIONS))
    shared, params = initial(small(attention=attention))
    flat = flax.traverse_util.flatten_dict(params, sep="/")
    for name in ("key", "value"):
        for leaf in ("kernel", "bias"):
            path = f"stack/blocks/attention/{name}/{leaf}"
            assert flat[path].shape[-1] == 4
            by_head = flat[path].reshape(*flat[path].shape[:-1], 2, 2)
            flat[path] = jnp.repeat(by_head, 3, axis=-2).reshape(*flat[path].shape[:-1], 12)
    repeated = flax.traverse_util.unflatten_dict(flat, sep="/")
    want = logits(Decoder(small(attention=replace(attention, kv_heads=None))), repeated, tokens_of())
    np.testing.assert_allclose(logits(shared, params, tokens_of()), want, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [0, 4])
def test_heads_must_be_shared_evenly(kv_heads):
    with pytest.raises(UserError, match="divisor of the 6 heads"):
        models.AttentionConfig(heads=6, head_dim=2, kv_heads=kv_heads, position=models.NoPositions())


def test_scanned_and_unrolled_blocks_agree_with_dropout():
    model = with_dropout(embedding=0.2, attention=0.2, residual=0.2)
    (scanned, params), (unrolled, same) = initial(model), initial(replace(model, scan_layers=False))
    assert jax.tree.all(jax.tree.map(jnp.array_equal, params, same))
    for seed in (0, 1):
        a, b = (trained_logits(module, params, tokens_of(), seed) for module in (scanned, unrolled))
        np.testing.assert_allclose(a, b, atol=1e-5)


@partial(jax.jit, static_argnames="module")
def gradients(module, params):
    return jax.grad(lambda p: jnp.square(trained_logits(module, p, tokens_of())).mean())(params)


def test_remat_keeps_gradients():
    model = with_dropout(attention=0.2, residual=0.2)
    module, params = initial(model)
    expected = gradients(module, params)
    for remat in ("dots", "full"):
        got = gradients(Decoder(replace(model, remat=remat)), params)
        jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), got, expected)


@pytest.mark.parametrize(("remat", "recomputes"), [("none", False), ("dots", True), ("full", True)])
def test_remat_is_in_the_program(remat, recomputes):
    module, params = initial(replace(small(), remat=remat))
    program = jax.make_jaxpr(jax.grad(lambda p: module.apply({"params": p}, tokens_of()).sum()))(params)
    assert ("remat" in str(program)) == recomputes


def test_dropout_only_in_training_and_by_key():
    module, params = initial(with_dropout(embedding=0.3, attention=0.3, residual=0.3))
    plain = logits(initial(small())[0], params, tokens_of())
    np.testing.assert_array_equal(logits(module, params, tokens_of()), plain)
    first, again, other = (trained_logits(module, params, tokens_of(), seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other, atol=1e-3)
    assert not np.allclose(first, plain, atol=1e-3)


def test_embedding_dropout_zeroes_its_share_and_scales_the_rest():
    rate, tokens = 0.25, tokens_of(batch=64, length=16)
    module, params = initial(with_dropout(embedding=rate))
    dropped, whole = (stream(module, params, tokens, deterministic=off)[0] for off in (False, True))
    is_kept = dropped != 0
    np.testing.assert_allclose(dropped[is_kept], whole[is_kept] / (1 - rate), rtol=1e-5)
    assert abs(1 - is_kept.mean() - rate) < 4 * (rate * (1 - rate) / is_kept.size) ** 0.5


def test_residual_dropout_differs_between_layers():
    rate = 0.5
    module, params = initial(with_dropout(residual=rate))
    embedded, (first, second) = stream(module, params, tokens_of(batch=64, length=16))
    untouched = np.asarray([first == embedded, second == first])
    tolerance = 4 * (rate**2 * (1 - rate**2) / embedded.size) ** 0.5
    assert np.all(np.abs(untouched.mean(axis=(1, 2, 3)) - rate**2) < tolerance)
    assert abs((untouched[0] & untouched[1]).mean() - rate**4) < tolerance


def test_full_attention_dropout_isolates_tokens():
    module, params = initial(with_dropout(attention=1.0))
    tokens = tokens_of(batch=1)
    changed = tokens.at[0, 0].set((tokens[0, 0] + 1) % VOCAB)
    same = np.all(trained_logits(module, params, tokens) == trained_logits(module, params, changed), axis=(0, 2))
    assert same.tolist() == [False] + [True] * 7


def test_initializers_have_published_spread():
    layers, width = 8, 64
    model = models.DecoderConfig(
        embedding=models.EmbeddingConfig(500, width),
        attention=models.AttentionConfig(4, 16, models.LearnedPositions(256, init_std=0.01)),
        feed_forward=models.FeedForwardConfig(4 * width),
        stack=models.StackConfig(layers),
        initializer=models.InitializerConfig(0.02, shrink_residual=True),
    )
    flat = flax.traverse_util.flatten_dict(initial(model)[1], sep="/")
    blocks = "stack/blocks/"
    shrunk = 0.02 / (2 * layers) ** 0.5
    stds = {
        "token_embedding": 0.02,
        "position_embedding": 0.01,
        f"{blocks}attention/query/kernel": 0.02,
        f"{blocks}attention/key/kernel": 0.02,
        f"{blocks}attention/value/kernel": 0.02,
        f"{blocks}attention/out/kernel": shrunk,
        f"{blocks}feed_forward/up/kernel": 0.02,
        f"{blocks}feed_forward/down/kernel": shrunk,
    }
    for name, std in stds.items():
        leaf = np.asarray(flat.pop(name))
        assert abs(leaf.std() / std - 1) < 4 / (2 * leaf.size) ** 0.5, name
        assert abs(leaf.mean()) < 4 * std / leaf.size**0.5, name
    for name, leaf in flat.items():
        assert np.all(leaf == (1.0 if name.endswith("scale") else 0.0)), name
    query = initial(model)[1]["stack"]["blocks"]["attention"]["query"]["kernel"]
    assert query.shape == (layers, width, 64)
    assert not np.array_equal(query[0], query[1])


def test_residual_projections_keep_spread_by_default():
    flat = flax.traverse_util.flatten_dict(initial(small(layers=8))[1], sep="/")
    leaf = flat["stack/blocks/feed_forward/down/kernel"]
    assert abs(leaf.std() / 0.3 - 1) < 4 / (2 * leaf.size) ** 0.5


def test_bfloat16_activations_give_accurate_float32_logits():
    module, params = initial(small())
    exact = logits(module, params, tokens_of())
    rounded = logits(Decoder(small(), dtype=jnp.bfloat16), params, tokens_of())
    assert rounded.dtype == jnp.float32
    assert 0 < np.abs(rounded - exact).max() < 0.1 * np.abs(exact).max()
