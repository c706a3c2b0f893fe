"""GLM and ChatGLM-6B against a NumPy reference: logits, visibility and cache."""

import functools
from dataclasses import replace

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import models
from plm_jax.models import registry
from plm_jax.models.attention import attend
from plm_jax.models.kernels import Context
from tests.models.test_decoder import initial, logits, reach, small, tokens_of
from tests.models.test_kernels import PADDED, exactly, inputs
from tests.models.test_rotary import rotated
from tests.support.random_models import random_params

LEARNED = small().attention
MODELS = {
    "glm": small(attention=replace(LEARNED, position=models.BlockPositions(16, init_std=0.3))),
    "chatglm": small(
        layers=3,
        attention=models.AttentionConfig(3, 8, models.Rotary2D(theta=10.0)),
        norm=models.NormConfig(placement="deep"),
    ),
    "unilm": small(),
}
families = pytest.mark.parametrize("family", MODELS)
# Rows of eight tokens: part A and two spans, one span, and no blank.
PLACES = {
    "positions": jnp.array([[0, 1, 2, 2, 2, 2, 1, 1], [0, 1, 2, 3, 4, 2, 2, 2], range(8)]),
    "block_positions": jnp.array([[0, 0, 0, 1, 2, 3, 1, 2], [0, 0, 0, 0, 0, 1, 2, 3], [0] * 8]),
    "prefix_lengths": jnp.array([3, 5, 0]),
}
ROWS = tokens_of(batch=3)


def seen(prefix):
    """Returns the visible keys of each query, bool [8, 8]: those of the prefix, and those up to the query."""
    return [[key < max(prefix, query + 1) for key in range(8)] for query in range(8)]


def normed(x, params):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * params["scale"] + params["bias"]


def reference(model, params, tokens, positions, block_positions, prefix):
    """Returns the logits [L, V] of one row by the formulas of the papers, in float64."""
    attention, position = model.attention, model.attention.position
    x = params["token_embedding"][tokens]
    if isinstance(position, models.BlockPositions):
        x = x + params["position_embedding"][positions] + params["block_position_embedding"][block_positions]
    elif isinstance(position, models.LearnedPositions):
        x = x + params["position_embedding"][positions]
    visible = np.array(seen(prefix))
    alpha = (2 * model.stack.layers) ** 0.5

    def dense(params, x):
        return x @ params["kernel"] + params["bias"]

    def attend(params, x):
        mixed = []
        for head in range(attention.heads):
            span = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
            query, key, value = (dense(params[name], x)[:, span] for name in ("query", "key", "value"))
            if isinstance(position, models.Rotary2D):
                half = attention.head_dim // 2
                first, second = (
                    functools.partial(rotated, positions_BL=np.array([places]), dim=half, theta=position.theta)
                    for places in (positions, block_positions)
                )
                query, key = (
                    np.concatenate([first(x[None, None, :, :half]), second(x[None, None, :, half:])], axis=-1)[0, 0]
                    for x in (query, key)
                )
            weights = np.exp(query @ key.T / attention.head_dim**0.5) * visible
            mixed.append(weights / weights.sum(-1, keepdims=True) @ value)
        return dense(params["out"], np.concatenate(mixed, axis=-1))

    def feed_forward(params, x):
        hidden = dense(params["up"], x)
        cube = np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)
        return dense(params["down"], 0.5 * hidden * (1 + np.tanh(cube)))

    for layer in range(model.stack.layers):
        block = jax.tree.map(lambda leaf, i=layer: leaf[i], params["stack"]["blocks"])
        for name, sub_layer in (("attention", attend), ("feed_forward", feed_forward)):
            inner = normed(x, block[f"{name}_norm"])
            x = (alpha * inner if model.norm.placement == "deep" else x) + sub_layer(block[name], inner)
    return normed(x, params["stack"]["final_norm"]) @ params["token_embedding"].T


