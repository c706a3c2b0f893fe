"""T5 (Raffel et al. 2020), 1.0 and 1.1, as Hugging Face keeps it: `T5ForConditionalGeneration`, and `T5Model`.

Its dense layers are torch's `Linear`, stored [out, in]; the relative bias of a stack lies in its first block.
"""

from collections.abc import Mapping
from typing import Any

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub.family import ACTIVATIONS, Family, Tensor, check_size, known, name_of, values


def _stack(stack: str, feed_forward: int) -> tuple[Tensor, ...]:
    """The tensors of a stack, whose feed-forward is the sub-layer of this number."""
    layer, blocks = f"{stack}.block.{{layer}}.layer", f"{stack}/blocks"
    wide, gate = f"{layer}.{feed_forward}.DenseReluDense", f"{blocks}/feed_forward/gate/kernel"
    up = (f"{blocks}/feed_forward/up/kernel",)
    return (
        *_attention(f"{layer}.0.SelfAttention", f"{blocks}/attention"),
        Tensor(f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", (f"{stack}/relative_bias",)),
        Tensor(f"{layer}.0.layer_norm.weight", (f"{blocks}/attention_norm/scale",)),
        *_attention(f"{layer}.1.EncDecAttention", f"{blocks}/cross_attention"),
        Tensor(f"{layer}.1.layer_norm.weight", (f"{blocks}/cross_attention_norm/scale",)),
        Tensor(f"{wide}.wi.weight", up, transposed=True, applies=lambda parameters: gate not in parameters),
        Tensor(f"{wide}.wi_0.weight", (gate,), transposed=True),
        Tensor(f"{wide}.wi_1.weight", up, transposed=True, applies=lambda parameters: gate in parameters),
        Tensor(f"{wide}.wo.weight", (f"{blocks}/feed_forward/down/kernel",), transposed=True),
        Tensor(f"{layer}.{feed_forward}.layer_norm.weight", (f"{blocks}/feed_forward_norm/scale",)),
        Tensor(f"{stack}.final_layer_norm.weight", (f"{stack}/final_norm/scale",)),
    )


def _attention(name: str, path: str) -> tuple[Tensor, ...]:
    parts = {"q": "query", "k": "key", "v": "value", "o": "out"}
    return tuple(Tensor(f"{name}.{a}.weight", (f"{path}/{b}/kernel",), transposed=True) for a, b in parts.items())


TENSORS = (
    Tensor("shared.weight", ("token_embedding",)),
    *_stack("encoder", feed_forward=1),
    *_stack("decoder", feed_forward=2),
    Tensor("lm_head.weight", ("head",)),
)

# `feed_forward_proj` → activation, gated. Gated, Hugging Face's "gelu" is the tanh form.
FEED_FORWARDS = {
    **{name: (activation, False) for name, activation in ACTIVATIONS.items()},
    "gated-gelu": ("gelu_tanh", True),
    **{f"gated-{name}": (activation, True) for name, activation in ACTIVATIONS.items() if name != "gelu"},
}

# What `T5Config` takes where `config.json` says nothing.
DEFAULTS = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_decoder_layers": None,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "is_encoder_decoder": True,
    "tie_word_embeddings": True,
}
ENCODER_ONLY = "T5EncoderModel"


def to_settings(config: Mapping[str, Any]) -> models.EncoderDecoderConfig:
    """The settings that a T5 `config.json` describes.

    Raises:
      UserError: a size that is no positive integer, a rate that is no number, an encoder alone, or an activation that
        we lack.
    """
    value = values(config, DEFAULTS)
    if value["num_decoder_layers"] is None:
        value["num_decoder_layers"] = value["num_layers"]
    check_size("num_decoder_layers", value["num_decoder_layers"])
    if not value["is_encoder_decoder"] or ENCODER_ONLY in (config.get("architectures") or ()):
        raise UserError(f"config.json: a {ENCODER_ONLY} is half a model: give a whole T5, encoder and decoder")
    activation, gated = known("feed_forward_proj", value["feed_forward_proj"], FEED_FORWARDS)
    tied = bool(value["tie_word_embeddings"])
    return models.EncoderDecoderConfig(
        embedding=models.EmbeddingConfig(value["vocab_size"], value["d_model"]),
        attention=models.AttentionConfig(
            value["num_heads"],
            value["d_kv"],
            models.RelativeBias(value["relative_attention_num_buckets"], value["relative_attention_max_distance"]),
            bias=False,
            score_scale=1.0,
        ),
        feed_forward=models.FeedForwardConfig(value["d_ff"], activation, bias=False, gated=gated),
        stack=models.StackConfig(value["num_layers"]),
        decoder_stack=models.StackConfig(value["num_decoder_layers"]),
        norm=models.NormConfig(value["layer_norm_epsilon"], kind="rms"),
        # Older files have no `scale_decoder_outputs`: there it was the tied head that was scaled.
        head=models.VocabularyHead(tied, scale_by_width=bool(config.get("scale_decoder_outputs", tied))),
        dropout=models.DropoutConfig(broadcast=True).all_at(value["dropout_rate"]),
        initializer=models.FanInConfig(),
    )


def to_config(model: models.EncoderDecoderConfig) -> dict[str, Any]:
    """The `config.json` of a T5 with these settings; one dropout rate stands for all, and no initialiser is kept."""
    attention, feed_forward = model.attention, model.feed_forward
    wanted = feed_forward.activation, feed_forward.gated
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": model.embedding.vocab_size,
        "d_model": model.embedding.width,
        "d_kv": attention.head_dim,
        "d_ff": feed_forward.width,
        "num_layers": model.stack.layers,
        "num_decoder_layers": model.decoder_stack.layers,
        "num_heads": attention.heads,
        "relative_attention_num_buckets": getattr(attention.position, "buckets", 32),
        "relative_attention_max_distance": getattr(attention.position, "max_distance", 128),
        "dropout_rate": model.dropout.residual,
        "layer_norm_epsilon": model.norm.epsilon,
        "feed_forward_proj": name_of(wanted, FEED_FORWARDS) if wanted in FEED_FORWARDS.values() else "relu",
        "scale_decoder_outputs": model.head.scale_by_width,
        "tie_word_embeddings": model.head.tied,
    }


def tokenizer_config(files: list[bytes], special_ids: Mapping[str, Any]) -> dict[str, Any]:
    """How many sentinels there are above the pieces."""
    return {"tokenizer_class": "T5Tokenizer", "extra_ids": special_ids.get("sentinels", 0)}


def special_ids(files: list[bytes], tokenizer_config: Mapping[str, Any]) -> dict[str, Any]:
    """How many sentinels there are above the pieces; 100 where nothing is said, as `T5Tokenizer` has it."""
    return {"sentinels": tokenizer_config.get("extra_ids", 100)}


FAMILY = Family(
    name="T5",
    model_type="t5",
    kind=models.EncoderDecoderConfig.kind,
    prefix="",
    tensors=TENSORS,
    # The first checkpoints hold a table for the attention to the memory that nothing uses.
    buffers=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    to_settings=to_settings,
    to_config=to_config,
    vocabulary_files={"sentencepiece": ("spiece.model",)},
    tokenizer_config=tokenizer_config,
    special_ids=special_ids,
    start="pad_token_id",
    copies={f"{stack}.embed_tokens.weight": "shared.weight" for stack in ("encoder", "decoder")},
)
