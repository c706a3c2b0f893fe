"""BART (Lewis et al. 2020) in Hugging Face's format: `BartForConditionalGeneration` and `BartModel`.

Dense layers are torch's `Linear`, stored [out, in]. In `transformers`, the bias of the head is a buffer. This buffer is
0 in the published models. It becomes a parameter of our model only if it is not 0.
"""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from plm_jax import models
from plm_jax.hub import roberta
from plm_jax.hub.family import Family, TaskLayout, Tensor, attention, dense, norm, task_layouts
from plm_jax.hub.fields import Derived, Field, Written, activation, initializer_range, quotient

PROJECTIONS = "q_proj", "k_proj", "v_proj", "out_proj"
# Number of rows of the position table that precede the row of the first position.
OFFSET = 2


def _stack(stack: str) -> tuple[Tensor, ...]:
    """Returns the tensors of the encoder or the decoder, including its position table and its embedding norm."""
    layer, blocks = f"model.{stack}.layers.{{layer}}", f"{stack}/blocks"
    return (
        Tensor(f"model.{stack}.embed_positions.weight", (f"{stack}_position_embedding",)),
        *norm(f"model.{stack}.layernorm_embedding", f"{stack}_embedding_norm"),
        *attention(f"{layer}.self_attn", f"{blocks}/attention", *PROJECTIONS),
        *norm(f"{layer}.self_attn_layer_norm", f"{blocks}/attention_norm"),
        *attention(f"{layer}.encoder_attn", f"{blocks}/cross_attention", *PROJECTIONS),
        *norm(f"{layer}.encoder_attn_layer_norm", f"{blocks}/cross_attention_norm"),
        *dense(f"{layer}.fc1", f"{blocks}/feed_forward/up"),
        *dense(f"{layer}.fc2", f"{blocks}/feed_forward/down"),
        *norm(f"{layer}.final_layer_norm", f"{blocks}/feed_forward_norm"),
    )


def _decoder_head_dim(values: Mapping[str, Any]) -> int | None:
    """Returns the setting `decoder_head_dim`, which is None if the decoder has as many heads as the encoder."""
    heads, decoder_heads = values["encoder_attention_heads"], values["decoder_attention_heads"]
    return None if decoder_heads == heads else quotient("d_model", "decoder_attention_heads")(values)


class BartFamily(Family):
    """BART. Embeddings and sub-layers have the same dropout rate."""

    kind = "bart"
    name = "BART"
    base = models.EncoderDecoderConfig(
        embedding=models.EmbeddingConfig(1, 1, norm=True),
        attention=models.AttentionConfig(1, 1, models.LearnedPositions(1, offset=OFFSET)),
        feed_forward=models.FeedForwardConfig(1),
        stack=models.StackConfig(1),
        decoder_stack=models.StackConfig(1),
        norm=models.NormConfig(placement="post"),
    )
    fields = (
        Written("is_encoder_decoder", True),
        Field("vocab_size", "embedding.vocab_size", 50265),
        Field("d_model", "embedding.width", 1024),
        Field("encoder_layers", "stack.layers", 12),
        Field("decoder_layers", "decoder_stack.layers", 12),
        Field("encoder_attention_heads", "attention.heads", 16),
        Derived("attention.head_dim", quotient("d_model", "encoder_attention_heads")),
        Field("decoder_attention_heads", "decoder_heads", 16, same_as="encoder_attention_heads"),
        Derived("decoder_head_dim", _decoder_head_dim),
        Field("encoder_ffn_dim", "feed_forward.width", 4096),
        Field("decoder_ffn_dim", "decoder_feed_forward", 4096, same_as="encoder_ffn_dim"),
        activation("activation_function", "gelu"),
        Field("dropout", "dropout.residual", 0.1, also=("dropout.embedding",)),
        Field("attention_dropout", "dropout.attention", 0.0),
        Field("activation_dropout", "dropout.feed_forward", 0.0),
        Field("max_position_embeddings", "attention.position.length", 1024),
        initializer_range("init_std", "attention.position.init_std"),
        Field("scale_embedding", "embedding.scale_by_width", False),
        # With false, `transformers` looks for a token table in each stack. The tensors show whether a head is untied.
        Field("tie_word_embeddings", "head.tied", True, write=lambda model: True),
    )
    prefix = "model."
    tensors = (
        Tensor("model.shared.weight", ("token_embedding",)),
        *_stack("encoder"),
        *_stack("decoder"),
        Tensor("lm_head.weight", ("head",)),
        Tensor("final_logits_bias", ("head_bias",), shape=lambda model: (1, -1)),
    )
    buffers = r"final_logits_bias|(encoder|decoder)\.version"
    copies = {f"model.{stack}.embed_tokens.weight": "model.shared.weight" for stack in ("encoder", "decoder")}
    vocabulary_files = {"bpe": ("vocab.json", "merges.txt")}
    tokenizer_class = "BartTokenizer"
    start = "eos_token_id"
    tasks = task_layouts(
        TaskLayout(
            "classification_head.out_proj",
            {"feature": "last", "transform": "tanh"},
            "classification_head.dense",
            rate="classifier_dropout",
            default=0.0,
            drops_input=True,
        ),
        span=TaskLayout("qa_outputs", default=0.0),
    )
    task_class = "Bart"
    other_heads = r"(classification_head|qa_outputs)\..*"

    @override
    def architecture(self, model):
        return "BartForConditionalGeneration"

    @override
    def special_ids(self, files, tokenizer_config):
        return roberta.special_ids(files)