@families
def test_logits_equal_reference(family):
    model = MODELS[family]
    params = random_params(model, scale=0.4)
    got = logits(registry.build(model), params, ROWS, **PLACES)
    wide = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    for row in range(3):
        positions = (np.asarray(PLACES[name][row]) for name in ("positions", "block_positions"))
        want = reference(model, wide, np.asarray(ROWS[row]), *positions, int(PLACES["prefix_lengths"][row]))
        np.testing.assert_allclose(got[row], want, atol=1e-4)


@families
@pytest.mark.parametrize("prefix", [0, 3, 8])
def test_prefix_is_bidirectional_and_rest_causal(family, prefix):
    tokens = jnp.arange(5, 13)[None]
    for query in range(8):
        reached = reach(*initial(MODELS[family]), tokens, query, prefix_lengths=jnp.array([prefix]))
        assert reached.tolist() == seen(prefix)[query]


def test_both_positions_matter():
    for family in ("glm", "chatglm"):
        module, params = initial(MODELS[family])
        want = logits(module, params, ROWS, **PLACES)
        for name in ("positions", "block_positions"):
            other = logits(module, params, ROWS, **PLACES | {name: PLACES[name].at[:, 5].add(1)})
            assert (np.abs(other - want)[:, 5:].max(-1) > 1e-3).all()
    tables = {name for name in params_of("glm") if name.endswith("position_embedding")}
    assert {name: params_of("glm")[name].shape for name in tables} == {
        "position_embedding": (17, 12),
        "block_position_embedding": (17, 12),
    }


def params_of(family):
    return flax.traverse_util.flatten_dict(initial(MODELS[family])[1], sep="/")


def test_padding_changes_nothing():
    """Prompts are padded on the left, so the prefix length includes padding."""
    for family in MODELS:
        module, params = initial(MODELS[family])
        want = logits(module, params, ROWS, **PLACES)
        left = ((0, 0), (3, 0))
        padded = {name: jnp.pad(PLACES[name], left) for name in ("positions", "block_positions")}
        mask, tokens = jnp.pad(jnp.ones_like(ROWS), left), jnp.pad(ROWS, left, constant_values=9)
        shifted = PLACES["prefix_lengths"] + 3
        got = logits(module, params, tokens, mask, **padded, prefix_lengths=shifted)
        np.testing.assert_allclose(got[:, 3:], want, atol=1e-4)


@pytest.mark.parametrize("family", ["glm", "chatglm"])
def test_incremental_decoding_equals_full_pass(family):
    """The first call reads part A, whose keys are visible in all later calls."""
    module, params = initial(MODELS[family])
    variables, parts, start = {"params": params}, [], 0
    step = jax.jit(
        lambda variables, tokens, mask, index, positions: module.apply(
            variables, tokens, mask, cache_index=index, mutable=["cache"], **positions
        )
    )
    for size in (5, 2, 1):
        end = start + size
        span = slice(start, end)
        mask = jnp.broadcast_to(jnp.arange(8) < end, (3, 8)).astype(jnp.int32)
        positions = {name: value[:, span] if value.ndim == 2 else value for name, value in PLACES.items()}
        outputs, cache = step(variables, ROWS[:, span], mask, start, positions)
        variables, start = {"params": params, **cache}, end
        parts.append(outputs)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), logits(module, params, ROWS, **PLACES), atol=1e-4)


@pytest.mark.parametrize("kernel", ["xla", "cudnn"])
def test_dense_prefix_mask_equals_brute_force(kernel):
    """Checks the mask that cuDNN receives. Checking the computation requires a GPU."""
    prefix = jnp.array([100, 0])
    context = Context(causal=True, mask=PADDED, prefix_lengths=prefix).with_kernel(kernel, 256, 256)
    visible = np.tril(np.ones((2, 256, 256), bool)) | (np.arange(256) < prefix[:, None, None])
    visible &= np.asarray(PADDED)[:, None] == 1
    np.testing.assert_array_equal(np.broadcast_to(context.visible, (2, 1, 256, 256))[:, 0], visible)
    if kernel == "xla":
        arrays = inputs(256, 256, 2)
        got = attend(*arrays, context)
        np.testing.assert_allclose(got, exactly(*arrays, visible), atol=1e-5)
