"""GPT-1 (Radford et al. 2018) in Hugging Face's format: `OpenAIGPTLMHeadModel` and `OpenAIGPTModel`.

Dense layers are `Conv1D`, stored [in, out] like ours. Query, key and value are fused along the last axis. The
vocabulary is read only from `tokenizer.json`, which splits text into words like BERT's tokenizer. The paper used spaCy
instead.
"""

from typing_extensions import override

from plm_jax import models
from plm_jax.hub.family import Family, Tensor
from plm_jax.hub.fields import Derived, Field, activation, initializer_range, quotient
from plm_jax.hub.gpt2 import blocks

# Mapping from values of the field `afn` to activations. The value "gelu" stands for the tanh form.
ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


class Gpt1Family(Family):
    """GPT-1. The feed-forward layers are always four times as wide as the model."""

    kind = "openai-gpt"
    name = "GPT-1"
    base = models.DecoderConfig(
        embedding=models.EmbeddingConfig(1, 1),
        attention=models.AttentionConfig(1, 1, models.LearnedPositions(1)),
        feed_forward=models.FeedForwardConfig(1),
        stack=models.StackConfig(1),
        norm=models.NormConfig(placement="post"),
    )
    fields = (
        Field("vocab_size", "embedding.vocab_size", 40478),
        Field("n_positions", "attention.position.length", 512),
        Field("n_embd", "embedding.width", 768),
        Field("n_layer", "stack.layers", 12),
        Field("n_head", "attention.heads", 12),
        Derived("attention.head_dim", quotient("n_embd", "n_head")),
        Derived("feed_forward.width", lambda values: 4 * values["n_embd"]),
        activation("afn", "gelu", names=ACTIVATIONS),
        Field("resid_pdrop", "dropout.residual", 0.1),
        Field("embd_pdrop", "dropout.embedding", 0.1),
        Field("attn_pdrop", "dropout.attention", 0.1),
        Field("layer_norm_epsilon", "norm.epsilon", 1e-5),
        initializer_range("initializer_range", "attention.position.init_std"),
        Field("tie_word_embeddings", "head.tied", True),
    )
    prefix = "transformer."
    tensors = (
        Tensor("transformer.tokens_embed.weight", ("token_embedding",)),
        Tensor("transformer.positions_embed.weight", ("position_embedding",)),
        *blocks(),
        Tensor("lm_head.weight", ("head",)),
    )
    buffers = r"h\.\d+\.attn\.bias|position_ids"
    other_heads = r"(multiple_choice_head|score)\..*"

    @override
    def architecture(self, model):
        return "OpenAIGPTLMHeadModel"
