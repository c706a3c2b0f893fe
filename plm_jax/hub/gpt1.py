"""GPT-1 (Radford et al. 2018) as Hugging Face keeps it: `OpenAIGPTLMHeadModel`, and `OpenAIGPTModel`.

Its dense layers are `Conv1D`, stored [in, out] like ours, with query, key and value fused along the last axis. Its
vocabulary is read from `tokenizer.json` alone, which cuts words as BERT does; the paper's own rules were spaCy's.
"""

from collections.abc import Mapping
from typing import Any

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub.family import Family, Tensor, known, name_of, values

LAYER, BLOCKS = "transformer.h.{layer}", "stack/blocks"


def _pair(name: str, kind: str, *paths: str) -> tuple[Tensor, Tensor]:
    """The tensors of a dense layer or norm; `kind` is what its weight is to us."""
    return (
        Tensor(f"{name}.weight", tuple(f"{BLOCKS}/{path}/{kind}" for path in paths)),
        Tensor(f"{name}.bias", tuple(f"{BLOCKS}/{path}/bias" for path in paths)),
    )


TENSORS = (
    Tensor("transformer.tokens_embed.weight", ("token_embedding",)),
    Tensor("transformer.positions_embed.weight", ("position_embedding",)),
    *_pair(f"{LAYER}.attn.c_attn", "kernel", *(f"attention/{part}" for part in ("query", "key", "value"))),
    *_pair(f"{LAYER}.attn.c_proj", "kernel", "attention/out"),
    *_pair(f"{LAYER}.ln_1", "scale", "attention_norm"),
    *_pair(f"{LAYER}.mlp.c_fc", "kernel", "feed_forward/up"),
    *_pair(f"{LAYER}.mlp.c_proj", "kernel", "feed_forward/down"),
    *_pair(f"{LAYER}.ln_2", "scale", "feed_forward_norm"),
    Tensor("lm_head.weight", ("head",)),
)

# `afn` → activation; its "gelu" is the tanh form.
ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}

# What `OpenAIGPTConfig` takes where `config.json` says nothing.
DEFAULTS = {
    "vocab_size": 40478,
    "n_positions": 512,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "afn": "gelu",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
}


def to_settings(config: Mapping[str, Any]) -> models.DecoderConfig:
    """The settings that a GPT-1 `config.json` describes.

    Raises:
      UserError: a size that is no positive integer, a rate that is no number, heads that do not divide the width, or
        an activation that we lack.
    """
    value = values(config, DEFAULTS)
    width, heads, std = value["n_embd"], value["n_head"], value["initializer_range"]
    if width % heads:
        raise UserError(f"config.json: n_head {heads} does not divide n_embd {width}: change one")
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(value["vocab_size"], width),
        attention=models.AttentionConfig(heads, width // heads, models.LearnedPositions(value["n_positions"], std)),
        feed_forward=models.FeedForwardConfig(4 * width, known("afn", value["afn"], ACTIVATIONS)),
        stack=models.StackConfig(value["n_layer"]),
        norm=models.NormConfig(value["layer_norm_epsilon"], placement="post"),
        head=models.VocabularyHead(bool(value["tie_word_embeddings"])),
        dropout=models.DropoutConfig(
            embedding=value["embd_pdrop"], attention=value["attn_pdrop"], residual=value["resid_pdrop"]
        ),
        initializer=models.InitializerConfig(std),
    )


def to_config(model: models.DecoderConfig) -> dict[str, Any]:
    """The `config.json` of a GPT-1 with these settings; its feed-forward is always four times as wide as the model."""
    attention, activation = model.attention, model.feed_forward.activation
    return {
        "architectures": ["OpenAIGPTLMHeadModel"],
        "model_type": "openai-gpt",
        "vocab_size": model.embedding.vocab_size,
        "n_positions": getattr(attention.position, "length", DEFAULTS["n_positions"]),
        "n_embd": model.embedding.width,
        "n_layer": model.stack.layers,
        "n_head": attention.heads,
        "afn": name_of(activation, ACTIVATIONS) if activation in ACTIVATIONS.values() else DEFAULTS["afn"],
        "resid_pdrop": model.dropout.residual,
        "embd_pdrop": model.dropout.embedding,
        "attn_pdrop": model.dropout.attention,
        "layer_norm_epsilon": model.norm.epsilon,
        "initializer_range": getattr(model.initializer, "std", DEFAULTS["initializer_range"]),
        "tie_word_embeddings": model.head.tied,
    }


FAMILY = Family(
    name="GPT-1",
    model_type="openai-gpt",
    kind=models.DecoderConfig.kind,
    prefix="transformer.",
    tensors=TENSORS,
    buffers=r"h\.\d+\.attn\.bias|position_ids",
    to_settings=to_settings,
    to_config=to_config,
    vocabulary_files={},
    other_heads=r"(multiple_choice_head|score)\..*",
)
