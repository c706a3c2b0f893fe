"""Decoders of GPT-2, LLaMA, ChatGLM2, GPT-1 and GPT-3: visibility, cache, padding and kernels."""

from dataclasses import replace
from functools import partial

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import models
from plm_jax.models import registry
from plm_jax.models.attention import attend
from plm_jax.models.kernels import Context
from tests.models.own_positions import DistanceKeys, Slopes
from tests.models.test_decoder import extend, logits, reach, small, tokens_of
from tests.models.test_encoder import randomized
from tests.models.test_kernels import HEADS, exactly, inputs

LEARNED = small().attention
SWIGLU = models.FeedForwardConfig(20, activation="silu", gated=True, bias=False)
RMS = models.NormConfig(kind="rms")
LLAMA_ATTENTION = models.AttentionConfig(4, 4, models.Rotary(theta=10.0), bias=False, kv_heads=2)
CHATGLM_POSITION = models.Rotary(theta=10.0, fraction=0.5, interleaved=True)
CHATGLM_ATTENTION = models.AttentionConfig(4, 4, CHATGLM_POSITION, kv_heads=2, out_bias=False)
THETAS = models.AttentionConfig(3, 4, models.Rotary(thetas=(50.0, 0.0, 3.0)), bias=False)
PARALLEL = models.NormConfig(placement="parallel", shared=True, bias=False)
MODELS = {
    "gpt2": small(),
    "gpt2_grouped": small(attention=replace(LEARNED, scale_by_inverse_depth=True, kv_heads=1)),
    "gpt2_shared_layers": small(stack=models.StackConfig(2, groups=1, inner=2)),
    "llama": small(attention=LLAMA_ATTENTION, feed_forward=SWIGLU, norm=RMS, tied=False),
    "chatglm": small(attention=CHATGLM_ATTENTION, feed_forward=SWIGLU, norm=RMS, tied=False),
    "gpt1": small(norm=models.NormConfig(placement="post")),
    "gpt3": small(attention=replace(LEARNED, windows=(0, 3))),
    "unnormed_first": small(
        layers=3, attention=THETAS, feed_forward=SWIGLU, norm=models.NormConfig(bias=False, first=False)
    ),
    "parallel": small(attention=CHATGLM_ATTENTION, norm=models.NormConfig(placement="parallel")),
    "parallel_shared": small(attention=replace(THETAS, qk_norm=True), norm=PARALLEL, scan_layers=False),
    "own_slopes": small(attention=replace(LEARNED, position=Slopes())),
    "own_distance_keys": small(attention=replace(LEARNED, position=DistanceKeys()), scan_layers=False),
}
# Each kind of positions, and layers that are shared.
placed = pytest.mark.parametrize(
    "family", ["gpt2_shared_layers", "llama", "chatglm", "gpt3", "unnormed_first", "own_slopes", "own_distance_keys"]
)


def test_positions_depend_on_nothing_after_them():
    """Windows are below; for all families, incremental decoding shows it."""
    tokens = jnp.arange(5, 13)[None]
    for query in range(8):
        assert reach(*randomized(MODELS["gpt2"]), tokens, query).tolist() == [key <= query for key in range(8)]


@placed
def test_padding_on_either_side_changes_nothing(family):
    module, params = randomized(MODELS[family])
    tokens = tokens_of(batch=1, length=5)
    alone = logits(module, params, tokens)
    for left, right in ((3, 0), (0, 3), (2, 1)):
        width = ((0, 0), (left, right))
        padded, mask = jnp.pad(tokens, width, constant_values=9), jnp.pad(jnp.ones_like(tokens), width)
        np.testing.assert_allclose(logits(module, params, padded, mask)[:, left : left + 5], alone, atol=1e-4)


@pytest.mark.parametrize("family", MODELS)
def test_incremental_decoding_equals_full_pass(family):
    module, params = randomized(MODELS[family])
    tokens = tokens_of()
    mask = jnp.ones_like(tokens).at[1, :3].set(0)
    positions = jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)
    variables, parts, start = {"params": params}, [], 0
    for size in (4, 1, 1, 1, 1):
        end = start + size
        filled, span = mask * (jnp.arange(8) < end), slice(start, end)
        outputs, cache = extend(module, variables, tokens[:, span], filled, positions[:, span], start)
        variables, start = {"params": params, **cache}, end
        parts.append(outputs)
    got, full = jnp.concatenate(parts, axis=1), logits(module, params, tokens, mask)
    np.testing.assert_allclose(got[mask == 1], full[mask == 1], atol=1e-4)


