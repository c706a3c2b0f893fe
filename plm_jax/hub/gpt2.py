"""GPT-2 (Radford et al. 2019) as Hugging Face keeps it: `GPT2LMHeadModel`, and `GPT2Model` without the prefix.

Its dense layers are `Conv1D`, stored [in, out] like ours, with query, key and value fused along the last axis.
"""

from collections.abc import Mapping
from typing import Any

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub.family import ACTIVATIONS, Family, TaskLayout, Tensor, check_size, known, name_of, task_layouts, values

TENSORS = (
    Tensor("transformer.wte.weight", ("token_embedding",)),
    Tensor("transformer.wpe.weight", ("position_embedding",)),
    Tensor("transformer.h.{layer}.ln_1.weight", ("stack/blocks/attention_norm/scale",)),
    Tensor("transformer.h.{layer}.ln_1.bias", ("stack/blocks/attention_norm/bias",)),
    Tensor(
        "transformer.h.{layer}.attn.c_attn.weight",
        tuple(f"stack/blocks/attention/{part}/kernel" for part in ("query", "key", "value")),
    ),
    Tensor(
        "transformer.h.{layer}.attn.c_attn.bias",
        tuple(f"stack/blocks/attention/{part}/bias" for part in ("query", "key", "value")),
    ),
    Tensor("transformer.h.{layer}.attn.c_proj.weight", ("stack/blocks/attention/out/kernel",)),
    Tensor("transformer.h.{layer}.attn.c_proj.bias", ("stack/blocks/attention/out/bias",)),
    Tensor("transformer.h.{layer}.ln_2.weight", ("stack/blocks/feed_forward_norm/scale",)),
    Tensor("transformer.h.{layer}.ln_2.bias", ("stack/blocks/feed_forward_norm/bias",)),
    Tensor("transformer.h.{layer}.mlp.c_fc.weight", ("stack/blocks/feed_forward/up/kernel",)),
    Tensor("transformer.h.{layer}.mlp.c_fc.bias", ("stack/blocks/feed_forward/up/bias",)),
    Tensor("transformer.h.{layer}.mlp.c_proj.weight", ("stack/blocks/feed_forward/down/kernel",)),
    Tensor("transformer.h.{layer}.mlp.c_proj.bias", ("stack/blocks/feed_forward/down/bias",)),
    Tensor("transformer.ln_f.weight", ("stack/final_norm/scale",)),
    Tensor("transformer.ln_f.bias", ("stack/final_norm/bias",)),
    Tensor("lm_head.weight", ("head",)),
)

# What `GPT2Config` takes where `config.json` says nothing.
DEFAULTS = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def to_settings(config: Mapping[str, Any]) -> models.DecoderConfig:
    """The settings that a GPT-2 `config.json` describes.

    Raises:
      UserError: a size that is no positive integer, a rate that is no number, heads that do not divide the width,
        cross-attention, or an activation that we lack.
    """
    value = values(config, DEFAULTS)
    if value["n_inner"] is None:
        value["n_inner"] = 4 * value["n_embd"]
    check_size("n_inner", value["n_inner"])
    if value["n_embd"] % value["n_head"]:
        raise UserError(f"config.json: n_head {value['n_head']} does not divide n_embd {value['n_embd']}: change one")
    if value["add_cross_attention"]:
        raise UserError("config.json: add_cross_attention is true: only GPT-2 without cross-attention can be read")
    activation = known("activation_function", value["activation_function"], ACTIVATIONS)
    std = value["initializer_range"]
    return models.DecoderConfig(
        embedding=models.EmbeddingConfig(value["vocab_size"], value["n_embd"]),
        attention=models.AttentionConfig(
            heads=value["n_head"],
            head_dim=value["n_embd"] // value["n_head"],
            position=models.LearnedPositions(value["n_positions"], init_std=std),
            score_scale=None if value["scale_attn_weights"] else 1.0,
            scale_by_inverse_depth=bool(value["scale_attn_by_inverse_layer_idx"]),
        ),
        feed_forward=models.FeedForwardConfig(value["n_inner"], activation),
        stack=models.StackConfig(value["n_layer"]),
        norm=models.NormConfig(value["layer_norm_epsilon"]),
        head=models.VocabularyHead(bool(value["tie_word_embeddings"])),
        dropout=models.DropoutConfig(
            embedding=value["embd_pdrop"], attention=value["attn_pdrop"], residual=value["resid_pdrop"]
        ),
        initializer=models.InitializerConfig(std, shrink_residual=True),
    )


def to_config(model: models.DecoderConfig) -> dict[str, Any]:
    """The `config.json` of a GPT-2 with these settings; of the initialisers it keeps `std` alone."""
    attention = model.attention
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.embedding.vocab_size,
        "n_positions": getattr(attention.position, "length", DEFAULTS["n_positions"]),
        "n_embd": model.embedding.width,
        "n_layer": model.stack.layers,
        "n_head": attention.heads,
        "n_inner": model.feed_forward.width,
        "activation_function": name_of(model.feed_forward.activation),
        "resid_pdrop": model.dropout.residual,
        "embd_pdrop": model.dropout.embedding,
        "attn_pdrop": model.dropout.attention,
        "layer_norm_epsilon": model.norm.epsilon,
        "initializer_range": getattr(model.initializer, "std", DEFAULTS["initializer_range"]),
        "scale_attn_weights": attention.score_scale != 1.0,
        "scale_attn_by_inverse_layer_idx": attention.scale_by_inverse_depth,
        "tie_word_embeddings": model.head.tied,
    }


FAMILY = Family(
    name="GPT-2",
    model_type="gpt2",
    kind=models.DecoderConfig.kind,
    prefix="transformer.",
    tensors=TENSORS,
    buffers=r"h\.\d+\.attn\.(bias|masked_bias)",
    to_settings=to_settings,
    to_config=to_config,
    vocabulary_files={"bpe": ("vocab.json", "merges.txt"), "sentencepiece": ("tokenizer.model",)},
    tasks=task_layouts(TaskLayout("score", {"feature": "last", "bias": False}, default=0.0)),
    task_class="GPT2",
    other_heads=r"score\.weight",
)
