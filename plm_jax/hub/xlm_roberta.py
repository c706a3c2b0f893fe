"""XLM-R (Conneau et al. 2020, Goyal et al. 2021) and CamemBERT (Martin et al. 2020) in Hugging Face's format.

The models are RoBERTas with another vocabulary: a SentencePiece model in `tokenizer.json`. The ids in `tokenizer.json`
are shifted relative to the ids in the SentencePiece file, because the special tokens come first. The sizes XL and XXL
have norms before the sub-layers and after the last layer, and no norm after the embeddings.
"""

from dataclasses import replace

from plm_jax.hub import bert
from plm_jax.hub.family import norm
from plm_jax.hub.fields import changed
from plm_jax.hub.roberta import HEADS, RobertaFamily


class XlmRobertaFamily(RobertaFamily):
    """XLM-R in the sizes base and large."""

    kind = "xlm-roberta"
    name = "XLM-R"
    vocabulary_files = {}
    tokenizer_class = "XLMRobertaTokenizer"
    task_class = "XLMRoberta"


class XlmRobertaXlFamily(XlmRobertaFamily):
    """XLM-R in the sizes XL and XXL."""

    kind = "xlm-roberta-xl"
    name = "XLM-R XL"
    base = replace(
        RobertaFamily.base,
        embedding=replace(RobertaFamily.base.embedding, norm=False),
        norm=replace(RobertaFamily.base.norm, placement="pre"),
    )
    fields = changed(
        RobertaFamily.fields,
        vocab_size=250880,
        type_vocab_size=1,
        hidden_size=2560,
        num_hidden_layers=36,
        num_attention_heads=32,
        intermediate_size=10240,
        max_position_embeddings=514,
        layer_norm_eps=1e-5,
    )
    tensors = (
        *bert.embeddings("roberta"),
        *bert.layers("roberta", "attention.self_attn_layer_norm", "LayerNorm"),
        *norm("roberta.encoder.LayerNorm", "stack/final_norm"),
        *HEADS,
    )
    task_class = "XLMRobertaXL"


class CamembertFamily(RobertaFamily):
    """CamemBERT."""

    kind = "camembert"
    name = "CamemBERT"
    vocabulary_files = {}
    tokenizer_class = "CamembertTokenizer"
    task_class = "Camembert"
