"""Tensors of Hugging Face as functions of parameters: round trips, and Falcon and GPT-NeoX of transformers."""

import functools
import itertools
from dataclasses import replace

import flax.traverse_util
import numpy as np
import pytest

from plm_jax import models
from plm_jax.hub import files, tensor_layout
from plm_jax.hub.family import Tensor, dense, kv_heads, norm
from plm_jax.models import registry

BLOCKS = "stack/blocks"
FUSED = [f"{BLOCKS}/attention/{name}" for name in ("query", "key", "value")]


def decoder(layers=2, width=10, heads=6, kv_heads=2, head_dim=4):
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(11, width),
        attention=models.AttentionConfig(heads, head_dim, models.Rotary(), kv_heads=kv_heads),
        feed_forward=models.FeedForwardConfig(7),
        stack=models.StackConfig(layers),
    )


def heads_of(model):
    return -1, model.attention.heads, model.attention.head_dim


def random_params(model, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return {path: rng.normal(size=shape).astype(dtype) for path, shape in tensor_layout.shapes_of(model).items()}


def read_back(layouts, stored):
    """Returns the parameters in stored tensors, stacked if they have layers."""
    flat = {}
    for name, layout in layouts.items():
        for piece, value in zip(layout.pieces, layout.split(stored[name]), strict=True):
            flat.setdefault(piece.path, {})[piece.index] = value
    return {
        path: np.stack([pieces[index] for index in sorted(pieces)]) if ... not in pieces else pieces[...]
        for path, pieces in flat.items()
    }


TENSORS = (
    Tensor("table", ("token_embedding",), shape=lambda model: (1, -1, 5, 2)),
    Tensor("norm", ("stack/final_norm/bias",), shape=lambda model: (1, 1, -1)),
    Tensor("{layer}.query", (FUSED[0] + "/kernel",), shape=heads_of),
    Tensor("{layer}.query_bias", (FUSED[0] + "/bias",), shape=lambda model: heads_of(model)[1:]),
    Tensor("{layer}.out", (f"{BLOCKS}/attention/out/kernel",), transposed=True, shape=heads_of),
    *dense("{layer}.key_value", *FUSED[1:], groups=kv_heads),
    Tensor("{layer}.conv", (f"{BLOCKS}/feed_forward/up/kernel",), transposed=True, shape=lambda model: (7, -1, 1)),
)
SIZES = [*itertools.product((1, 3), (10, 20), ((6, 2), (6, 1), (4, 4), (1, 1)), (2, 8)), (2, 30, (9, 3), 6)]


@pytest.mark.parametrize(("layers", "width", "heads", "head_dim"), SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_round_trips_are_bit_equal(layers, width, heads, head_dim, dtype):
    num_heads, num_kv_heads = heads
    model = decoder(layers, width, num_heads, num_kv_heads, head_dim)
    layouts = tensor_layout.layout((*TENSORS, *dense("{layer}.fused", *FUSED, groups=kv_heads)), model)
    params = random_params(model, dtype=dtype)
    stored = {name: layout.join(params) for name, layout in layouts.items()}
    for name, layout in layouts.items():
        assert stored[name].shape == layout.shape == layout.content(params).shape, name
        assert stored[name].dtype == dtype
    for path, value in read_back(layouts, stored).items():
        np.testing.assert_array_equal(value, params[path], err_msg=path)


def test_tensors_have_the_documented_order():
    model = decoder(layers=1)
    params, layouts = random_params(model), tensor_layout.layout(TENSORS, model)
    query, key, value, out = (
        params[f"{BLOCKS}/attention/{name}/kernel"][0] for name in ("query", "key", "value", "out")
    )
    stored = {name: layout.join(params) for name, layout in layouts.items()}
    assert stored["0.query"].shape == stored["0.out"].shape == (10, 6, 4)
    for head in range(6):
        columns = slice(4 * head, 4 * head + 4)
        np.testing.assert_array_equal(stored["0.query"][:, head], query[:, columns])
        np.testing.assert_array_equal(stored["0.out"][:, head], out[columns].T)
    for group in range(2):
        rows = stored["0.key_value.weight"].reshape(2, 2, 4, 10)[group]
        np.testing.assert_array_equal(rows, np.stack([part[:, 4 * group : 4 * group + 4].T for part in (key, value)]))


def stored_and_read(values, plus=-1.0):
    """Returns float32 values as they are stored with a constant added, and as they are read again."""
    model = decoder(width=len(values))
    (layout,) = tensor_layout.layout([Tensor("norm", ("stack/final_norm/scale",), plus=plus)], model).values()
    stored = layout.join({"stack/final_norm/scale": values})
    return layout, stored, layout.split(stored)[0]


def test_added_constant_is_exact_where_documented():
    rng = np.random.default_rng(0)
    exact = np.exp2(rng.uniform(-1, 24, 20_000)).astype(np.float32)
    _, stored, read = stored_and_read(exact)
    np.testing.assert_array_equal(read, exact)
    np.testing.assert_array_equal(stored, exact.astype(np.float64) - 1)
    signs = rng.choice([-1, 1], 20_000)
    values = np.concatenate([signs * np.exp2(rng.uniform(-40, 24, 20_000)), [0.0, 1.0, -1.0, 0.1]]).astype(np.float32)
    layout, stored, read = stored_and_read(values)
    assert (read != values).any()
    np.testing.assert_array_equal(layout.join({"stack/final_norm/scale": read}), stored)


@pytest.mark.parametrize("code", ["F16", "BF16", "F32", "F64"])
def test_added_constant_does_not_round_small_types(code):
    layout, _, _ = stored_and_read(np.ones(6, np.float32))
    stored = np.array([0.001, -0.01, 0.1, 0.0, 1.5, -1.0]).astype(files.FLOATS[code])
    (read,) = layout.split(stored)
    assert read.dtype == (np.float64 if code == "F64" else np.float32)
    assert read.dtype == layout.parameter_type(stored.dtype)
    np.testing.assert_allclose(read, 1 + stored.astype(np.float64), atol=1e-7)


def test_parameters_are_read_one_tensor_at_a_time(tmp_path, monkeypatch):
    model = decoder(layers=3)
    tensors = (
        *TENSORS,
        Tensor("{layer}.norm", (f"{BLOCKS}/attention_norm/scale",), plus=-1.0),
    )
    layouts, params = tensor_layout.layout(tensors, model), random_params(model)
    params[f"{BLOCKS}/attention_norm/scale"] = np.linspace(0.5, 9, 30, dtype=np.float32).reshape(3, 10)
    files.write(tmp_path, {name: layout.content(params) for name, layout in layouts.items()})
    with files.opened(str(tmp_path)) as stored:
        read = []

        def recorded(name, original, *part):
            read.append(name)
            return original(*part)

        flat = {path: tensor_layout.Parameter(shape) for path, shape in tensor_layout.shapes_of(model).items()}
        for name, layout in layouts.items():
            reader = stored[name]
            monkeypatch.setattr(reader, "_read", functools.partial(recorded, name, reader._read))
            for number, piece in enumerate(layout.pieces):
                flat[piece.path].add(reader, layout, number)
        assert not read
        path = f"{BLOCKS}/attention_norm/scale"
        np.testing.assert_array_equal(flat[path][1], params[path][1])
        assert read == ["1.norm"]
        np.testing.assert_array_equal(flat[path], params[path])
        np.testing.assert_array_equal(list(flat[FUSED[2] + "/kernel"].parts()), params[FUSED[2] + "/kernel"])


def logits_of(theirs, tensors, model, tokens):
    """Returns the logits of our model with the tensors of a model of transformers, which it has to use up."""
    stored = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    layouts = tensor_layout.layout(tensors, model)
    assert {name: layout.shape for name, layout in layouts.items()} == {name: stored[name].shape for name in stored}
    flat = read_back(layouts, stored)
    assert flat.keys() == tensor_layout.shapes_of(model).keys()
    for name, layout in layouts.items():
        np.testing.assert_array_equal(layout.join(flat), stored[name], err_msg=name)
    return registry.build(model).apply({"params": flax.traverse_util.unflatten_dict(flat, sep="/")}, tokens)


def assert_same_logits(theirs, tensors, model, seed):
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    tokens = np.random.default_rng(seed).integers(0, 11, (3, 9))
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(logits_of(theirs, tensors, model, tokens), expected, atol=1e-4)


def feed_forward(layer):
    return (
        *dense(f"{layer}.mlp.dense_h_to_4h", f"{BLOCKS}/feed_forward/up"),
        *dense(f"{layer}.mlp.dense_4h_to_h", f"{BLOCKS}/feed_forward/down"),
    )


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("heads", "kv_heads_"), [(6, 2), (6, 1), (4, 4), (6, 3)])
def test_groups_of_falcon(heads, kv_heads_, seed):
    """Each key and value head of the fused projection follows its queries."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 11, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": heads}
    described = transformers.FalconConfig(
        **sizes, num_kv_heads=kv_heads_, new_decoder_architecture=True, bias=True, ffn_hidden_size=7
    )
    layer = "transformer.h.{layer}"
    tensors = (
        Tensor("transformer.word_embeddings.weight", ("token_embedding",)),
        *norm(f"{layer}.ln_attn", f"{BLOCKS}/attention_norm"),
        *norm(f"{layer}.ln_mlp", f"{BLOCKS}/feed_forward_norm"),
        *dense(f"{layer}.self_attention.query_key_value", *FUSED, groups=kv_heads),
        *dense(f"{layer}.self_attention.dense", f"{BLOCKS}/attention/out"),
        *feed_forward(layer),
        *norm("transformer.ln_f", "stack/final_norm"),
    )
    model = decoder(width=24, heads=heads, kv_heads=kv_heads_, head_dim=24 // heads)
    model = replace(
        model,
        norm=models.NormConfig(placement="parallel"),
        feed_forward=models.FeedForwardConfig(7, "gelu_exact"),
    )
    assert_same_logits(transformers.FalconForCausalLM(described), tensors, model, seed)


@pytest.mark.parametrize("seed", [0, 1])
def test_heads_of_gpt_neox(seed):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 11, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    described = transformers.GPTNeoXConfig(**sizes, intermediate_size=7, tie_word_embeddings=False)
    layer = "gpt_neox.layers.{layer}"
    tensors = (
        Tensor("gpt_neox.embed_in.weight", ("token_embedding",)),
        *norm(f"{layer}.input_layernorm", f"{BLOCKS}/attention_norm"),
        *norm(f"{layer}.post_attention_layernorm", f"{BLOCKS}/feed_forward_norm"),
        *dense(f"{layer}.attention.query_key_value", *FUSED, groups=kv_heads),
        *dense(f"{layer}.attention.dense", f"{BLOCKS}/attention/out"),
        *feed_forward(layer),
        *norm("gpt_neox.final_layer_norm", "stack/final_norm"),
        Tensor("lm_head.weight", ("head",)),
    )
    model = decoder(width=24, heads=3, kv_heads=3, head_dim=8)
    model = replace(
        model,
        attention=replace(model.attention, position=models.Rotary(fraction=0.25)),
        norm=models.NormConfig(placement="parallel"),
        feed_forward=models.FeedForwardConfig(7, "gelu_exact"),
        head=models.VocabularyHead(tied=False),
    )
    assert_same_logits(transformers.GPTNeoXForCausalLM(described), tensors, model, seed)
