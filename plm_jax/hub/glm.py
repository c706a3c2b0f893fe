"""GLM (Du et al. 2022) and ChatGLM-6B under the tensor names of THUDM/GLM and THUDM/chatglm-6b.

Their code comes with their weights, not with `transformers`, which since uses the same `model_type` for other models:
"glm" for GLM-4, and ChatGLM2 kept "chatglm". In the `config.json` of these two the text's longest length is
`max_sequence_length`, in the later ones it is not; that tells them apart.

Dense layers are torch's `Linear`, stored [out, in], with query, key and value in one: in GLM one after the other, in
ChatGLM-6B head by head. GLM's feed-forward has the tanh form of GELU, as in THUDM/GLM, which trained it.
"""

from collections.abc import Mapping
from typing import Any

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub.family import Family, Tensor, check, values
from plm_jax.hub.llama import BLOCKS, dense

FUSED = tuple(f"{BLOCKS}/attention/{part}" for part in ("query", "key", "value"))


def _norm(name: str, path: str) -> tuple[Tensor, Tensor]:
    return Tensor(f"{name}.weight", (f"{path}/scale",)), Tensor(f"{name}.bias", (f"{path}/bias",))


def _stack(name: str, by_head: bool) -> tuple[Tensor, ...]:
    layer = f"{name}.layers.{{layer}}"
    return (
        *_norm(f"{layer}.input_layernorm", f"{BLOCKS}/attention_norm"),
        *dense(f"{layer}.attention.query_key_value", *FUSED, by_head=by_head),
        *dense(f"{layer}.attention.dense", f"{BLOCKS}/attention/out"),
        *_norm(f"{layer}.post_attention_layernorm", f"{BLOCKS}/feed_forward_norm"),
        *dense(f"{layer}.mlp.dense_h_to_4h", f"{BLOCKS}/feed_forward/up"),
        *dense(f"{layer}.mlp.dense_4h_to_h", f"{BLOCKS}/feed_forward/down"),
        *_norm(f"{name}.final_layernorm", "stack/final_norm"),
    )


GLM_TENSORS = (
    Tensor("glm.word_embeddings.weight", ("token_embedding",)),
    Tensor("glm.transformer.position_embeddings.weight", ("position_embedding",)),
    Tensor("glm.transformer.block_position_embeddings.weight", ("block_position_embedding",)),
    *_stack("glm.transformer", by_head=False),
    Tensor("lm_head.weight", ("head",)),
)
CHATGLM_TENSORS = (
    Tensor("transformer.word_embeddings.weight", ("token_embedding",)),
    *_stack("transformer", by_head=True),
    Tensor("lm_head.weight", ("head",)),
    # A tied head is stored once more, since its code does not tie.
    Tensor("lm_head.weight", ("token_embedding",), applies=lambda parameters: "head" not in parameters),
)

# What `GLMConfig` takes where `config.json` says nothing.
GLM_DEFAULTS = {
    "vocab_size": 30592,
    "hidden_size": 1024,
    "num_layers": 24,
    "num_attention_heads": 16,
    "max_sequence_length": 512,
    "layernorm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "embedding_dropout_prob": 0.1,
    "attention_dropout_prob": 0.1,
    "output_dropout_prob": 0.1,
    "relative_encoding": False,
    "block_position_encoding": True,
    "tie_word_embeddings": True,
}
# The same of the `ChatGLMConfig` of ChatGLM-6B.
CHATGLM_DEFAULTS = {
    "vocab_size": 150528,
    "hidden_size": 4096,
    "inner_hidden_size": 16384,
    "num_layers": 28,
    "num_attention_heads": 32,
    "max_sequence_length": 2048,
    "layernorm_epsilon": 1e-5,
    "position_encoding_2d": True,
    "quantization_bit": None,
    "tie_word_embeddings": True,
}


def _heads(value: Mapping[str, Any]) -> tuple[int, int]:
    """How many heads there are, and their width."""
    width, heads = value["hidden_size"], value["num_attention_heads"]
    if width % heads:
        raise UserError(f"config.json: num_attention_heads {heads} does not divide hidden_size {width}: change one")
    return heads, width // heads


def glm_to_settings(config: Mapping[str, Any]) -> models.DecoderConfig:
    """The settings that the `config.json` of a GLM describes.

    Raises:
      UserError: a size that is no positive integer, a rate that is no number, heads that do not divide the width, or
        positions that no published model has.
    """
    value = values(config, GLM_DEFAULTS)
    for name in ("relative_encoding", "block_position_encoding"):
        check(name, value[name], value[name] == GLM_DEFAULTS[name], f"{GLM_DEFAULTS[name]}, which alone can be read")
    std = value["initializer_range"]
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(value["vocab_size"], value["hidden_size"]),
        attention=models.AttentionConfig(*_heads(value), models.BlockPositions(value["max_sequence_length"], std)),
        feed_forward=models.FeedForwardConfig(4 * value["hidden_size"]),
        stack=models.StackConfig(value["num_layers"]),
        norm=models.NormConfig(value["layernorm_epsilon"]),
        head=models.VocabularyHead(bool(value["tie_word_embeddings"])),
        dropout=models.DropoutConfig(
            embedding=value["embedding_dropout_prob"],
            attention=value["attention_dropout_prob"],
            residual=value["output_dropout_prob"],
        ),
        initializer=models.InitializerConfig(std, shrink_residual=True),
    )


