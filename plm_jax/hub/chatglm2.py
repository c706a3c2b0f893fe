"""ChatGLM2, ChatGLM3 and GLM-4-9B (Zeng et al. 2024) in both layouts that they are published in.

They are one architecture. `GLM` is Hugging Face's: `GlmForCausalLM`, as in zai-org/glm-4-9b-hf. `CHATGLM` is that of
the original repositories (THUDM/chatglm2-6b, chatglm3-6b, glm-4-9b), whose code comes with their weights: attention's
projections are one `Linear`, [queries; keys; values]. In both the feed-forward's gate and its other half are one,
[gate; up], and dense layers are stored [out, in].
"""

from collections.abc import Mapping
from typing import Any

from plm_jax import models
from plm_jax.common import sentence_models
from plm_jax.hub import rope
from plm_jax.hub.family import ACTIVATIONS, Family, Tensor, check, known, name_of, values
from plm_jax.hub.llama import BLOCKS, dense, heads_of, separate_attention
from plm_jax.models.layers import Activation

LAYER = "model.layers.{layer}"
GLM_TENSORS = (
    Tensor("model.embed_tokens.weight", ("token_embedding",)),
    Tensor(f"{LAYER}.input_layernorm.weight", (f"{BLOCKS}/attention_norm/scale",)),
    *separate_attention(f"{LAYER}.self_attn"),
    Tensor(f"{LAYER}.post_attention_layernorm.weight", (f"{BLOCKS}/feed_forward_norm/scale",)),
    *dense(f"{LAYER}.mlp.gate_up_proj", f"{BLOCKS}/feed_forward/gate", f"{BLOCKS}/feed_forward/up"),
    *dense(f"{LAYER}.mlp.down_proj", f"{BLOCKS}/feed_forward/down"),
    Tensor("model.norm.weight", ("stack/final_norm/scale",)),
    Tensor("lm_head.weight", ("head",)),
)

ORIGINAL = "transformer.encoder.layers.{layer}"
CHATGLM_TENSORS = (
    Tensor("transformer.embedding.word_embeddings.weight", ("token_embedding",)),
    Tensor(f"{ORIGINAL}.input_layernorm.weight", (f"{BLOCKS}/attention_norm/scale",)),
    *dense(
        f"{ORIGINAL}.self_attention.query_key_value",
        *(f"{BLOCKS}/attention/{part}" for part in ("query", "key", "value")),
    ),
    *dense(f"{ORIGINAL}.self_attention.dense", f"{BLOCKS}/attention/out"),
    Tensor(f"{ORIGINAL}.post_attention_layernorm.weight", (f"{BLOCKS}/feed_forward_norm/scale",)),
    *dense(f"{ORIGINAL}.mlp.dense_h_to_4h", f"{BLOCKS}/feed_forward/gate", f"{BLOCKS}/feed_forward/up"),
    *dense(f"{ORIGINAL}.mlp.dense_4h_to_h", f"{BLOCKS}/feed_forward/down"),
    Tensor("transformer.encoder.final_layernorm.weight", ("stack/final_norm/scale",)),
    Tensor("transformer.output_layer.weight", ("head",)),
)

# What `GlmConfig` takes where `config.json` says nothing.
GLM_DEFAULTS = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1.5625e-7,
    "attention_bias": True,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
}
GLM_LENGTH = 131_072

# What `ChatGLMConfig` takes where `config.json` says nothing, by the names of `GlmConfig`.
CHATGLM_DEFAULTS = {
    "padded_vocab_size": 65024,
    "hidden_size": 4096,
    "ffn_hidden_size": 13696,
    "num_layers": 28,
    "num_attention_heads": 32,
    "multi_query_group_num": 1,
    "kv_channels": 128,
    "layernorm_epsilon": 1e-5,
    "add_qkv_bias": False,
    "attention_dropout": 0.0,
    "seq_length": 2048,
    "rope_ratio": 1.0,
    "tie_word_embeddings": False,
}
# What all published models have in common, and nothing else can be read; with the defaults of `ChatGLMConfig`.
FIXED = {
    "multi_query_attention": (True, False),
    "rmsnorm": (True, True),
    "add_bias_linear": (False, False),
    "post_layer_norm": (True, True),
    "apply_residual_connection_post_layernorm": (False, False),
}


def glm_to_settings(config: Mapping[str, Any]) -> models.DecoderConfig:
    """The settings that a GLM-4 `config.json` of Hugging Face describes.

    Raises:
      UserError: a size that is no positive integer, a rate that is no number, heads that do not divide the width, a
        scaling of the positions, or an activation, that we lack.
    """
    value = values(config, GLM_DEFAULTS)
    position = rope.to_settings(config, fraction=0.5, interleaved=True, length=GLM_LENGTH)
    return _settings(value, position, known("hidden_act", value["hidden_act"], ACTIVATIONS))


def _settings(value, position: models.Rotary, activation: Activation) -> models.DecoderConfig:
    heads, head_dim, kv_heads = heads_of(value)
    bias = bool(value["attention_bias"])
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(value["vocab_size"], value["hidden_size"]),
        attention=models.AttentionConfig(
            heads, head_dim, position, bias=bias, out_bias=False if bias else None, kv_heads=kv_heads
        ),
        feed_forward=models.FeedForwardConfig(value["intermediate_size"], activation, bias=False, gated=True),
        stack=models.StackConfig(value["num_hidden_layers"]),
        norm=models.NormConfig(value["rms_norm_eps"], kind="rms"),
        head=models.VocabularyHead(bool(value["tie_word_embeddings"])),
        dropout=models.DropoutConfig(attention=value["attention_dropout"]),
        initializer=models.InitializerConfig(value["initializer_range"]),
    )


