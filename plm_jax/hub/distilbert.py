"""DistilBERT (Sanh et al. 2019) in Hugging Face's format: `DistilBertForMaskedLM` and `DistilBertModel`.

The model is a BERT without token types and without a pooler. The tensors of the layers and heads have other names.
"""

from dataclasses import replace

from typing_extensions import override

from plm_jax import models
from plm_jax.hub import bert
from plm_jax.hub.family import TaskLayout, Tensor, attention, dense, norm, task_layouts
from plm_jax.hub.fields import Derived, Field, activation, initializer_range, quotient

LAYER, BLOCKS = "distilbert.transformer.layer.{layer}", "stack/blocks"
TEXT_HEAD = TaskLayout(
    "classifier",
    {"feature": "first", "transform": "relu"},
    "pre_classifier",
    rate="seq_classif_dropout",
    default=0.2,
)


class DistilBertFamily(bert.WordPieceFamily):
    """DistilBERT."""

    kind = "distilbert"
    name = "DistilBERT"
    base = replace(bert.BASE, pooler=models.NoHead())
    fields = (
        Field("vocab_size", "embedding.vocab_size", 30522),
        Field("max_position_embeddings", "attention.position.length", 512),
        Field("n_layers", "stack.layers", 6),
        Field("n_heads", "attention.heads", 12),
        Field("dim", "embedding.width", 768),
        Derived("attention.head_dim", quotient("dim", "n_heads")),
        Field("hidden_dim", "feed_forward.width", 3072),
        Field("dropout", "dropout.residual", 0.1, also=("dropout.embedding",)),
        Field("attention_dropout", "dropout.attention", 0.1),
        activation("activation", "gelu", "head.transform"),
        initializer_range("initializer_range", "attention.position.init_std"),
        bert.TIED,
    )
    prefix = "distilbert."
    tensors = (
        *bert.embeddings("distilbert"),
        *attention(f"{LAYER}.attention", f"{BLOCKS}/attention", "q_lin", "k_lin", "v_lin", "out_lin"),
        *norm(f"{LAYER}.sa_layer_norm", f"{BLOCKS}/attention_norm"),
        *dense(f"{LAYER}.ffn.lin1", f"{BLOCKS}/feed_forward/up"),
        *dense(f"{LAYER}.ffn.lin2", f"{BLOCKS}/feed_forward/down"),
        *norm(f"{LAYER}.output_layer_norm", f"{BLOCKS}/feed_forward_norm"),
        *dense("vocab_transform", "head_transform"),
        *norm("vocab_layer_norm", "head_norm"),
        Tensor("vocab_projector.weight", ("head",)),
        Tensor("vocab_projector.bias", ("head_bias",)),
    )
    buffers = bert.BUFFERS
    tokenizer_class = "DistilBertTokenizer"
    tasks = task_layouts(
        TEXT_HEAD,
        tags=TaskLayout("classifier"),
        span=TaskLayout("qa_outputs", rate="qa_dropout", default=0.1),
        choice=TEXT_HEAD,
    )
    task_class = "DistilBert"
    other_heads = bert.OTHER_HEADS

    @override
    def architecture(self, model):
        return "DistilBertForMaskedLM" if bert.has_head(model) else "DistilBertModel"
