"""GLM and ChatGLM-6B under their original tensor names, against the NumPy reference of tests/models/test_glm.py."""

import json

import jax
import numpy as np
import pytest
import safetensors.numpy

import plm_jax
from plm_jax import models
from plm_jax.hub import huggingface
from plm_jax.hub.glm import ChatGlm6BFamily, GlmOriginalFamily
from plm_jax.models import registry
from tests.models.test_glm import reference

VOCAB, WIDTH, HEADS, LAYERS = 37, 12, 3, 2
HEAD_DIM = WIDTH // HEADS
MASK, GMASK, SOP, EOP = 30, 31, 32, 33
CONFIGS = {
    "glm": {
        "model_type": "glm",
        "architectures": ["GLMForConditionalGeneration"],
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "num_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_sequence_length": 16,
        "block_position_encoding": True,
        "relative_encoding": False,
        **{"mask_token_id": MASK, "gmask_token_id": GMASK, "sop_token_id": SOP, "eop_token_id": EOP},
    },
    "chatglm": {
        "model_type": "chatglm",
        "architectures": ["ChatGLMModel"],
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "inner_hidden_size": 20,
        "num_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_sequence_length": 16,
        "position_encoding_2d": True,
        **{"mask_token_id": MASK, "gmask_token_id": GMASK, "bos_token_id": SOP, "eos_token_id": EOP, "pad_token_id": 3},
    },
}
families = pytest.mark.parametrize("family", CONFIGS)


def tensors_of(family, seed=0):
    """Returns random tensors with the names and shapes of the original files."""
    inner = 4 * WIDTH if family == "glm" else CONFIGS[family]["inner_hidden_size"]
    prefix = "glm." if family == "glm" else ""
    shapes = {f"{prefix}transformer.final_layernorm": [WIDTH]}
    for layer in range(LAYERS):
        shapes |= {
            f"{prefix}transformer.layers.{layer}.{name}": shape
            for name, shape in {
                "input_layernorm": [WIDTH],
                "attention.query_key_value": [3 * WIDTH, WIDTH],
                "attention.dense": [WIDTH, WIDTH],
                "post_attention_layernorm": [WIDTH],
                "mlp.dense_h_to_4h": [inner, WIDTH],
                "mlp.dense_4h_to_h": [WIDTH, inner],
            }.items()
        }
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32) * 0.4  # noqa: E731
    tensors = {f"{name}.weight": draw(*shape) for name, shape in shapes.items()}
    tensors |= {f"{name}.bias": draw(shape[0]) for name, shape in shapes.items()}
    if family == "glm":
        tables = {"glm.transformer.position_embeddings": 17, "glm.transformer.block_position_embeddings": 17}
        tensors |= {f"{name}.weight": draw(rows, WIDTH) for name, rows in tables.items()}
        return tensors | {"glm.word_embeddings.weight": draw(VOCAB, WIDTH)}
    table = draw(VOCAB, WIDTH)
    return tensors | {"transformer.word_embeddings.weight": table, "lm_head.weight": table.copy()}


def our_params(family, tensors):
    """Reference for the meaning of the tensors, computed head by head like the original code."""
    prefix = "glm." if family == "glm" else ""

    def dense(name, rows=slice(None)):
        return {"kernel": tensors[f"{name}.weight"][rows].T, "bias": tensors[f"{name}.bias"][rows]}

    def norm(name):
        return {"scale": tensors[f"{name}.weight"], "bias": tensors[f"{name}.bias"]}

    def rows_of(index):
        if family == "glm":  # Queries, then keys, then values.
            return np.arange(index * WIDTH, (index + 1) * WIDTH)
        # Query, key and value of each head in turn.
        return np.concatenate([(3 * head + index) * HEAD_DIM + np.arange(HEAD_DIM) for head in range(HEADS)])

    blocks = []
    for layer in range(LAYERS):
        name = f"{prefix}transformer.layers.{layer}"
        fused = f"{name}.attention.query_key_value"
        attention = {name: dense(fused, rows_of(i)) for i, name in enumerate(("query", "key", "value"))}
        blocks.append(
            {
                "attention_norm": norm(f"{name}.input_layernorm"),
                "attention": attention | {"out": dense(f"{name}.attention.dense")},
                "feed_forward_norm": norm(f"{name}.post_attention_layernorm"),
                "feed_forward": {"up": dense(f"{name}.mlp.dense_h_to_4h"), "down": dense(f"{name}.mlp.dense_4h_to_h")},
            }
        )
    params = {
        "token_embedding": tensors[f"{prefix or 'transformer.'}word_embeddings.weight"],
        "stack": {
            "blocks": jax.tree.map(lambda *leaves: np.stack(leaves), *blocks),
            "final_norm": norm(f"{prefix}transformer.final_layernorm"),
        },
    }
    if family == "glm":
        for ours, theirs in (("position_embedding", "position"), ("block_position_embedding", "block_position")):
            params[ours] = tensors[f"glm.transformer.{theirs}_embeddings.weight"]
    return params


