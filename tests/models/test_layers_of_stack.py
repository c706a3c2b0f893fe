"""Ranges of layers, orders of prediction, norms and rotations by layer, against NumPy and dense masks."""

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import models
from plm_jax.models import registry
from plm_jax.models.kernels import Context, choose
from plm_jax.models.positions import Position
from tests.models.test_encoder import apply, randomized, small_encoder, tokens_of
from tests.support.random_models import random_params

LAYERS = 3
PRE = models.NormConfig()
ROTARY = models.Rotary(thetas=(50.0, 0.0, 3.0))


def small(norm=PRE, position=ROTARY, windows=(), **fields):
    attention = models.AttentionConfig(heads=3, head_dim=4, position=position, windows=windows)
    return small_encoder(
        norm=norm, attention=attention, stack=models.StackConfig(LAYERS), pooler=models.NoHead(), **fields
    )


def pad(batch=2, length=8):
    return jnp.ones((batch, length), jnp.int32).at[1, 5:].set(0)


@partial(jax.jit, static_argnames=("module", "ends"))
def through_ranges(module, params, tokens, mask, ends):
    """Returns the features of a module computed range by range of layers."""

    def run(module):
        positions = jnp.arange(tokens.shape[1])[None]
        x, context = module.embed(tokens, positions, deterministic=True), Context(mask=mask, positions=positions)
        for first, last in zip((0, *ends), ends, strict=False):
            x = module.stack.layers(x, context, first, last, deterministic=True)
        return module.stack.finish(x, deterministic=True)

    return module.apply({"params": params}, method=run)


MODELS = {
    "post": small(models.NormConfig(placement="post")),
    "first": small(models.NormConfig(first=False), windows=(0, 3), remat="dots"),
    "parallel": small(models.NormConfig(placement="parallel"), position=models.RelativeBias(8, 20), windows=(2, 0, 4)),
    "unrolled": small(models.NormConfig(first=False), windows=(2, 0, 4), scan_layers=False),
}


@pytest.mark.parametrize(
    ("name", "ends"), [*((name, (1, 1, 3)) for name in MODELS), *((name, (2, 3)) for name in ("first", "unrolled"))]
)
def test_ranges_of_layers_equal_the_stack(name, ends):
    module, params = randomized(MODELS[name])
    tokens, mask = tokens_of(), pad()
    expected = apply(module, params, tokens, mask, method="features")
    np.testing.assert_allclose(through_ranges(module, params, tokens, mask, ends), expected, atol=1e-5)
    # Each layer counts, and windows and rotations are those of its number.
    other = through_ranges(module, params, tokens, mask, (0, 2))
    assert np.abs(other - expected).max() > 1e-2


def test_ranges_of_layers_have_the_gradients_of_the_stack():
    module, params = randomized(MODELS["first"])
    tokens, mask = tokens_of(), pad()

    def gradients(features):
        return jax.jit(jax.grad(lambda params: jnp.sin(features(params)).sum()))(params)

    expected = gradients(lambda params: module.apply({"params": params}, tokens, mask, method="features"))
    got = gradients(lambda params: through_ranges(module, params, tokens, mask, (1, 3)))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), got, expected)


def test_layers_that_share_parameters_have_no_ranges():
    module, params = randomized(small_encoder(stack=models.StackConfig(2, groups=1)))
    with pytest.raises(ValueError, match="share parameters"):
        through_ranges(module, params, tokens_of(), pad(), (1, 2))


