"""The decoder by itself: sizes, causality, cache, dropout, initialisers, speed settings."""

from dataclasses import replace

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.models import settings
from plm_jax.models.decoder import Decoder

VOCAB, POSITIONS = 31, 16


def small(layers=2, tied=True, **fields) -> settings.Decoder:
    defaults = {
        "embedding": settings.Embedding(VOCAB, 12),
        "attention": settings.Attention(heads=3, head_dim=4, position=settings.LearnedPositions(POSITIONS)),
        "feed_forward": settings.FeedForward(20),
        "stack": settings.Stack(layers),
        "head": settings.Head(tied),
        "initializer": settings.Initializer(std=0.3),
    }
    return settings.Decoder(**{**defaults, **fields})


def initial(model: settings.Decoder, seed=0):
    """A module and its unboxed parameters."""
    module = Decoder(model)
    variables = module.init(jax.random.key(seed), jnp.zeros((1, 1), jnp.int32))
    return module, flax.linen.meta.unbox(variables["params"])


def tokens_of(seed=0, batch=2, length=8):
    return jax.random.randint(jax.random.key(seed), (batch, length), 0, VOCAB)


def with_dropout(model=None, **rates):
    return replace(model or small(), dropout=settings.Dropout(**rates))


def run(module, params, tokens, seed=0, **kwargs):
    """Training mode: dropout on."""
    rngs = {"dropout": jax.random.key(seed)}
    return module.apply({"params": params}, tokens, rngs=rngs, deterministic=False, **kwargs)


def gpt2(layers, width, heads):
    return settings.Decoder(
        embedding=settings.Embedding(50257, width),
        attention=settings.Attention(heads, width // heads, settings.LearnedPositions(1024)),
        feed_forward=settings.FeedForward(4 * width),
        stack=settings.Stack(layers),
    )


@pytest.mark.parametrize(
    ("layers", "width", "heads", "parameters"),
    [
        (12, 768, 12, 124_439_808),
        (24, 1024, 16, 354_823_168),
        (36, 1280, 20, 774_030_080),
        (48, 1600, 25, 1_557_611_200),
    ],
)
def test_gpt2_has_its_published_number_of_parameters(layers, width, heads, parameters):
    module = Decoder(gpt2(layers, width, heads))
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters


def reach(model, tokens, query, **kwargs):
    """Which positions of `tokens`, all different, the output at `query` depends on: by its gradient, exactly zero or not."""
    module, params = initial(model)

    def output(table):
        features = module.apply({"params": {**params, "token_embedding": table}}, tokens, method="features", **kwargs)
        return features[0, query] @ jnp.arange(1.0, 1 + features.shape[-1])

    gradient = jax.jit(jax.grad(output))(params["token_embedding"])
    return [bool(jnp.any(gradient[token])) for token in tokens[0]]


@pytest.mark.parametrize("query", [0, 3, 7])
def test_a_position_depends_on_itself_and_all_before_it_and_on_nothing_after(query):
    tokens = jnp.arange(5, 13)[None]
    assert reach(small(), tokens, query) == [position <= query for position in range(8)]


def test_a_token_sees_its_own_segment_only():
    tokens, segments = jnp.arange(5, 13)[None], jnp.array([[1, 1, 1, 2, 2, 2, 2, 0]])
    assert reach(small(), tokens, 5, segment_ids=segments) == [False] * 3 + [True] * 3 + [False] * 2


def test_padding_is_not_seen_and_the_positions_skip_it():
    module, params = initial(small())
    tokens = tokens_of(batch=1, length=5)
    alone = module.apply({"params": params}, tokens)
    for left, right in ((3, 0), (0, 3), (2, 1)):
        width = ((0, 0), (left, right))
        padded, mask = jnp.pad(tokens, width, constant_values=9), jnp.pad(jnp.ones_like(tokens), width)
        logits = module.apply({"params": params}, padded, mask)[:, left : left + 5]
        np.testing.assert_allclose(logits, alone, atol=1e-5)


@pytest.mark.parametrize("chunks", [(8,), (1,) * 8, (5, 1, 1, 1), (3, 4, 1)])
@pytest.mark.parametrize("pad", [0, 3])
def test_incremental_decoding_equals_the_full_pass(chunks, pad):
    module, params = initial(small(attention=replace(small().attention, scale_by_inverse_depth=True)))
    tokens = tokens_of()
    mask = jnp.ones_like(tokens).at[1, :pad].set(0)
    positions = jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)
    full = module.apply({"params": params}, tokens, mask)
    variables, parts, start = {"params": params}, [], 0
    for size in chunks:
        end = start + size
        filled = mask * (jnp.arange(8) < end)
        logits, cache = module.apply(
            variables,
            tokens[:, start:end],
            mask=filled,
            positions=positions[:, start:end],
            cache_index=start,
            mutable=["cache"],
        )
        variables, start = {"params": params, **cache}, end
        parts.append(logits)
    got = jnp.concatenate(parts, axis=1)
    np.testing.assert_allclose(jnp.where(mask[..., None], got, 0), jnp.where(mask[..., None], full, 0), atol=1e-4)


def test_a_cache_needs_positions():
    module, params = initial(small())
    with pytest.raises(ValueError, match="positions"):
        module.apply({"params": params}, tokens_of(), mask=jnp.ones((2, 8)), cache_index=0, mutable=["cache"])


