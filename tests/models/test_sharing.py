"""Layers that share parameters, tables narrower than the model, positions that skip padding."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from plm_jax import models
from plm_jax.common import trees
from plm_jax.common.errors import UserError
from plm_jax.models import registry
from tests.models.test_encoder import (
    apply,
    assert_spread,
    initial,
    randomized,
    small_encoder,
    tokens_of,
    trained_gradients,
)

replace = dataclasses.replace
# stack, which of the stored blocks each block of a token's way is, and how it is computed.
STACKS = [
    (models.StackConfig(4, groups=2, inner=2), [0, 1, 0, 1, 2, 3, 2, 3], {}),
    (models.StackConfig(2, groups=1, inner=2), [0, 1, 0, 1], {"scan_layers": False}),
]


@partial(jax.jit, static_argnames="module")
def hidden_states(module, params, tokens):
    _, sown = module.apply({"params": params}, tokens, method="features", mutable=["intermediates"])
    return sown["intermediates"]["stack"]["hidden"][0]


@pytest.mark.parametrize(("stack", "blocks", "speed"), STACKS)
def test_shared_layers_equal_copied_layers(stack, blocks, speed):
    """Compares values, dropout, gradients (summed over shared layers) and hidden states of each layer."""
    model = small_encoder(stack=stack, dropout=models.DropoutConfig(attention=0.2, residual=0.2))
    params, blocks = randomized(model)[1], np.array(blocks)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(params["stack"])} == {blocks.max() + 1}
    shared = registry.build(replace(model, **speed))
    copied = registry.build(replace(model, stack=models.StackConfig(len(blocks))))
    copies = {**params, "stack": jax.tree.map(lambda leaf: leaf[blocks], params["stack"])}
    tokens = tokens_of()
    got = hidden_states(shared, params, tokens)
    assert got.shape == (stack.layers, *tokens.shape, 12)
    expected = hidden_states(copied, copies, tokens)[stack.inner - 1 :: stack.inner]
    np.testing.assert_allclose(got, expected, atol=1e-5)

    expected, of_copies = trained_gradients(copied, copies, (tokens,))
    got, gradients = trained_gradients(shared, params, (tokens,))
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    of_copies["stack"] = jax.tree.map(
        lambda leaf: np.stack([leaf[blocks == block].sum(0) for block in range(blocks.max() + 1)]), of_copies["stack"]
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), gradients, of_copies)


@pytest.mark.parametrize("groups", [1, None])
def test_shared_parameters_are_not_copied_per_layer(groups):
    module, params = randomized(small_encoder(stack=models.StackConfig(7, groups=groups)))

    def loss(params, tokens):
        return module.apply({"params": params}, tokens, method="features").sum()

    program = str(jax.make_jaxpr(jax.grad(loss))(params, tokens_of()))
    assert ("f32[7,12,20]" in program) == (groups is None)


def test_residual_projections_shrink_with_number_of_blocks():
    sizes = {
        "feed_forward": models.FeedForwardConfig(60),
        "initializer": models.InitializerConfig(0.1, shrink_residual=True),
    }
    flat = initial(small_encoder(stack=models.StackConfig(8, groups=2, inner=4), **sizes))
    assert flat["stack/blocks/feed_forward/down/kernel"].shape == (8, 60, 12)
    assert_spread(flat["stack/blocks/feed_forward/down/kernel"], 0.1 / (2 * 32) ** 0.5)


@pytest.mark.parametrize("offset", [2, 0])
def test_padding_takes_no_position(offset):
    """Real tokens have consecutive positions. Padding has the row before the first, if there is one."""
    position = models.LearnedPositions(8, offset=offset, skips_padding=True)
    model = small_encoder()
    module, params = randomized(replace(model, attention=replace(model.attention, position=position)))
    assert params["position_embedding"].shape == (8 + offset, 12)
    tokens, mask = tokens_of(), np.array([[1] * 8, [0, 0, 1, 0, 1, 1, 1, 0]])
    positions = np.array([[*range(8)], [-1, -1, 0, -1, 1, 2, 3, -1]])
    got = apply(module, params, tokens, mask, method="features")
    expected = apply(module, params, tokens, mask, method="features", positions=np.maximum(positions, -offset))
    np.testing.assert_allclose(got, expected, atol=1e-5)
    # Padding changes nothing, and positions begin after the offset.
    alone = apply(module, params, tokens[1:, mask[1] == 1], method="features")
    np.testing.assert_allclose(got[1, mask[1] == 1], alone[0], atol=1e-4)
    model = replace(model, attention=replace(model.attention, position=models.LearnedPositions(8)))
    params = {**params, "position_embedding": params["position_embedding"][offset:]}
    plain = apply(registry.build(model), params, tokens[1:, mask[1] == 1], method="features")
    np.testing.assert_allclose(alone, plain, atol=1e-4)


def test_narrow_tables_are_projected():
    """Compares with NumPy."""
    model = small_encoder(stack=models.StackConfig(1), norm=models.NormConfig(1e-5, placement="post"))
    module, params = randomized(replace(model, embedding=replace(model.embedding, embedding_size=5)))

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * params[name]["scale"] + params[name]["bias"]

    def dense(x, name):
        return x @ params[name]["kernel"] + params[name]["bias"]

    tokens = np.asarray(tokens_of())
    tables = params["token_embedding"][tokens] + params["position_embedding"][:8] + params["token_type_embedding"][0]
    expected = dense(norm(tables, "embedding_norm"), "embedding_projection")
    embedded = apply(module, params, tokens, np.arange(8)[None], method="embed", deterministic=True)
    np.testing.assert_allclose(embedded, expected, atol=1e-4)
    features = np.random.default_rng(0).normal(size=(2, 8, 12)).astype(np.float32)
    x = dense(features, "head_transform")
    x = norm(x * np.vectorize(lambda z: 0.5 * (1 + jax.scipy.special.erf(z / 2**0.5)), otypes=[float])(x), "head_norm")
    expected = x @ params["token_embedding"].T + params["head_bias"]
    np.testing.assert_allclose(apply(module, params, features, method="logits"), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: models.StackConfig(6, groups=4), "stack.groups is 4: set it to a divisor of the 6 layers"),
        (lambda: models.StackConfig(6, groups=0), "stack.groups is 0"),
        (lambda: trees.checked(models.StackConfig(6, inner=0), "config.model.stack"), "stack.inner is 0"),
        (
            lambda: small_encoder(
                embedding=models.EmbeddingConfig(9, 12, embedding_size=4), head=models.VocabularyHead()
            ),
            "set head.transform",
        ),
    ],
)
def test_invalid_settings_are_rejected(make, words):
    with pytest.raises(UserError, match=words):
        make()