@pytest.mark.parametrize("name", ["post", "first", "unrolled"])
def test_queries_of_another_sequence_attend_to_the_source(name):
    """Queries at some positions of the source, in another order, equal those of the whole sequence."""
    module, params = randomized(MODELS[name])
    if MODELS[name].attention.windows:
        module = registry.build(replace(MODELS[name], attention=replace(MODELS[name].attention, windows=())))
    source = jax.random.normal(jax.random.key(1), (2, 8, 12))
    chosen, positions = jnp.array([[6, 1, 3], [0, 4, 2]]), jnp.arange(8)[None]

    def run(module):
        whole = module.stack.layers(source, Context(mask=pad(), positions=positions), 1, 2, deterministic=True)
        context = Context(mask=pad(), positions=chosen, source_positions=positions)
        queries = jnp.take_along_axis(source, chosen[..., None], axis=1)
        return whole, module.stack.layers(queries, context, 1, 2, source=source, deterministic=True)

    whole, got = jax.jit(partial(module.apply, method=run))({"params": params})
    np.testing.assert_allclose(got, jnp.take_along_axis(whole, chosen[..., None], axis=1), atol=1e-5)


def test_order_equals_a_dense_mask():
    module, params = randomized(MODELS["post"])
    rng, x = np.random.default_rng(0), jax.random.normal(jax.random.key(0), (2, 8, 12))
    of_keys = np.stack([rng.permutation(8) for _ in range(2)])
    of_queries = of_keys + rng.integers(0, 2, (2, 8)) + 1
    mask, positions = np.asarray(pad()), jnp.arange(8)[None]
    dense = (of_queries[:, :, None] > of_keys[:, None, :]) & (mask[:, None] > 0)

    def run(module, **fields):
        return module.stack(x, Context(positions=positions, **fields), deterministic=True)

    order = jnp.array(of_queries), jnp.array(of_keys)
    got = module.apply({"params": params}, method=run, mask=pad(), order=order)
    expected = module.apply({"params": params}, method=run, mask=jnp.array(dense))
    sees_any = dense.any(-1)
    np.testing.assert_allclose(np.asarray(got)[sees_any], np.asarray(expected)[sees_any], atol=1e-5)
    assert np.isfinite(got).all()
    everything = module.apply({"params": params}, method=run, mask=pad())
    assert np.abs(got - everything).max() > 1e-3


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_no_flash_kernel_takes_a_mask_for_each_query(platform):
    sizes = {"dtype": jnp.dtype(jnp.bfloat16), "head_dim": 64, "queries": 512, "keys": 512}
    kernel, reason = choose("flash", platform, **sizes, dense=True, by_query=True)
    assert kernel != "flash" and "a mask for each query" in reason
    assert choose("flash", platform, **sizes) == ("flash", "")


@dataclass(frozen=True)
class Dropped(Position):
    """Records the dropout of vectors in each layer."""

    kind: ClassVar[str] = "dropped"
    uses_absolute_positions = False
    drawn: ClassVar[list] = []

    def layer_bias(self, layer, query, key):
        self.drawn.append(layer.drop(jnp.ones((200, 50))))


def test_layers_drop_vectors_independently():
    rates = models.DropoutConfig(residual=0.25)
    module, params = randomized(small(position=Dropped(), dropout=rates, scan_layers=False))
    Dropped.drawn.clear()  # Of the shapes of the parameters.
    module.apply({"params": params}, tokens_of(), method="features")
    assert len(Dropped.drawn) == LAYERS and all((x == 1).all() for x in Dropped.drawn)
    Dropped.drawn.clear()
    rngs = {"dropout": jax.random.key(0)}
    module.apply({"params": params}, tokens_of(), method="features", deterministic=False, rngs=rngs)
    for x in Dropped.drawn:
        assert set(np.unique(x)) == {0.0, np.float32(4 / 3)} and abs((x == 0).mean() - 0.25) < 0.02
    assert (Dropped.drawn[0] != Dropped.drawn[1]).any() and (Dropped.drawn[1] != Dropped.drawn[2]).any()


