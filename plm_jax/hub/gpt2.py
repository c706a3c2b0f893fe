"""GPT-2 (Radford et al. 2019) as Hugging Face keeps it: `GPT2LMHeadModel`, and `GPT2Model` without the prefix.

Its dense layers are `Conv1D`, stored [in, out] like ours, with query, key and value fused along the last axis.
"""

from collections.abc import Mapping
from typing import Any

from plm_jax.errors import UserError, nearest
from plm_jax.hub.table import Family, Tensor
from plm_jax.models import settings

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

# Hugging Face's names → ours; of several for one of ours, the first is the one we write.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu_exact",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}

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


def to_settings(config: Mapping[str, Any]) -> settings.Decoder:
    """The settings that a GPT-2 `config.json` describes.

    Raises:
      UserError: a size that is no positive integer, a rate that is no number, heads that do not divide the width,
        cross-attention, or an activation that we lack.
    """
    value = {name: config.get(name, default) for name, default in DEFAULTS.items()}
    for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"):
        _check(name, value[name], type(value[name]) is int and value[name] > 0, "a positive integer")
    if value["n_inner"] is None:
        value["n_inner"] = 4 * value["n_embd"]
    _check("n_inner", value["n_inner"], type(value["n_inner"]) is int and value["n_inner"] > 0, "a positive integer")
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "layer_norm_epsilon", "initializer_range"):
        _check(name, value[name], type(value[name]) in (int, float) and value[name] >= 0, "a number of at least 0")
    if value["n_embd"] % value["n_head"]:
        raise UserError(f"config.json: n_head {value['n_head']} does not divide n_embd {value['n_embd']}: change one")
    if value["add_cross_attention"]:
        raise UserError("config.json: add_cross_attention is true: only GPT-2 without cross-attention can be read")
    if value["activation_function"] not in ACTIVATIONS:
        name = str(value["activation_function"])
        raise UserError(f"config.json: activation_function is '{name}': {nearest(name, ACTIVATIONS)}")
    std = float(value["initializer_range"])
    return settings.Decoder(
        embedding=settings.Embedding(value["vocab_size"], value["n_embd"]),
        attention=settings.Attention(
            heads=value["n_head"],
            head_dim=value["n_embd"] // value["n_head"],
            position=settings.LearnedPositions(value["n_positions"], init_std=std),
            score_scale=None if value["scale_attn_weights"] else 1.0,
            scale_by_inverse_depth=bool(value["scale_attn_by_inverse_layer_idx"]),
        ),
        feed_forward=settings.FeedForward(value["n_inner"], ACTIVATIONS[value["activation_function"]]),
        stack=settings.Stack(value["n_layer"]),
        norm=settings.Norm(float(value["layer_norm_epsilon"])),
        head=settings.Head(bool(value["tie_word_embeddings"])),
        dropout=settings.Dropout(
            embedding=float(value["embd_pdrop"]),
            attention=float(value["attn_pdrop"]),
            residual=float(value["resid_pdrop"]),
        ),
        initializer=settings.Initializer(std, shrink_residual=True),
    )


def _check(name: str, value: Any, right: bool, wanted: str) -> None:
    if not right:
        raise UserError(f"config.json: {name} is {value!r}: give {wanted}")


def to_config(model: settings.Decoder) -> dict[str, Any]:
    """The `config.json` of a GPT-2 with these settings; of the initialisers it keeps `std` alone.

    Raises:
      UserError: settings that GPT-2 does not have, named.
    """
    attention, width = model.attention, model.embedding.width
    scales = {None: True, attention.head_dim**-0.5: True, 1.0: False}
    wanted = {
        "attention.position.kind = learned": isinstance(attention.position, settings.LearnedPositions),
        "attention.bias = True": attention.bias,
        "feed_forward.bias = True": model.feed_forward.bias,
        "attention.heads * attention.head_dim = embedding.width": attention.heads * attention.head_dim == width,
        "attention.score_scale = None or 1.0": attention.score_scale in scales,
    }
    unmet = [setting for setting, met in wanted.items() if not met]
    if unmet:
        raise UserError(f"Hugging Face's GPT-2 cannot hold this model: it needs {', '.join(unmet)}")
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.embedding.vocab_size,
        "n_positions": attention.position.length,
        "n_embd": width,
        "n_layer": model.stack.layers,
        "n_head": attention.heads,
        "n_inner": model.feed_forward.width,
        "activation_function": next(k for k, v in ACTIVATIONS.items() if v == model.feed_forward.activation),
        "resid_pdrop": model.dropout.residual,
        "embd_pdrop": model.dropout.embedding,
        "attn_pdrop": model.dropout.attention,
        "layer_norm_epsilon": model.norm.epsilon,
        "initializer_range": model.initializer.std,
        "scale_attn_weights": scales[attention.score_scale],
        "scale_attn_by_inverse_layer_idx": attention.scale_by_inverse_depth,
        "tie_word_embeddings": model.head.tied,
    }


FAMILY = Family(
    model_type="gpt2",
    prefix="transformer.",
    tensors=TENSORS,
    buffers=r"h\.\d+\.attn\.(bias|masked_bias)",
    to_settings=to_settings,
    to_config=to_config,
)
