"""ChatGLM2 under its original tensor names, compared with NumPy."""

import io
import json

import numpy as np
import pytest
import sentencepiece
from safetensors.numpy import save_file

import plm_jax
from plm_jax.common.errors import UserError
from plm_jax.hub.chatglm2 import ChatGlmFamily
from tests.models.test_rotary import rotated

VOCAB, WIDTH, HEADS, GROUPS, HEAD_DIM, WIDE, LAYERS = 29, 12, 4, 2, 8, 10, 2
CONFIG = {
    "model_type": "chatglm",
    "padded_vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "ffn_hidden_size": WIDE,
    "num_layers": LAYERS,
    "num_attention_heads": HEADS,
    "kv_channels": HEAD_DIM,
    "multi_query_attention": True,
    "multi_query_group_num": GROUPS,
    "add_qkv_bias": True,
    "add_bias_linear": False,
    "rmsnorm": True,
    "post_layer_norm": True,
    "apply_residual_connection_post_layernorm": False,
    "layernorm_epsilon": 0.01,
    "seq_length": 64,
    "rope_ratio": 0.002,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
QUERIES, KEYS = HEADS * HEAD_DIM, GROUPS * HEAD_DIM


@pytest.fixture
def tensors():
    """Weights under the names of THUDM/chatglm2-6b's pytorch_model.bin.index.json, stored [out, in]."""
    shapes = {
        "transformer.embedding.word_embeddings.weight": (VOCAB, WIDTH),
        "transformer.encoder.final_layernorm.weight": (WIDTH,),
        "transformer.output_layer.weight": (VOCAB, WIDTH),
        "transformer.rotary_pos_emb.inv_freq": (HEAD_DIM // 4,),
    }
    for layer in range(LAYERS):
        at = f"transformer.encoder.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (WIDTH,),
            f"{at}.self_attention.query_key_value.weight": (QUERIES + 2 * KEYS, WIDTH),
            f"{at}.self_attention.query_key_value.bias": (QUERIES + 2 * KEYS,),
            f"{at}.self_attention.dense.weight": (WIDTH, QUERIES),
            f"{at}.post_attention_layernorm.weight": (WIDTH,),
            f"{at}.mlp.dense_h_to_4h.weight": (2 * WIDE, WIDTH),
            f"{at}.mlp.dense_4h_to_h.weight": (WIDTH, WIDE),
        }
    rng = np.random.default_rng(3)
    return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def folder(tensors, tmp_path):
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def normed(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + CONFIG["layernorm_epsilon"]) * weight


def reference(tensors, tokens):
    """Returns the logits [L, V] of one row, computed in float64 head by head."""
    of = {name.removeprefix("transformer."): value.astype(np.float64) for name, value in tensors.items()}
    x = of["embedding.word_embeddings.weight"][tokens]
    for layer in range(LAYERS):
        at = f"encoder.layers.{layer}"
        fused = normed(x, of[f"{at}.input_layernorm.weight"]) @ of[f"{at}.self_attention.query_key_value.weight"].T
        fused = fused + of[f"{at}.self_attention.query_key_value.bias"]
        query, key, value = (
            x.reshape(len(tokens), -1, HEAD_DIM) for x in np.split(fused, [QUERIES, QUERIES + KEYS], axis=-1)
        )
        positions, theta, mixed = np.arange(len(tokens))[None], 10_000 * CONFIG["rope_ratio"], []
        query, key = (
            rotated(x.swapaxes(0, 1)[None], positions, HEAD_DIM // 2, theta, interleaved=True)[0].swapaxes(0, 1)
            for x in (query, key)
        )
        for head in range(HEADS):
            group = head // (HEADS // GROUPS)
            scores = query[:, head] @ key[:, group].T / np.sqrt(HEAD_DIM)
            weights = np.exp(np.where(np.tri(len(tokens)) > 0, scores, -np.inf))
            mixed.append(weights / weights.sum(-1, keepdims=True) @ value[:, group])
        x = x + np.concatenate(mixed, -1) @ of[f"{at}.self_attention.dense.weight"].T
        wide = normed(x, of[f"{at}.post_attention_layernorm.weight"]) @ of[f"{at}.mlp.dense_h_to_4h.weight"].T
        gate, other = np.split(wide, 2, axis=-1)
        x = x + (gate / (1 + np.exp(-gate)) * other) @ of[f"{at}.mlp.dense_4h_to_h.weight"].T
    return normed(x, of["encoder.final_layernorm.weight"]) @ of["output_layer.weight"].T


def test_logits_equal_reference(folder, tensors):
    lm = plm_jax.load(folder)
    rows = np.random.default_rng(0).integers(0, VOCAB, (3, 7))
    want = np.stack([reference(tensors, row) for row in rows])
    np.testing.assert_allclose(lm.logits(rows), want, atol=1e-4)
    padded, mask = np.pad(rows, ((0, 0), (2, 1))), np.pad(np.ones_like(rows), ((0, 0), (2, 1)))
    np.testing.assert_allclose(lm.logits(padded, mask)[:, 2:-1], want, atol=1e-4)
    assert lm.num_parameters == sum(value.size for name, value in tensors.items() if "inv_freq" not in name)


@pytest.mark.parametrize(
    "named",
    [
        {"_name_or_path": "THUDM/chatglm2-6b-32k"},
        {"auto_map": {"AutoModel": "THUDM/chatglm2-6b-32k--modeling_chatglm.ChatGLMForConditionalGeneration"}},
    ],
    ids=lambda named: next(iter(named)),
)
def test_positions_divided_by_a_ratio_are_rejected(named, folder):
    (folder / "config.json").write_text(json.dumps({**CONFIG, **named}))
    with pytest.raises(UserError, match=r"rope_ratio is 0\.002: must be 1\.0 for ChatGLM2"):
        plm_jax.load(folder)
    for config, theta in (({**CONFIG, **named, "rope_ratio": 1}, 10_000), (CONFIG, 20)):
        assert ChatGlmFamily().to_settings(config).attention.position.theta == theta


def test_texts_begin_like_published_tokenizers(folder):
    """In ChatGLM2 and 3, `[MASK]`, `[gMASK]`, `[sMASK]`, `sop` and `eop` are ids above the file. GLM-4 lists them."""
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["to be or not to be"] * 9), model_writer=buffer, vocab_size=12, minloglevel=2
    )
    (folder / "tokenizer.model").write_bytes(buffer.getvalue())
    lm = plm_jax.load(folder)
    assert lm.special_ids["begins_with"] == [13, 15]
    text = lm.vocabulary.encode("to be")
    assert lm.strategy.encode("to be") == [13, 15, *text] and lm.strategy.encode("") == [13, 15]
    listed = {"5": {"content": "[gMASK]"}, "7": {"content": "<sop>"}, "9": {"content": "<|user|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}))
    assert plm_jax.load(folder).special_ids["begins_with"] == [5, 7]
    assert ChatGlmFamily().special_ids([b"IQ== 0\nIg== 1\n"], {}) == {}