def test_scanned_and_unrolled_blocks_agree_with_dropout_on():
    model = with_dropout(embedding=0.2, attention=0.2, residual=0.2)
    _, params = initial(model)
    scanned, unrolled = (Decoder(replace(model, scan_layers=scan)) for scan in (True, False))
    for seed in (0, 1):
        np.testing.assert_allclose(
            run(scanned, params, tokens_of(), seed), run(unrolled, params, tokens_of(), seed), atol=1e-5
        )
    assert jax.tree.all(jax.tree.map(jnp.array_equal, params, initial(unrolled.model)[1]))


def test_what_is_recomputed_changes_no_gradient():
    model = with_dropout(embedding=0.2, attention=0.2, residual=0.2)
    _, params = initial(model)

    def gradients(remat, scan):
        module = Decoder(replace(model, remat=remat, scan_layers=scan))
        return jax.jit(jax.grad(lambda p: jnp.square(run(module, p, tokens_of())).mean()))(params)

    expected = gradients("none", True)
    for remat, scan in (("dots", True), ("full", True), ("full", False)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradients(remat, scan), expected)


@pytest.mark.parametrize(("remat", "recomputes"), [("none", False), ("dots", True), ("full", True)])
def test_remat_is_in_the_program(remat, recomputes):
    module, params = initial(replace(small(), remat=remat))
    program = jax.make_jaxpr(jax.grad(lambda p: module.apply({"params": p}, tokens_of()).sum()))(params)
    assert ("remat" in str(program)) == recomputes


def test_dropout_is_off_unless_training_and_its_masks_follow_the_key():
    module, params = initial(with_dropout(embedding=0.3, attention=0.3, residual=0.3))
    plain = Decoder(small()).apply({"params": params}, tokens_of())
    np.testing.assert_array_equal(module.apply({"params": params}, tokens_of()), plain)
    first = run(module, params, tokens_of(), seed=1)
    np.testing.assert_array_equal(first, run(module, params, tokens_of(), seed=1))
    assert not np.allclose(first, run(module, params, tokens_of(), seed=2), atol=1e-3)
    assert not np.allclose(first, plain, atol=1e-3)


def test_embedding_dropout_zeroes_its_share_and_scales_the_rest():
    rate, tokens = 0.25, tokens_of(batch=64, length=16)
    module, params = initial(with_dropout(embedding=rate))
    dropped = run(module, params, tokens, mutable=["intermediates"])[1]["intermediates"]["embedded"][0]
    whole = module.apply({"params": params}, tokens, mutable=["intermediates"])[1]["intermediates"]["embedded"][0]
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], whole[kept] / (1 - rate), rtol=1e-5)
    assert abs(1 - kept.mean() - rate) < 4 * (rate * (1 - rate) / kept.size) ** 0.5


def test_residual_dropout_falls_on_both_sub_layers():
    rate, tokens = 0.5, tokens_of(batch=64, length=16)
    module, params = initial(with_dropout(small(layers=1), residual=rate))
    sown = run(module, params, tokens, mutable=["intermediates"])[1]["intermediates"]
    untouched = np.asarray(sown["stack"]["blocks"]["hidden"][0][0] == sown["embedded"][0]).mean()
    assert abs(untouched - rate**2) < 4 * (rate**2 * (1 - rate**2) / sown["embedded"][0].size) ** 0.5


def test_attention_dropout_of_everything_leaves_a_token_alone():
    module, params = initial(with_dropout(attention=1.0))
    tokens = tokens_of(batch=1)
    changed = tokens.at[0, 0].set((tokens[0, 0] + 1) % VOCAB)
    np.testing.assert_array_equal(run(module, params, tokens)[:, 1:], run(module, params, changed)[:, 1:])
    assert not np.array_equal(run(module, params, tokens)[:, 0], run(module, params, changed)[:, 0])


def test_layers_drop_different_units():
    module, params = initial(with_dropout(small(layers=2), residual=0.5))
    sown = run(module, params, tokens_of(batch=16), mutable=["intermediates"])[1]["intermediates"]
    first, second = sown["stack"]["blocks"]["hidden"][0]
    assert not np.array_equal(first == sown["embedded"][0], second == first)


def test_initialisers_have_their_published_spread():
    layers, width = 8, 64
    model = settings.Decoder(
        embedding=settings.Embedding(500, width),
        attention=settings.Attention(4, 16, settings.LearnedPositions(256, init_std=0.01)),
        feed_forward=settings.FeedForward(4 * width),
        stack=settings.Stack(layers),
        initializer=settings.Initializer(0.02, shrink_residual=True),
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


def test_residual_projections_keep_the_common_spread_unless_asked():
    flat = flax.traverse_util.flatten_dict(initial(small(layers=8))[1], sep="/")
    leaf = flat["stack/blocks/feed_forward/down/kernel"]
    assert abs(leaf.std() / 0.3 - 1) < 4 / (2 * leaf.size) ** 0.5


def test_bfloat16_activations_give_float32_logits_near_the_exact_ones():
    module, params = initial(small())
    exact = module.apply({"params": params}, tokens_of())
    rounded = Decoder(small(), dtype=jnp.bfloat16).apply({"params": params}, tokens_of())
    assert rounded.dtype == jnp.float32
    assert 0 < np.abs(rounded - exact).max() < 0.1 * np.abs(exact).max()