def write(folder, family, tensors=None, **changes):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS[family] | changes))
    safetensors.numpy.save_file(tensors_of(family) if tensors is None else tensors, folder / "model.safetensors")
    return folder


@families
def test_logits_equal_reference_and_saving_is_exact(family, tmp_path):
    tensors = tensors_of(family)
    lm = plm_jax.load(write(tmp_path / "theirs", family))
    assert lm.num_parameters == sum(leaf.size for leaf in jax.tree.leaves(our_params(family, tensors)))
    # A text whose first of two blanks is being filled, and a text without blanks.
    tokens = [5, MASK, 6, 7, GMASK, SOP, 8, 9], [5, 6, MASK, 7, 8, 9, 10, 11]
    expected = (([0, 1, 2, 3, 4, 1, 1, 1], [0] * 5 + [1, 2, 3], 5), (range(8), [0] * 8, 8))
    got = lm.logits(tokens)
    wide = jax.tree.map(lambda leaf: leaf.astype(np.float64), our_params(family, tensors))
    for row, (positions, block_positions, prefix) in enumerate(expected):
        want = reference(lm.config, wide, list(tokens[row]), list(positions), block_positions, prefix)
        np.testing.assert_allclose(got[row], want, atol=1e-4)

    lm.save(tmp_path / "ours")
    again = safetensors.numpy.load_file(tmp_path / "ours" / "model.safetensors")
    assert again.keys() == tensors.keys()
    assert all(np.array_equal(again[name], tensors[name]) for name in tensors)
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert {name: config[name] for name in CONFIGS[family]} == CONFIGS[family]
    before, after = (huggingface.read(str(tmp_path / name)) for name in ("theirs", "ours"))
    assert (before.model, before.special_ids) == (after.model, after.special_ids)


def test_names_without_prefix_are_read(tmp_path):
    tensors = {name.removeprefix("glm."): tensor for name, tensor in tensors_of("glm").items()}
    got = huggingface.read(str(write(tmp_path / "a", "glm", tensors))).params
    want = our_params("glm", tensors_of("glm"))
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_untied_head_is_preserved(tmp_path):
    tensors = tensors_of("chatglm")
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
    read = huggingface.read(str(write(tmp_path / "a", "chatglm", tensors)))
    assert not read.model.head.tied
    np.testing.assert_array_equal(read.params["head"], tensors["lm_head.weight"])
    huggingface.write(str(tmp_path / "b"), read)
    again = safetensors.numpy.load_file(tmp_path / "b" / "model.safetensors")
    assert all(np.array_equal(again[name], tensors[name]) for name in tensors)


def test_later_models_of_same_type_are_distinguished():
    assert GlmOriginalFamily().reads(CONFIGS["glm"]) and ChatGlm6BFamily().reads(CONFIGS["chatglm"])
    assert not GlmOriginalFamily().reads({"model_type": "glm", "num_hidden_layers": 40})
    assert not ChatGlm6BFamily().reads({"model_type": "chatglm", "num_layers": 28, "seq_length": 8192})
    position = ChatGlm6BFamily().to_settings(CONFIGS["chatglm"]).attention.position
    assert position == models.Rotary2D(length=16)


def test_other_heads_are_saved_in_own_family(tmp_path):
    """Heads of three dimensions, which rotary_2d does not support."""
    model = models.DecoderConfig(
        embedding=models.EmbeddingConfig(VOCAB, 9),
        attention=models.AttentionConfig(3, 3, models.BlockPositions(8)),
        feed_forward=models.FeedForwardConfig(36),
        stack=models.StackConfig(1),
    )
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), registry.shapes(model))
    huggingface.write(str(tmp_path), huggingface.Pretrained(model, params))
    assert huggingface.read(str(tmp_path)).model.attention == model.attention
