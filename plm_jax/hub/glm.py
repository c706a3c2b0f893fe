"""GLM (Du et al. 2022) and ChatGLM-6B under the tensor names of THUDM/GLM and THUDM/chatglm-6b.

The original repositories contain code and weights. Later models use the same `model_type`: "glm" is GLM-4 in
`transformers`, and ChatGLM2 also uses "chatglm". GLM and ChatGLM-6B are recognized by the field `max_sequence_length`
of `config.json`, which the later models lack.

Dense layers are torch's `Linear`, stored [out, in]. One `Linear` holds the query, key and value projections. In GLM,
the three projections follow one another. In ChatGLM-6B, the query, the key and the value of each head are adjacent.
GLM's feed-forward uses the tanh form of GELU, like the training code in THUDM/GLM.
"""

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from plm_jax import models
from plm_jax.hub.family import Family, Tensor, dense, kv_heads, norm
from plm_jax.hub.fields import Derived, Field, Fixed, Written, initializer_range, quotient

BLOCKS = "stack/blocks"


def _stack(name: str, groups: Callable[[Any], int] | None = None) -> tuple[Tensor, ...]:
    layer = f"{name}.layers.{{layer}}"
    fused = (f"{BLOCKS}/attention/{projection}" for projection in ("query", "key", "value"))
    return (
        *norm(f"{layer}.input_layernorm", f"{BLOCKS}/attention_norm"),
        *dense(f"{layer}.attention.query_key_value", *fused, groups=groups),
        *dense(f"{layer}.attention.dense", f"{BLOCKS}/attention/out"),
        *norm(f"{layer}.post_attention_layernorm", f"{BLOCKS}/feed_forward_norm"),
        *dense(f"{layer}.mlp.dense_h_to_4h", f"{BLOCKS}/feed_forward/up"),
        *dense(f"{layer}.mlp.dense_4h_to_h", f"{BLOCKS}/feed_forward/down"),
        *norm(f"{name}.final_layernorm", "stack/final_norm"),
    )


def _base(position: models.BlockPositions | models.Rotary2D, **fields: Any) -> models.DecoderConfig:
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(1, 1),
        attention=models.AttentionConfig(1, 4, position),
        feed_forward=models.FeedForwardConfig(1),
        stack=models.StackConfig(1),
        **fields,
    )


class _OriginalFamily(Family):
    """Base of the families in the format of the original repositories.

    Later models with the same `model_type` have another format.
    """

    @override
    def reads(self, config):
        return config.get("model_type") == self.model_type and "max_sequence_length" in config


class GlmOriginalFamily(_OriginalFamily):
    """GLM, as in THUDM/glm-10b."""

    kind = "glm_original"
    model_type = "glm"
    name = "GLM"
    base = _base(models.BlockPositions(1), initializer=models.InitializerConfig(shrink_residual=True))
    fields = (
        Field("vocab_size", "embedding.vocab_size", 30592),
        Field("hidden_size", "embedding.width", 1024),
        Field("num_layers", "stack.layers", 24),
        Field("num_attention_heads", "attention.heads", 16),
        Derived("attention.head_dim", quotient("hidden_size", "num_attention_heads")),
        Derived("feed_forward.width", lambda values: 4 * values["hidden_size"]),
        Field("max_sequence_length", "attention.position.length", 512),
        Field("layernorm_epsilon", "norm.epsilon", 1e-5),
        initializer_range("initializer_range", "attention.position.init_std"),
        Field("embedding_dropout_prob", "dropout.embedding", 0.1),
        Field("attention_dropout_prob", "dropout.attention", 0.1),
        Field("output_dropout_prob", "dropout.residual", 0.1),
        Written("attention_scale", 1.0),
        Fixed("relative_encoding", False),
        Fixed("block_position_encoding", True),
        Written("output_predict", True),
        Field("tie_word_embeddings", "head.tied", True),
    )
    prefix = "glm."
    tensors = (
        Tensor("glm.word_embeddings.weight", ("token_embedding",)),
        Tensor("glm.transformer.position_embeddings.weight", ("position_embedding",)),
        Tensor("glm.transformer.block_position_embeddings.weight", ("block_position_embedding",)),
        *_stack("glm.transformer"),
        Tensor("lm_head.weight", ("head",)),
    )
    vocabulary_files = {
        "wordpiece": ("vocab.txt",),
        "bpe": ("vocab.json", "merges.txt"),
        "sentencepiece": ("cog-pretrain.model",),
    }
    ids = {f"{name}_token_id": f"{name}_token_id" for name in ("cls", "mask", "sop", "eop", "smask", "gmask")}

    @override
    def architecture(self, model):
        return "GLMForConditionalGeneration"


class ChatGlm6BFamily(_OriginalFamily):
    """ChatGLM-6B, for the code of THUDM/chatglm-6b."""

    kind = "chatglm_6b"
    model_type = "chatglm"
    name = "ChatGLM-6B"
    base = _base(models.Rotary2D(), norm=models.NormConfig(placement="deep"))
    fields = (
        Written(
            "auto_map",
            {
                "AutoConfig": "THUDM/chatglm-6b--configuration_chatglm.ChatGLMConfig",
                "AutoModel": "THUDM/chatglm-6b--modeling_chatglm.ChatGLMForConditionalGeneration",
            },
        ),
        Field("vocab_size", "embedding.vocab_size", 150528),
        Field("hidden_size", "embedding.width", 4096),
        Field("inner_hidden_size", "feed_forward.width", 16384),
        Field("num_layers", "stack.layers", 28),
        Field("num_attention_heads", "attention.heads", 32),
        Derived("attention.head_dim", quotient("hidden_size", "num_attention_heads")),
        Field("max_sequence_length", "attention.position.length", 2048),
        Field("layernorm_epsilon", "norm.epsilon", 1e-5),
        Fixed("position_encoding_2d", True),
        Fixed("quantization_bit", 0),
        Field("tie_word_embeddings", "head.tied", True),
    )
    prefix = "transformer."
    tensors = (
        Tensor("transformer.word_embeddings.weight", ("token_embedding",)),
        *_stack("transformer", groups=kv_heads),
        Tensor("lm_head.weight", ("head",)),
        # A tied head is stored again because the code of ChatGLM-6B does not tie parameters.
        Tensor("lm_head.weight", ("token_embedding",), applies=lambda parameters: "head" not in parameters),
    )
    buffers = r"layers\.\d+\.attention\.rotary_emb\.inv_freq"
    other_heads = r"prefix_encoder\..*"
    vocabulary_files = {"sentencepiece": ("ice_text.model",)}
    ids = {
        "mask_token_id": "mask_token_id",
        "gmask_token_id": "gmask_token_id",
        "sop_token_id": "bos_token_id",
        "eop_token_id": "eos_token_id",
    }

    @override
    def architecture(self, model):
        return "ChatGLMModel"
