"""T5, BART and the original Transformer: cache, positions and norms of each stack, sinusoids, a NumPy reference."""

import math
from dataclasses import replace
from functools import partial

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config, models
from plm_jax.common.errors import UserError
from plm_jax.models import registry
from plm_jax.models.positions.sinusoidal import sinusoids
from tests.models.test_encoder import apply, randomized, small_encoder_decoder, tokens_of

VOCAB, WIDTH, HEADS = 31, 12, 3
TRANSFORMER = models.EncoderDecoderConfig(
    embedding=models.EmbeddingConfig(VOCAB, WIDTH, scale_by_width=True),
    attention=models.AttentionConfig(HEADS, 4, models.SinusoidalPositions(), bias=False),
    feed_forward=models.FeedForwardConfig(20, "relu"),
    norm=models.NormConfig(1e-6, placement="post"),
    stack=models.StackConfig(1),
    decoder_stack=models.StackConfig(2),
)
BART = replace(
    TRANSFORMER,
    embedding=models.EmbeddingConfig(VOCAB, WIDTH, norm=True),
    attention=models.AttentionConfig(HEADS, 4, models.LearnedPositions(10, offset=2)),
    feed_forward=models.FeedForwardConfig(20, "gelu_exact"),
)
UNEVEN = replace(TRANSFORMER, decoder_heads=2, decoder_head_dim=5, decoder_feed_forward=28)
MODELS = {"transformer": TRANSFORMER, "bart": BART, "uneven": UNEVEN}


