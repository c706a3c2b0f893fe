"""MPNet (Song et al. 2020) in Hugging Face's format: `MPNetForMaskedLM` and `MPNetModel`.

The model is a RoBERTa without token types. A relative position bias is added to the attention scores. All layers share
this bias.
"""

from dataclasses import dataclass, replace

from typing_extensions import override

from plm_jax import models
from plm_jax.hub import bert, roberta
from plm_jax.hub.family import TaskLayout, Tensor, attention, dense, norm, task_layouts, unembedding
from plm_jax.hub.fields import Fixed, activation, changed

PADDING = 1  # Row of padding in the table of positions, whatever the field `pad_token_id`.
LAYER, BLOCKS = "mpnet.encoder.layer.{layer}", "stack/blocks"


@dataclass(frozen=True)
class PositionsAfterFirstRows(roberta.PositionsAfterPadding):
    """Number of rows of the position table. The first two rows do not belong to any position."""

    @override
    def values(self, config):
        return super().values({**config, "pad_token_id": PADDING})


class MpnetFamily(bert.WordPieceFamily):
    """MPNet. The masked LM head always uses the exact GELU, even if the layers use another activation."""

    kind = "mpnet"
    name = "MPNet"
    base = replace(
        bert.BASE,
        attention=replace(bert.BASE.attention, position=models.LearnedRelativeBias(1, offset=2, skips_padding=True)),
        initializer=models.InitializerConfig(),
    )
    fields = changed(
        bert.BertFamily.fields,
        activation("hidden_act", "gelu"),
        PositionsAfterFirstRows(),
        # `transformers` divides distances into 32 buckets, whatever the field.
        Fixed("relative_attention_num_buckets", 32),
        without=("type_vocab_size", "is_decoder", "position_embedding_type"),
        vocab_size=30527,
    )
    prefix = "mpnet."
    tensors = (
        Tensor("mpnet.embeddings.word_embeddings.weight", ("token_embedding",)),
        Tensor("mpnet.embeddings.position_embeddings.weight", ("position_embedding",)),
        *norm("mpnet.embeddings.LayerNorm", "embedding_norm"),
        Tensor("mpnet.encoder.relative_attention_bias.weight", ("stack/relative_bias",)),
        *attention(f"{LAYER}.attention.attn", f"{BLOCKS}/attention", "q", "k", "v", "o"),
        *norm(f"{LAYER}.attention.LayerNorm", f"{BLOCKS}/attention_norm"),
        *dense(f"{LAYER}.intermediate.dense", f"{BLOCKS}/feed_forward/up"),
        *dense(f"{LAYER}.output.dense", f"{BLOCKS}/feed_forward/down"),
        *norm(f"{LAYER}.output.LayerNorm", f"{BLOCKS}/feed_forward_norm"),
        *dense("mpnet.pooler.dense", "pooler"),
        *dense("lm_head.dense", "head_transform"),
        *norm("lm_head.layer_norm", "head_norm"),
        *unembedding("lm_head"),
    )
    buffers = bert.BUFFERS
    copies = {"lm_head.decoder.bias": "lm_head.bias"}
    symbols = {"bos": "<s>", "eos": "</s>", "pad": "<pad>", "mask": "<mask>"}
    tokenizer_class = "MPNetTokenizer"
    # The heads have the dropout rate of the model.
    tasks = task_layouts(
        TaskLayout(
            "classifier.out_proj", {"feature": "first", "transform": "tanh"}, "classifier.dense", drops_input=True
        ),
        tags=TaskLayout("classifier"),
        span=TaskLayout("qa_outputs", default=0.0),
        choice=TaskLayout("classifier", {"feature": "pooler"}),
    )
    task_class = "MPNet"
    other_heads = bert.OTHER_HEADS

    @override
    def architecture(self, model):
        return f"MPNet{'ForMaskedLM' if bert.has_head(model) else 'Model'}"
