"""T5 (Raffel et al. 2020), 1.0 and 1.1, in Hugging Face's format: `T5ForConditionalGeneration` and `T5Model`.

Dense layers are torch's `Linear`, stored [out, in]. The first block of a stack contains the relative position bias of
the whole stack.
"""

from typing_extensions import override

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub.family import Family, Tensor, attention
from plm_jax.hub.fields import ACTIVATIONS, Field, Written


def _stack(stack: str, feed_forward: int) -> tuple[Tensor, ...]:
    """Returns the tensors of the encoder or the decoder.

    Args:
      stack: `encoder` or `decoder`.
      feed_forward: index of the feed-forward sub-layer in a block.
    """
    layer, blocks = f"{stack}.block.{{layer}}.layer", f"{stack}/blocks"
    wide, gate = f"{layer}.{feed_forward}.DenseReluDense", f"{blocks}/feed_forward/gate/kernel"
    up = (f"{blocks}/feed_forward/up/kernel",)
    return (
        *attention(f"{layer}.0.SelfAttention", f"{blocks}/attention", "q", "k", "v", "o"),
        Tensor(f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", (f"{stack}/relative_bias",)),
        Tensor(f"{layer}.0.layer_norm.weight", (f"{blocks}/attention_norm/scale",)),
        *attention(f"{layer}.1.EncDecAttention", f"{blocks}/cross_attention", "q", "k", "v", "o"),
        Tensor(f"{layer}.1.layer_norm.weight", (f"{blocks}/cross_attention_norm/scale",)),
        Tensor(f"{wide}.wi.weight", up, transposed=True, applies=lambda parameters: gate not in parameters),
        Tensor(f"{wide}.wi_0.weight", (gate,), transposed=True),
        Tensor(f"{wide}.wi_1.weight", up, transposed=True, applies=lambda parameters: gate in parameters),
        Tensor(f"{wide}.wo.weight", (f"{blocks}/feed_forward/down/kernel",), transposed=True),
        Tensor(f"{layer}.{feed_forward}.layer_norm.weight", (f"{blocks}/feed_forward_norm/scale",)),
        Tensor(f"{stack}.final_layer_norm.weight", (f"{stack}/final_norm/scale",)),
    )


# `feed_forward_proj` → activation, gated. In a gated feed-forward, Hugging Face's "gelu" is the tanh form.
FEED_FORWARDS = {
    **{name: (activation, False) for name, activation in ACTIVATIONS.items()},
    "gated-gelu": ("gelu_tanh", True),
    **{f"gated-{name}": (activation, True) for name, activation in ACTIVATIONS.items() if name != "gelu"},
}

ENCODER_ONLY = "T5EncoderModel"


class T5Family(Family):
    """T5. One field of `config.json` sets all dropout rates. The initializer is not read from `config.json`."""

    kind = "t5"
    name = "T5"
    base = models.EncoderDecoderConfig(
        embedding=models.EmbeddingConfig(1, 1),
        attention=models.AttentionConfig(1, 1, models.RelativeBias(), bias=False, score_scale=1.0),
        feed_forward=models.FeedForwardConfig(1, bias=False),
        stack=models.StackConfig(1),
        decoder_stack=models.StackConfig(1),
        norm=models.NormConfig(kind="rms"),
        dropout=models.DropoutConfig(broadcast=True),
        initializer=models.FanInConfig(),
    )
    fields = (
        Written("is_encoder_decoder", True),
        Field("vocab_size", "embedding.vocab_size", 32128),
        Field("d_model", "embedding.width", 512),
        Field("d_kv", "attention.head_dim", 64),
        Field("d_ff", "feed_forward.width", 2048),
        Field("num_layers", "stack.layers", 6),
        Field("num_decoder_layers", "decoder_stack.layers", lambda fields: fields["num_layers"]),
        Field("num_heads", "attention.heads", 8),
        Field("relative_attention_num_buckets", "attention.position.buckets", 32),
        Field("relative_attention_max_distance", "attention.position.max_distance", 128),
        Field("dropout_rate", "dropout.residual", 0.1, also=tuple(f"dropout.{name}" for name in base.dropout.rates)),
        Field("layer_norm_epsilon", "norm.epsilon", 1e-6),
        Field("feed_forward_proj", ("feed_forward.activation", "feed_forward.gated"), "relu", choices=FEED_FORWARDS),
        Field("tie_word_embeddings", "head.tied", True),
        # Older files lack this field and scale a tied head.
        Field(
            "scale_decoder_outputs",
            "head.scale_by_width",
            lambda fields: fields["tie_word_embeddings"],
            value_type=bool,
        ),
    )
    tensors = (
        Tensor("shared.weight", ("token_embedding",)),
        *_stack("encoder", feed_forward=1),
        *_stack("decoder", feed_forward=2),
        Tensor("lm_head.weight", ("head",)),
    )
    # The first checkpoints contain an unused table of the cross-attention.
    buffers = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
    copies = {f"{stack}.embed_tokens.weight": "shared.weight" for stack in ("encoder", "decoder")}
    vocabulary_files = {"sentencepiece": ("spiece.model",)}
    tokenizer_class = "T5Tokenizer"
    start = "pad_token_id"

    @override
    def architecture(self, model):
        return "T5ForConditionalGeneration"

    @override
    def to_settings(self, config):
        if not config.get("is_encoder_decoder", True) or ENCODER_ONLY in (config.get("architectures") or ()):
            raise UserError(f"config.json: a {ENCODER_ONLY} has no decoder: pass a T5 with encoder and decoder")
        return super().to_settings(config)

    @override
    def tokenizer_config(self, files, special_ids):
        return super().tokenizer_config(files, special_ids) | {"extra_ids": special_ids.get("sentinels", 0)}

    @override
    def special_ids(self, files, tokenizer_config):
        # `T5Tokenizer` has 100 sentinels above the pieces by default.
        return {"sentinels": tokenizer_config.get("extra_ids", 100)}