def rotated(x, theta):
    """Rotates x [B, N, L, H] by its positions; theta 0 leaves it unchanged."""
    if not theta:
        return x
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[2])[:, None] * theta ** (-np.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class Reference:
    """An encoder in NumPy, from the definitions of its norms, blocks and rotations."""

    def __init__(self, model, params):
        self.model, self.params = model, jax.tree.map(np.asarray, params)

    def norm(self, x, params):
        config = self.model.norm
        x = x - x.mean(-1, keepdims=True) if config.kind == "layer" else x
        x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + config.epsilon)
        return x * params.get("scale", 1.0) + params.get("bias", 0.0)

    def attention(self, x, params, theta):
        heads = self.model.attention.heads

        def project(name):
            projected = x @ params[name]["kernel"] + params[name]["bias"]
            return projected.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

        query, key, value = map(project, ("query", "key", "value"))
        if self.model.attention.qk_norm:
            query, key = self.norm(query, params["query_norm"]), self.norm(key, params["key_norm"])
        query, key = rotated(query, theta), rotated(key, theta)
        scores = query @ key.swapaxes(2, 3) / np.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ value
        return mixed.swapaxes(1, 2).reshape(x.shape) @ params["out"]["kernel"] + params["out"]["bias"]

    def feed_forward(self, x, params):
        hidden = np.maximum(x @ params["up"]["kernel"] + params["up"]["bias"], 0)
        return hidden @ params["down"]["kernel"] + params["down"]["bias"]

    def features(self, tokens):
        config, thetas = self.model.norm, self.model.attention.position.thetas
        x = self.norm(self.params["token_embedding"][tokens], self.params.get("embedding_norm", {}))
        blocks = dict(self.params["stack"]["blocks"])
        later = blocks.pop(f"1:{LAYERS}", {})
        for layer in range(LAYERS):
            params = jax.tree.map(lambda leaf, layer=layer: leaf[layer], blocks)
            params |= jax.tree.map(lambda leaf, layer=layer: leaf[layer - 1], later) if layer else {}
            inner = x if layer == 0 and not config.first else self.norm(x, params.get("attention_norm", {}))
            attended = self.attention(inner, params["attention"], thetas[layer % len(thetas)])
            if config.placement == "pre":
                x = x + attended
                x = x + self.feed_forward(self.norm(x, params.get("feed_forward_norm", {})), params["feed_forward"])
            else:
                hidden = inner if config.shared else self.norm(x, params.get("feed_forward_norm", {}))
                x = x + attended + self.feed_forward(hidden, params["feed_forward"])
        return self.norm(x, self.params["stack"].get("final_norm", {}))


NORMS = {
    "plain": {},
    "without_bias": {"bias": False},
    "without_scale": {"scale": False},
    "bare": {"scale": False, "bias": False},
    "rms": {"kind": "rms"},
    "rms_bare": {"kind": "rms", "scale": False},
    "first": {"first": False},
    "first_without_bias": {"first": False, "bias": False},
    "first_bare": {"first": False, "bias": False, "scale": False},
    "parallel": {"placement": "parallel"},
    "parallel_rms": {"placement": "parallel", "kind": "rms"},
    "parallel_shared": {"placement": "parallel", "shared": True, "bias": False},
}


@cache
def of_norm(name, scan, qk_norm=False):
    model = small(models.NormConfig(0.1, **NORMS[name]), scan_layers=scan)
    return replace(
        model,
        attention=replace(model.attention, qk_norm=qk_norm),
        embedding=replace(model.embedding, token_types=0),
        feed_forward=models.FeedForwardConfig(20, "relu"),
    )


@pytest.mark.parametrize(
    ("name", "scan"),
    [*((name, True) for name in NORMS), ("plain", False), ("first_without_bias", False), ("parallel_shared", False)],
)
def test_norms_blocks_and_rotations_equal_numpy(name, scan):
    model = of_norm(name, scan, qk_norm=name in ("plain", "rms", "without_bias"))
    params = random_params(model, seed=0, scale=0.3)
    got = apply(registry.build(model), params, tokens_of(), method="features")
    np.testing.assert_allclose(got, Reference(model, params).features(np.asarray(tokens_of())), atol=2e-5)