def glm_to_config(model: models.DecoderConfig) -> dict[str, Any]:
    """The `config.json` of a GLM with these settings, as in THUDM/glm-10b."""
    return {
        "architectures": ["GLMForConditionalGeneration"],
        "model_type": "glm",
        "vocab_size": model.embedding.vocab_size,
        "hidden_size": model.embedding.width,
        "num_layers": model.stack.layers,
        "num_attention_heads": model.attention.heads,
        "max_sequence_length": getattr(model.attention.position, "length", GLM_DEFAULTS["max_sequence_length"]),
        "layernorm_epsilon": model.norm.epsilon,
        "initializer_range": getattr(model.initializer, "std", GLM_DEFAULTS["initializer_range"]),
        "embedding_dropout_prob": model.dropout.embedding,
        "attention_dropout_prob": model.dropout.attention,
        "output_dropout_prob": model.dropout.residual,
        "attention_scale": 1.0,
        "relative_encoding": False,
        "block_position_encoding": True,
        "output_predict": True,
        "tie_word_embeddings": model.head.tied,
    }


def chatglm_to_settings(config: Mapping[str, Any]) -> models.DecoderConfig:
    """The settings that the `config.json` of a ChatGLM-6B describes.

    Raises:
      UserError: a size that is no positive integer, heads that do not divide the width, positions that no published
        model has, or quantised weights.
    """
    value = values(config, CHATGLM_DEFAULTS)
    check("position_encoding_2d", value["position_encoding_2d"], value["position_encoding_2d"] is True, "true")
    check("quantization_bit", value["quantization_bit"], not value["quantization_bit"], "0: weights as floats alone")
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(value["vocab_size"], value["hidden_size"]),
        attention=models.AttentionConfig(*_heads(value), models.Rotary2D(length=value["max_sequence_length"])),
        feed_forward=models.FeedForwardConfig(value["inner_hidden_size"]),
        stack=models.StackConfig(value["num_layers"]),
        norm=models.NormConfig(value["layernorm_epsilon"], placement="deep"),
        head=models.VocabularyHead(bool(value["tie_word_embeddings"])),
    )


def chatglm_to_config(model: models.DecoderConfig) -> dict[str, Any]:
    """The `config.json` of a ChatGLM-6B with these settings, for the code of THUDM/chatglm-6b."""
    return {
        "architectures": ["ChatGLMModel"],
        "auto_map": {
            "AutoConfig": "THUDM/chatglm-6b--configuration_chatglm.ChatGLMConfig",
            "AutoModel": "THUDM/chatglm-6b--modeling_chatglm.ChatGLMForConditionalGeneration",
        },
        "model_type": "chatglm",
        "vocab_size": model.embedding.vocab_size,
        "hidden_size": model.embedding.width,
        "inner_hidden_size": model.feed_forward.width,
        "num_layers": model.stack.layers,
        "num_attention_heads": model.attention.heads,
        "max_sequence_length": getattr(model.attention.position, "length", CHATGLM_DEFAULTS["max_sequence_length"]),
        "layernorm_epsilon": model.norm.epsilon,
        "position_encoding_2d": True,
        "quantization_bit": 0,
        "tie_word_embeddings": model.head.tied,
    }


def _is_first(model_type: str, config: Mapping[str, Any]) -> bool:
    return config.get("model_type") == model_type and "max_sequence_length" in config


GLM = Family(
    name="GLM",
    model_type="glm_original",
    kind=models.DecoderConfig.kind,
    prefix="glm.",
    tensors=GLM_TENSORS,
    buffers="(?!)",  # None.
    to_settings=glm_to_settings,
    to_config=glm_to_config,
    vocabulary_files={
        "wordpiece": ("vocab.txt",),
        "bpe": ("vocab.json", "merges.txt"),
        "sentencepiece": ("cog-pretrain.model",),
    },
    reads=lambda config: _is_first("glm", config),
    ids={f"{name}_token_id": f"{name}_token_id" for name in ("cls", "mask", "sop", "eop", "smask", "gmask")},
)
CHATGLM = Family(
    name="ChatGLM-6B",
    model_type="chatglm_6b",
    kind=models.DecoderConfig.kind,
    prefix="transformer.",
    tensors=CHATGLM_TENSORS,
    buffers=r"layers\.\d+\.attention\.rotary_emb\.inv_freq",
    to_settings=chatglm_to_settings,
    to_config=chatglm_to_config,
    vocabulary_files={"sentencepiece": ("ice_text.model",)},
    other_heads=r"prefix_encoder\..*",
    reads=lambda config: _is_first("chatglm", config),
    ids={
        "mask_token_id": "mask_token_id",
        "gmask_token_id": "gmask_token_id",
        "sop_token_id": "bos_token_id",
        "eop_token_id": "eos_token_id",
    },
)