@placed
def test_shared_cache_equals_separate_caches(family):
    """Two texts share a beginning. Their tokens alternate in the slots, and each attends to its own."""
    module, params = randomized(MODELS[family])
    begin, branches = tokens_of(batch=1, length=4), tokens_of(1, batch=2, length=3)
    visible = np.zeros((1, 2, 10), int)
    visible[..., :4] = 1
    positions = jnp.array([0, 1, 2, 3, 4, 4, 5, 5, 6, 6])
    _, cache = extend(module, {"params": params}, begin, visible[:, 0], jnp.arange(4)[None], 0)
    decode = jax.jit(partial(module.apply, slot_positions=positions, mutable=["cache"]))
    parts = []
    for step in range(3):
        index = 4 + 2 * step
        visible[:, [0, 1], [index, index + 1]] = 1
        variables, at = {"params": params, **cache}, jnp.full((1, 2), 4 + step)
        outputs, cache = decode(variables, branches[None, :, step], jnp.array(visible), at, cache_index=index)
        parts.append(outputs[0])
    whole = logits(module, params, jnp.concatenate([jnp.repeat(begin, 2, axis=0), branches], axis=1))
    np.testing.assert_allclose(jnp.stack(parts, axis=1), whole[:, 4:], atol=1e-4)


@pytest.mark.parametrize(("windows", "scan"), [((0, 3), False), ((1, 2, 4), True)])
def test_stacked_windows_reach_product_of_bands(windows, scan):
    model = small(layers=3, attention=replace(LEARNED, windows=windows), scan_layers=scan)
    distance = np.arange(8)[:, None] - np.arange(8)
    want = np.eye(8)
    for layer in range(3):
        window = windows[layer % len(windows)] or 8
        want = ((distance >= 0) & (distance < window)) @ want
    tokens = jnp.arange(5, 13)[None]
    for query in (0, 4, 7):
        assert reach(*randomized(model), tokens, query).tolist() == (want[query] > 0).tolist()


@pytest.mark.parametrize(("kernel", "causal"), [("xla", True), ("xla", False), ("flash", True), ("flash", False)])
def test_window_equals_brute_force_band(kernel, causal):
    length, windows = 150, (0, 5, 140)
    arrays, distance = inputs(length, length, 2), np.arange(length)[:, None] - np.arange(length)
    context = Context(causal=causal, windows=windows).with_kernel(kernel, length, length)
    run = jax.jit(lambda depth, *qkv: attend(*qkv, context, depth))
    for depth in (0, 1, 2, 4):
        visible = (np.abs(distance) < (windows[depth % 3] or length)) & ((distance >= 0) | (not causal))
        want = exactly(*arrays, np.stack([visible] * 2))
        assert want.shape[1] == HEADS
        np.testing.assert_allclose(run(jnp.int32(depth), *arrays), want, atol=1e-5)


def test_flash_gradients_equal_plain_windows():
    """With recomputation of everything except products, the choice of a kernel must keep the saved values."""
    attention = models.AttentionConfig(2, 8, models.NoPositions(), windows=(0, 9))
    model = small(layers=3, attention=attention, remat="dots")
    params, tokens = randomized(model)[1], tokens_of(length=128)

    def gradient(kernel):
        module = registry.build(replace(model, attention_kernel=kernel))
        return jax.jit(jax.grad(lambda p: jnp.square(module.apply({"params": p}, tokens)).mean()))(params)

    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5), gradient("flash"), gradient("xla"))


@pytest.mark.parametrize(("bias", "out_bias", "has"), [(True, None, True), (True, False, False), (False, True, True)])
def test_output_projection_may_have_bias(bias, out_bias, has):
    shapes = registry.shapes(small(attention=replace(LEARNED, bias=bias, out_bias=out_bias)))
    flat = flax.traverse_util.flatten_dict(shapes, sep="/")
    biases = {name for name in ("query", "key", "value", "out") if f"stack/blocks/attention/{name}/bias" in flat}
    assert biases == ({"query", "key", "value"} if bias else set()) | ({"out"} if has else set())
