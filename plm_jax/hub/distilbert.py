"""DistilBERT (Sanh et al. 2019) as Hugging Face keeps it: `DistilBertForMaskedLM`, and `DistilBertModel`.

It is BERT without token types and pooler, under other names.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plm_jax import models
from plm_jax.hub import bert
from plm_jax.hub.family import Family, TaskLayout, Tensor, dense, norm, task_layouts, values

LAYER, BLOCKS = "distilbert.transformer.layer.{layer}", "stack/blocks"
TENSORS = (
    *bert.embeddings("distilbert"),
    *dense(f"{LAYER}.attention.q_lin", f"{BLOCKS}/attention/query"),
    *dense(f"{LAYER}.attention.k_lin", f"{BLOCKS}/attention/key"),
    *dense(f"{LAYER}.attention.v_lin", f"{BLOCKS}/attention/value"),
    *dense(f"{LAYER}.attention.out_lin", f"{BLOCKS}/attention/out"),
    *norm(f"{LAYER}.sa_layer_norm", f"{BLOCKS}/attention_norm"),
    *dense(f"{LAYER}.ffn.lin1", f"{BLOCKS}/feed_forward/up"),
    *dense(f"{LAYER}.ffn.lin2", f"{BLOCKS}/feed_forward/down"),
    *norm(f"{LAYER}.output_layer_norm", f"{BLOCKS}/feed_forward_norm"),
    *dense("vocab_transform", "head_transform"),
    *norm("vocab_layer_norm", "head_norm"),
    Tensor("vocab_projector.weight", ("head",)),
    Tensor("vocab_projector.bias", ("head_bias",)),
)

# What `DistilBertConfig` takes where `config.json` says nothing.
DEFAULTS = {
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "n_layers": 6,
    "n_heads": 12,
    "dim": 768,
    "hidden_dim": 3072,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation": "gelu",
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
}
# What BERT's `config.json` calls the same.
NAMES = {
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "activation": "hidden_act",
}


def to_settings(config: Mapping[str, Any]) -> models.EncoderConfig:
    """The settings that a DistilBERT `config.json` describes; errors as `bert.to_settings`."""
    value = values(config, DEFAULTS)
    model = bert.to_settings({NAMES.get(name, name): value[name] for name in DEFAULTS})
    return replace(model, embedding=replace(model.embedding, token_types=0), pooler=models.NoHead())


def to_config(model: models.EncoderConfig) -> dict[str, Any]:
    """The `config.json` of a DistilBERT with these settings."""
    config, has_head = bert.to_config(model), isinstance(model.head, models.VocabularyHead)
    return {
        "architectures": ["DistilBertForMaskedLM" if has_head else "DistilBertModel"],
        "model_type": "distilbert",
        **{name: config[NAMES.get(name, name)] for name in DEFAULTS},
    }


OF_TEXT = TaskLayout(
    "classifier",
    {"feature": "first", "transform": "relu"},
    "pre_classifier",
    rate="seq_classif_dropout",
    default=0.2,
)

FAMILY = Family(
    name="DistilBERT",
    model_type="distilbert",
    kind=models.EncoderConfig.kind,
    prefix="distilbert.",
    tensors=TENSORS,
    buffers=bert.BUFFERS,
    to_settings=to_settings,
    to_config=to_config,
    vocabulary_files=bert.FAMILY.vocabulary_files,
    tokenizer_config=lambda *given: bert.tokenizer_config(*given) | {"tokenizer_class": "DistilBertTokenizer"},
    special_ids=bert.special_ids,
    tasks=task_layouts(
        OF_TEXT,
        tags=TaskLayout("classifier"),
        span=TaskLayout("qa_outputs", rate="qa_dropout", default=0.1),
        choice=OF_TEXT,
    ),
    task_class="DistilBert",
    other_heads=bert.OTHER_HEADS,
)