def glm_to_config(model: models.DecoderConfig) -> dict[str, Any]:
    """The `config.json` of a GLM-4 with these settings; of the dropout rates it keeps that of attention."""
    attention = model.attention
    return {
        "architectures": ["GlmForCausalLM"],
        "model_type": "glm",
        "vocab_size": model.embedding.vocab_size,
        "hidden_size": model.embedding.width,
        "intermediate_size": model.feed_forward.width,
        "num_hidden_layers": model.stack.layers,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "hidden_act": name_of(model.feed_forward.activation),
        "initializer_range": getattr(model.initializer, "std", GLM_DEFAULTS["initializer_range"]),
        "rms_norm_eps": model.norm.epsilon,
        "attention_bias": attention.bias,
        "attention_dropout": model.dropout.attention,
        "tie_word_embeddings": model.head.tied,
        "partial_rotary_factor": getattr(attention.position, "fraction", 1.0),
        **rope.to_config(attention.position),
    }


def chatglm_to_settings(config: Mapping[str, Any]) -> models.DecoderConfig:
    """The settings that a `config.json` of ChatGLM2, ChatGLM3 or an original GLM-4-9B describes.

    `rope_ratio` is taken for a factor of theta, as ChatGLM3 and GLM-4 have it (in ChatGLM2-6B-32K alone it divides the
    positions).

    Raises:
      UserError: a size that is no positive integer, a rate that is no number, or what no published model has.
    """
    value = values(config, CHATGLM_DEFAULTS)
    for name, (wanted, default) in FIXED.items():
        given = config.get(name, default)
        check(name, given, given == wanted, f"{str(wanted).lower()}, the only one that can be read")
    renamed = {
        "vocab_size": value["padded_vocab_size"],
        "hidden_size": value["hidden_size"],
        "intermediate_size": value["ffn_hidden_size"],
        "num_hidden_layers": value["num_layers"],
        "num_attention_heads": value["num_attention_heads"],
        "num_key_value_heads": value["multi_query_group_num"],
        "head_dim": value["kv_channels"],
        "rms_norm_eps": value["layernorm_epsilon"],
        "attention_bias": value["add_qkv_bias"],
        "attention_dropout": value["attention_dropout"],
        "tie_word_embeddings": value["tie_word_embeddings"],
        "initializer_range": GLM_DEFAULTS["initializer_range"],
    }
    position = models.Rotary(10_000.0 * value["rope_ratio"], fraction=0.5, interleaved=True, length=value["seq_length"])
    return _settings(renamed, position, "silu")


def chatglm_to_config(model: models.DecoderConfig) -> dict[str, Any]:
    """The `config.json` of a ChatGLM2 with these settings, for the code of THUDM/chatglm3-6b."""
    attention, position = model.attention, model.attention.position
    return {
        "architectures": ["ChatGLMModel"],
        "model_type": "chatglm",
        "auto_map": {
            "AutoConfig": "THUDM/chatglm3-6b--configuration_chatglm.ChatGLMConfig",
            "AutoModelForCausalLM": "THUDM/chatglm3-6b--modeling_chatglm.ChatGLMForConditionalGeneration",
        },
        "padded_vocab_size": model.embedding.vocab_size,
        "hidden_size": model.embedding.width,
        "ffn_hidden_size": model.feed_forward.width,
        "num_layers": model.stack.layers,
        "num_attention_heads": attention.heads,
        "multi_query_group_num": attention.num_kv_heads,
        "kv_channels": attention.head_dim,
        "layernorm_epsilon": model.norm.epsilon,
        "add_qkv_bias": attention.bias,
        "attention_dropout": model.dropout.attention,
        "hidden_dropout": 0.0,
        "seq_length": getattr(position, "length", CHATGLM_DEFAULTS["seq_length"]),
        "rope_ratio": getattr(position, "theta", 10_000.0) / 10_000.0,
        "tie_word_embeddings": model.head.tied,
        **{name: wanted for name, (wanted, _) in FIXED.items()},
    }


def special_ids(files: list[bytes], tokenizer_config: Mapping[str, Any]) -> dict[str, Any]:
    """What every text begins with: `[gMASK] sop`, the second and fourth of the ids above a file of SentencePiece's, or
    what `tokenizer_config.json` says (THUDM/chatglm3-6b, tokenization_chatglm.py; glm-4-9b).
    """
    added = tokenizer_config.get("added_tokens_decoder", {}).items()
    ids = {token.get("content"): int(number) for number, token in added}
    sop = ids.get("<sop>", ids.get("sop"))
    if "[gMASK]" in ids and sop is not None:
        return {"begins_with": [ids["[gMASK]"], sop]}
    try:
        size = len(sentence_models.parse(files[0]).pieces)
    except ValueError:  # It is tiktoken's.
        return {}
    return {"begins_with": [size + 1, size + 3]}


GLM = Family(
    name="GLM-4",
    model_type="glm",
    kind=models.DecoderConfig.kind,
    prefix="model.",
    tensors=GLM_TENSORS,
    buffers="(?!)",  # None.
    to_settings=glm_to_settings,
    to_config=glm_to_config,
    vocabulary_files={},
    other_heads=r"score\..*",
)
CHATGLM = Family(
    name="ChatGLM",
    model_type="chatglm",
    kind=models.DecoderConfig.kind,
    prefix="transformer.",
    tensors=CHATGLM_TENSORS,
    buffers=r"rotary_pos_emb\.inv_freq",
    to_settings=chatglm_to_settings,
    to_config=chatglm_to_config,
    vocabulary_files={"sentencepiece": ("tokenizer.model",), "tiktoken": ("tokenizer.model",)},
    special_ids=special_ids,
    other_heads=r"classifier_head\..*|prefix_encoder\..*",
)