def test_norms_have_the_parameters_of_their_settings():
    def norms(name, qk_norm=False):
        leaves = jax.tree_util.tree_leaves_with_path(registry.shapes(of_norm(name, True, qk_norm))["stack"])
        shapes = {"/".join(key.key for key in path): leaf.shape for path, leaf in leaves}
        return {path.removeprefix("blocks/"): shape for path, shape in shapes.items() if "norm" in path}

    assert norms("bare") == norms("first_bare") == norms("rms_bare") == {}
    assert norms("first_without_bias") == {
        "1:3/attention_norm/scale": (2, 12),
        "feed_forward_norm/scale": (3, 12),
        "final_norm/scale": (12,),
    }
    assert norms("parallel_shared", qk_norm=True) == {
        "attention/key_norm/scale": (3, 4),
        "attention/query_norm/scale": (3, 4),
        "attention_norm/scale": (3, 12),
        "final_norm/scale": (12,),
    }


def test_queries_and_keys_are_normalized_as_in_qwen3():
    """A Qwen3 of transformers, with norms over each head, and its weights mapped by hand."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    described = transformers.Qwen3Config(
        vocab_size=31,
        hidden_size=12,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        rms_norm_eps=0.01,
        attn_implementation="eager",
    )
    theirs = transformers.Qwen3ForCausalLM(described).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    weights = {name.removeprefix("model."): tensor.detach().numpy() for name, tensor in theirs.named_parameters()}

    def stacked(name):
        return np.stack([weights[f"layers.{layer}.{name}.weight"].T for layer in range(2)])

    projections = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
    attention = {ours: {"kernel": stacked(f"self_attn.{name}")} for ours, name in projections.items()}
    attention |= {
        f"{ours}_norm": {"scale": stacked(f"self_attn.{name}_norm")} for ours, name in (("query", "q"), ("key", "k"))
    }
    blocks = {
        "attention": attention,
        "attention_norm": {"scale": stacked("input_layernorm")},
        "feed_forward": {name: {"kernel": stacked(f"mlp.{name}_proj")} for name in ("gate", "up", "down")},
        "feed_forward_norm": {"scale": stacked("post_attention_layernorm")},
    }
    stack = {"blocks": blocks, "final_norm": {"scale": weights["norm.weight"]}}
    params = {"token_embedding": weights["embed_tokens.weight"], "stack": stack, "head": weights["lm_head.weight"]}
    model = models.DecoderConfig(
        embedding=models.EmbeddingConfig(31, 12),
        attention=models.AttentionConfig(4, 6, models.Rotary(), bias=False, kv_heads=2, qk_norm=True),
        feed_forward=models.FeedForwardConfig(20, "silu", bias=False, gated=True),
        stack=models.StackConfig(2),
        norm=models.NormConfig(0.01, "rms"),
        head=models.VocabularyHead(tied=False),
    )
    tokens = np.random.default_rng(0).integers(0, 31, (2, 9))
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(registry.build(model).apply({"params": params}, tokens), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "fields", "first", "message"),
    [
        ("post", {}, 0, "a source of another length needs Context.source_positions"),
        ("first", {"source_positions": jnp.arange(8)[None]}, 0, "need a source with the positions of x"),
        ("parallel", {"source_positions": jnp.arange(8)[None]}, 0, "need a source with the positions of x"),
        ("first", {"positions": None}, 0, "positions of kind 'rotary' need Context.positions"),
        ("post", {}, 4, "there are no blocks from 4 up to 3: the stack has 3"),
    ],
)
def test_unsupported_sources_and_ranges_are_rejected(name, fields, first, message):
    module, params = randomized(MODELS[name])
    tokens = tokens_of()

    def run(module):
        positions = jnp.arange(tokens.shape[1])[None]
        source = module.embed(tokens, positions, deterministic=True)
        context = Context(positions=positions[:, :2]).replace(**fields)
        return module.stack.layers(source[:, :2], context, first, 3, source, deterministic=True)

    with pytest.raises(ValueError, match=message):
        module.apply({"params": params}, method=run)
