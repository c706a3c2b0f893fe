"""LLaMA 1 to 3.2 (Touvron et al. 2023) in Hugging Face's format: `LlamaForCausalLM` and `LlamaModel`.

Dense layers are torch's `Linear`, stored [out, in]. The dimensions of queries and keys are ordered for rotation by
halves, as in this package. Meta's files (consolidated.*.pth), which are ordered for rotation of neighboring dimensions,
cannot be read.
"""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from plm_jax import models
from plm_jax.hub.family import Family, TaskLayout, Tensor, attention, dense, task_layouts
from plm_jax.hub.fields import Field, activation, initializer_range, quotient
from plm_jax.hub.rope import RotaryFields

LAYER, BLOCKS = "model.layers.{layer}", "stack/blocks"
EMBEDDINGS = (
    Tensor("model.embed_tokens.weight", ("token_embedding",)),
    Tensor("model.norm.weight", ("stack/final_norm/scale",)),
    Tensor("lm_head.weight", ("head",)),
)


def norms(layer: str) -> tuple[Tensor, Tensor]:
    """Returns the tensors of the norms of a block. These norms have no bias."""
    return (
        Tensor(f"{layer}.input_layernorm.weight", (f"{BLOCKS}/attention_norm/scale",)),
        Tensor(f"{layer}.post_attention_layernorm.weight", (f"{BLOCKS}/feed_forward_norm/scale",)),
    )


def decoder_base(position: models.Rotary) -> models.DecoderConfig:
    """Returns the settings that LLaMA and its variants have in common. Fields of `config.json` set the sizes."""
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(1, 1),
        attention=models.AttentionConfig(1, 4, position),
        feed_forward=models.FeedForwardConfig(1, "silu", bias=False, gated=True),
        stack=models.StackConfig(1),
        norm=models.NormConfig(kind="rms"),
    )


def _num_heads(fields: Mapping[str, Any]) -> int:
    return fields["num_attention_heads"]


class LlamaFamily(Family):
    """LLaMA. `config.json` has only one dropout rate, for the attention weights."""

    kind = "llama"
    name = "LLaMA"
    base = decoder_base(models.Rotary())
    fields = (
        Field("vocab_size", "embedding.vocab_size", 32000),
        Field("hidden_size", "embedding.width", 4096),
        Field("intermediate_size", "feed_forward.width", 11008),
        Field("num_hidden_layers", "stack.layers", 32),
        Field("num_attention_heads", "attention.heads", 32),
        Field("num_key_value_heads", "attention.kv_heads", _num_heads, same_as="num_attention_heads"),
        Field("head_dim", "attention.head_dim", quotient("hidden_size", "num_attention_heads")),
        activation("hidden_act", "silu"),
        initializer_range("initializer_range"),
        Field("rms_norm_eps", "norm.epsilon", 1e-6),
        Field("attention_bias", "attention.bias", False),
        Field("attention_dropout", "dropout.attention", 0.0),
        Field("mlp_bias", "feed_forward.bias", False),
        Field("tie_word_embeddings", "head.tied", False),
        Field("max_position_embeddings", "attention.position.length", 2048),
        RotaryFields(),
    )
    prefix = "model."
    tensors = (
        *EMBEDDINGS,
        *norms(LAYER),
        *attention(f"{LAYER}.self_attn", f"{BLOCKS}/attention", "q_proj", "k_proj", "v_proj", "o_proj"),
        *dense(f"{LAYER}.mlp.gate_proj", f"{BLOCKS}/feed_forward/gate"),
        *dense(f"{LAYER}.mlp.up_proj", f"{BLOCKS}/feed_forward/up"),
        *dense(f"{LAYER}.mlp.down_proj", f"{BLOCKS}/feed_forward/down"),
    )
    buffers = r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
    vocabulary_files = {"sentencepiece": ("tokenizer.model",), "tiktoken": ("tokenizer.model",)}
    tokenizer_class = "LlamaTokenizer"
    tasks = task_layouts(TaskLayout("score", {"feature": "last", "bias": False}, default=0.0))
    task_class = "Llama"
    other_heads = r"score\.weight"

    @override
    def architecture(self, model):
        return "LlamaForCausalLM"

    @override
    def tokenizer_config(self, files, special_ids):
        described = super().tokenizer_config(files, special_ids) | {"padding_side": "left"}
        if special_ids.get("begins_with"):  # `tokenizer.json` contains it.
            return described
        return described | {"add_bos_token": special_ids.get("begins_with_bos", False)}

    @override
    def special_ids(self, files, tokenizer_config):
        # `LlamaTokenizer` adds the token by default.
        return {"begins_with_bos": tokenizer_config.get("add_bos_token", True)}
