"""BART (Lewis et al. 2020) as Hugging Face keeps it: `BartForConditionalGeneration`, and `BartModel`.

Its dense layers are torch's `Linear`, stored [out, in]. The bias of its head is no parameter there but a buffer, 0 in
the published models; it becomes a parameter of ours only where it is not 0.
"""

from collections.abc import Mapping
from typing import Any

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub import roberta
from plm_jax.hub.family import (
    ACTIVATIONS,
    Family,
    TaskLayout,
    Tensor,
    dense,
    known,
    name_of,
    norm,
    task_layouts,
    values,
)


def _attention(name: str, path: str) -> tuple[Tensor, ...]:
    parts = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}
    return tuple(tensor for a, b in parts.items() for tensor in dense(f"{name}.{a}", f"{path}/{b}"))


def _stack(stack: str) -> tuple[Tensor, ...]:
    """The tensors of a stack and of its embeddings."""
    layer, blocks = f"model.{stack}.layers.{{layer}}", f"{stack}/blocks"
    return (
        Tensor(f"model.{stack}.embed_positions.weight", (f"{stack}_position_embedding",)),
        *norm(f"model.{stack}.layernorm_embedding", f"{stack}_embedding_norm"),
        *_attention(f"{layer}.self_attn", f"{blocks}/attention"),
        *norm(f"{layer}.self_attn_layer_norm", f"{blocks}/attention_norm"),
        *_attention(f"{layer}.encoder_attn", f"{blocks}/cross_attention"),
        *norm(f"{layer}.encoder_attn_layer_norm", f"{blocks}/cross_attention_norm"),
        *dense(f"{layer}.fc1", f"{blocks}/feed_forward/up"),
        *dense(f"{layer}.fc2", f"{blocks}/feed_forward/down"),
        *norm(f"{layer}.final_layer_norm", f"{blocks}/feed_forward_norm"),
    )


TENSORS = (
    Tensor("model.shared.weight", ("token_embedding",)),
    *_stack("encoder"),
    *_stack("decoder"),
    Tensor("lm_head.weight", ("head",)),
    Tensor("final_logits_bias", ("head_bias",), as_row=True),
)

# What `BartConfig` takes where `config.json` says nothing.
DEFAULTS = {
    "vocab_size": 50265,
    "d_model": 1024,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "activation_function": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "max_position_embeddings": 1024,
    "init_std": 0.02,
    "scale_embedding": False,
    "tie_word_embeddings": True,
}
# Rows of the table of positions before the first one's.
OFFSET = 2


def to_settings(config: Mapping[str, Any]) -> models.EncoderDecoderConfig:
    """The settings that a BART `config.json` describes.

    Raises:
      UserError: a size that is no positive integer, a rate that is no number, heads that do not divide the width, or an
        activation that we lack.
    """
    value = values(config, DEFAULTS)
    width, std = value["d_model"], value["init_std"]
    (heads, decoder_heads), (feed_forward, decoder_feed_forward) = (
        (value[f"encoder_{name}"], value[f"decoder_{name}"]) for name in ("attention_heads", "ffn_dim")
    )
    for stack, number in (("encoder", heads), ("decoder", decoder_heads)):
        if width % number:
            raise UserError(
                f"config.json: {stack}_attention_heads {number} does not divide d_model {width}: change one"
            )
    position = models.LearnedPositions(value["max_position_embeddings"], init_std=std, offset=OFFSET)
    activation = known("activation_function", value["activation_function"], ACTIVATIONS)
    return models.EncoderDecoderConfig(
        embedding=models.EmbeddingConfig(
            value["vocab_size"], width, norm=True, scale_by_width=bool(value["scale_embedding"])
        ),
        attention=models.AttentionConfig(heads, width // heads, position),
        feed_forward=models.FeedForwardConfig(feed_forward, activation),
        stack=models.StackConfig(value["encoder_layers"]),
        decoder_stack=models.StackConfig(value["decoder_layers"]),
        decoder_heads=None if decoder_heads == heads else decoder_heads,
        decoder_head_dim=None if decoder_heads == heads else width // decoder_heads,
        decoder_feed_forward=None if decoder_feed_forward == feed_forward else decoder_feed_forward,
        norm=models.NormConfig(1e-5, placement="post"),
        head=models.VocabularyHead(bool(value["tie_word_embeddings"])),
        dropout=models.DropoutConfig(
            embedding=value["dropout"],
            attention=value["attention_dropout"],
            residual=value["dropout"],
            feed_forward=value["activation_dropout"],
        ),
        initializer=models.InitializerConfig(std),
    )


def to_config(model: models.EncoderDecoderConfig) -> dict[str, Any]:
    """The `config.json` of a BART with these settings; one dropout rate stands for embeddings and sub-layers.

    It always says that embeddings are tied: else `transformers` looks for a table of tokens in each stack too. A head
    of its own is seen in the weights.
    """
    decoder = model.decoder_model
    return {
        "architectures": ["BartForConditionalGeneration"],
        "model_type": "bart",
        "is_encoder_decoder": True,
        "vocab_size": model.embedding.vocab_size,
        "d_model": model.embedding.width,
        "encoder_layers": model.stack.layers,
        "decoder_layers": model.decoder_stack.layers,
        "encoder_attention_heads": model.attention.heads,
        "decoder_attention_heads": decoder.attention.heads,
        "encoder_ffn_dim": model.feed_forward.width,
        "decoder_ffn_dim": decoder.feed_forward.width,
        "activation_function": name_of(model.feed_forward.activation),
        "dropout": model.dropout.residual,
        "attention_dropout": model.dropout.attention,
        "activation_dropout": model.dropout.feed_forward,
        "max_position_embeddings": getattr(model.attention.position, "length", DEFAULTS["max_position_embeddings"]),
        "init_std": getattr(model.initializer, "std", DEFAULTS["init_std"]),
        "scale_embedding": model.embedding.scale_by_width,
        "tie_word_embeddings": True,
    }


FAMILY = Family(
    name="BART",
    model_type="bart",
    kind=models.EncoderDecoderConfig.kind,
    prefix="model.",
    tensors=TENSORS,
    buffers=r"final_logits_bias|(encoder|decoder)\.version",
    to_settings=to_settings,
    to_config=to_config,
    vocabulary_files={"bpe": ("vocab.json", "merges.txt")},
    tokenizer_config=lambda files, special_ids: {"tokenizer_class": "BartTokenizer"},
    special_ids=roberta.special_ids,
    start="eos_token_id",
    copies={f"model.{stack}.embed_tokens.weight": "model.shared.weight" for stack in ("encoder", "decoder")},
    tasks=task_layouts(
        TaskLayout(
            "classification_head.out_proj",
            {"feature": "last", "transform": "tanh"},
            "classification_head.dense",
            rate="classifier_dropout",
            default=0.0,
            drops_input=True,
        ),
        span=TaskLayout("qa_outputs", default=0.0),
    ),
    task_class="Bart",
    other_heads=r"(classification_head|qa_outputs)\..*",
)