@pytest.mark.parametrize("width", [512, 12, 7])
def test_sinusoids_equal_formula(width):
    """Vaswani et al. 2017 §3.5."""
    positions = np.array([[0, 1, 2, 3, 99, 1023]])
    got = np.asarray(sinusoids(jnp.asarray(positions), width))
    assert got.shape == (1, 6, width) and got.dtype == np.float32
    for row, position in zip(got[0], positions[0].tolist(), strict=True):
        for i in range(width):
            angle = position / 10_000 ** (2 * (i // 2) / width)
            assert abs(row[i] - (math.cos(angle) if i % 2 else math.sin(angle))) < 2e-4


def norm(x, scale, bias):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * scale + bias


def attention(x, source, visible, kernels, heads):
    """Reference attention, head by head."""
    out = np.zeros((*x.shape[:2], 0))
    head_dim = kernels["query"]["kernel"].shape[1] // heads
    for head in range(heads):
        columns = slice(head_dim * head, head_dim * (head + 1))
        query, key, value = (
            inputs @ kernels[name]["kernel"][:, columns]
            for name, inputs in (("query", x), ("key", source), ("value", source))
        )
        scores = np.where(visible, query @ key.swapaxes(1, 2) / math.sqrt(head_dim), -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.concatenate([out, weights / weights.sum(-1, keepdims=True) @ value], -1)
    return out @ kernels["out"]["kernel"]


def reference(params, tokens, decoder_tokens, mask, decoder_heads):
    """Reference features of the decoder in float64, LayerNorm(x + Sublayer(x)) for each sub-layer."""

    def embed(tokens):
        angles = np.arange(tokens.shape[1])[:, None] / 10_000 ** (np.arange(0, WIDTH, 2) / WIDTH)
        positions = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(-1, WIDTH)
        return params["token_embedding"][tokens] * math.sqrt(WIDTH) + positions

    def stack(x, blocks, layers, visible, heads, memory=None):
        for layer in range(layers):
            block = jax.tree.map(lambda leaf: leaf[layer], blocks)  # noqa: B023
            x = norm(x + attention(x, x, visible, block["attention"], heads), **block["attention_norm"])
            if memory is not None:
                crossed = attention(x, memory, mask[:, None, :] == 1, block["cross_attention"], heads)
                x = norm(x + crossed, **block["cross_attention_norm"])
            up, down = block["feed_forward"]["up"], block["feed_forward"]["down"]
            hidden = np.maximum(x @ up["kernel"] + up["bias"], 0) @ down["kernel"] + down["bias"]
            x = norm(x + hidden, **block["feed_forward_norm"])
        return x

    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    memory = stack(embed(tokens), params["encoder"]["blocks"], 1, mask[:, None, :] == 1, HEADS)
    length = decoder_tokens.shape[1]
    return stack(embed(decoder_tokens), params["decoder"]["blocks"], 2, np.tri(length) == 1, decoder_heads, memory)


@pytest.mark.parametrize(("model", "decoder_heads"), [(TRANSFORMER, HEADS), (UNEVEN, 2)])
def test_transformer_equals_paper(model, decoder_heads):
    """Also for a decoder with other heads and another feed-forward."""
    module, params = randomized(model)
    tokens, decoder_tokens = np.asarray(tokens_of()), np.asarray(tokens_of(1, length=6))
    mask = np.array([[1] * 8, [1] * 5 + [0] * 3])
    want = reference(params, tokens, decoder_tokens, mask, decoder_heads)
    got = apply(module, params, tokens, decoder_tokens, mask, method="features")
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_transformer_has_only_parameters_of_paper():
    shapes = registry.shapes(TRANSFORMER)
    assert set(shapes) == {"token_embedding", "encoder", "decoder"}
    assert set(shapes["encoder"]) == {"blocks"}
    assert set(shapes["decoder"]["blocks"]["attention"]["query"]) == {"kernel"}


def test_decoder_sizes_change_shapes_not_paths():
    even, uneven = (flax.traverse_util.flatten_dict(registry.shapes(m), sep="/") for m in (TRANSFORMER, UNEVEN))
    assert even.keys() == uneven.keys()
    changed = {path: uneven[path].shape for path in even if uneven[path].shape != even[path].shape}
    attention = {"query": (2, 12, 10), "key": (2, 12, 10), "value": (2, 12, 10), "out": (2, 10, 12)}
    assert changed == {
        **{
            f"decoder/blocks/{name}/{kernel}/kernel": shape
            for name in ("attention", "cross_attention")
            for kernel, shape in attention.items()
        },
        "decoder/blocks/feed_forward/up/kernel": (2, 12, 28),
        "decoder/blocks/feed_forward/up/bias": (2, 28),
        "decoder/blocks/feed_forward/down/kernel": (2, 28, 12),
    }
    with pytest.raises(UserError, match="kv_heads is 3: set it to a divisor of the 2 heads"):
        replace(UNEVEN, attention=replace(UNEVEN.attention, kv_heads=3))
    tree = config.to_config_dict(UNEVEN)
    assert config.model_from_saved(tree.to_dict(), "model") == UNEVEN


def test_stacks_have_separate_positions_and_norms():
    module, params = randomized(BART)
    tokens, decoder_tokens = tokens_of(), tokens_of(1, length=6)
    shapes = {name: params[name].shape for name in params if "position" in name}
    assert shapes == dict.fromkeys(("encoder_position_embedding", "decoder_position_embedding"), (12, WIDTH))
    memory = apply(module, params, tokens, method="encode")

    def heeds(name, change):
        """Whether the encoder's and the decoder's output change with a parameter."""
        changed = params | {name: jax.tree.map(change, params[name])}
        encoded = apply(module, changed, tokens, method="encode")
        decoded = apply(module, changed, decoder_tokens, memory, method="decode")
        return not np.allclose(encoded, memory), not np.allclose(decoded, features)

    features = apply(module, params, decoder_tokens, memory, method="decode")
    # Position p has row p + 2; eight tokens are encoded, six decoded.
    for row, encodes, decodes in ((0, False, False), (1, False, False), (2, True, True), (7, True, True)):
        for name, expected in (("encoder", (encodes, False)), ("decoder", (False, decodes))):
            moved = np.zeros((12, WIDTH), np.float32)
            moved[row, 0] = 5
            assert heeds(f"{name}_position_embedding", lambda table: table + moved) == expected, (name, row)  # noqa: B023
    assert heeds("encoder_embedding_norm", lambda leaf: leaf + np.arange(WIDTH)) == (True, False)
    assert heeds("decoder_embedding_norm", lambda leaf: leaf + np.arange(WIDTH)) == (False, True)


@partial(jax.jit, static_argnames="module")
def extend(module, variables, tokens, memory, mask, filled, positions, cache_index):
    return module.apply(
        variables, tokens, memory, mask, filled, positions, cache_index=cache_index, mutable=["cache"], method="decode"
    )


@pytest.mark.parametrize("model", [small_encoder_decoder(), *MODELS.values()], ids=["t5", *MODELS])
def test_incremental_decoding_equals_full_pass(model):
    module, params = randomized(model)
    tokens, decoder_tokens = tokens_of(), tokens_of(1, length=6)
    mask = jnp.ones_like(tokens).at[0, 6:].set(0).at[1, :2].set(0)
    decoder_mask = jnp.ones_like(decoder_tokens).at[1, :2].set(0)
    positions = jnp.maximum(jnp.cumsum(decoder_mask, axis=1) - 1, 0)
    memory = apply(module, params, tokens, mask, method="encode")
    full = apply(module, params, decoder_tokens, memory, mask, decoder_mask, method="decode")
    variables, parts, start = {"params": params}, [], 0
    for size in (2, 2, 1, 1):
        span, filled = slice(start, start + size), decoder_mask * (jnp.arange(6) < start + size)
        out, cache = extend(module, variables, decoder_tokens[:, span], memory, mask, filled, positions[:, span], start)
        variables, memory, start = {"params": params, **cache}, None, start + size
        parts.append(out)
    got = jnp.concatenate(parts, axis=1)
    np.testing.assert_allclose(got[decoder_mask == 1], full[decoder_mask == 1], atol=1e-4)


def test_parallel_blocks_are_rejected():
    """They would have no attention to the memory."""
    with pytest.raises(UserError, match="'parallel' does not support cross-attention"):
        replace(small_encoder_decoder(), norm=models.NormConfig(placement="parallel"))
