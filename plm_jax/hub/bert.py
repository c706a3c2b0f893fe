"""BERT (Devlin et al. 2019) as Hugging Face keeps it: `BertForPreTraining` and all models that hold part of it.

Its dense layers are torch's `Linear`, stored [out, in].
"""

from collections.abc import Mapping
from typing import Any

from plm_jax import models
from plm_jax.common import wordpiece
from plm_jax.common.errors import UserError
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
    unembedding,
    values,
)


def embeddings(prefix: str) -> tuple[Tensor, ...]:
    """The tensors of the tables, as BERT and its kin call them."""
    return (
        Tensor(f"{prefix}.embeddings.word_embeddings.weight", ("token_embedding",)),
        Tensor(f"{prefix}.embeddings.position_embeddings.weight", ("position_embedding",)),
        Tensor(f"{prefix}.embeddings.token_type_embeddings.weight", ("token_type_embedding",)),
        *norm(f"{prefix}.embeddings.LayerNorm", "embedding_norm"),
    )


def layers(prefix: str) -> tuple[Tensor, ...]:
    """The tensors of the blocks, as BERT and its closest kin call them."""
    layer, blocks = f"{prefix}.encoder.layer.{{layer}}", "stack/blocks"
    return (
        *dense(f"{layer}.attention.self.query", f"{blocks}/attention/query"),
        *dense(f"{layer}.attention.self.key", f"{blocks}/attention/key"),
        *dense(f"{layer}.attention.self.value", f"{blocks}/attention/value"),
        *dense(f"{layer}.attention.output.dense", f"{blocks}/attention/out"),
        *norm(f"{layer}.attention.output.LayerNorm", f"{blocks}/attention_norm"),
        *dense(f"{layer}.intermediate.dense", f"{blocks}/feed_forward/up"),
        *dense(f"{layer}.output.dense", f"{blocks}/feed_forward/down"),
        *norm(f"{layer}.output.LayerNorm", f"{blocks}/feed_forward_norm"),
    )


TENSORS = (
    *embeddings("bert"),
    *layers("bert"),
    *dense("bert.pooler.dense", "pooler"),
    *dense("cls.seq_relationship", "classifier"),
    *dense("cls.predictions.transform.dense", "head_transform"),
    *norm("cls.predictions.transform.LayerNorm", "head_norm"),
    *unembedding("cls.predictions"),
)

# What `BertConfig` takes where `config.json` says nothing.
DEFAULTS = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "is_decoder": False,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
}

BUFFERS = r"embeddings\.(position_ids|token_type_ids)"
OTHER_HEADS = r"(pre_classifier|classifier|qa_outputs|sequence_summary)\..*"


def tasks(rate: str, text: TaskLayout | None = None, **others: TaskLayout) -> dict[str, TaskLayout]:
    """The heads of tasks, a text's by default over the pooler; `rate` is what `config.json` calls their dropout's."""
    pooled = TaskLayout("classifier", {"feature": "pooler"}, rate=rate)
    tags, span = TaskLayout("classifier", rate=rate), TaskLayout("qa_outputs", default=0.0)
    return task_layouts(text or pooled, **{"tags": tags, "span": span, "choice": pooled} | others)


def transformed(activation: str, rate: str) -> TaskLayout:
    """A text's head with a dense layer of its own on the first token."""
    fields = {"feature": "first", "transform": activation}
    return TaskLayout("classifier.out_proj", fields, "classifier.dense", rate, drops_input=True)


# By whether there are a masked LM head and a pair classifier.
ARCHITECTURES = {
    (True, True): "BertForPreTraining",
    (True, False): "BertForMaskedLM",
    (False, True): "BertForNextSentencePrediction",
    (False, False): "BertModel",
}


def to_settings(config: Mapping[str, Any]) -> models.EncoderConfig:
    """The settings that a BERT `config.json` describes, with both heads.

    Raises:
      UserError: a size that is no positive integer, a rate that is no number, heads that do not divide the width, a
        decoder, relative positions, or an activation that we lack.
    """
    value = values(config, DEFAULTS)
    width, heads, std = value["hidden_size"], value["num_attention_heads"], value["initializer_range"]
    if width % heads:
        raise UserError(f"config.json: num_attention_heads {heads} does not divide hidden_size {width}: change one")
    if value["is_decoder"]:
        raise UserError("config.json: is_decoder is true: only an encoder can be read")
    if value["position_embedding_type"] != "absolute":
        kind = value["position_embedding_type"]
        raise UserError(f"config.json: position_embedding_type is '{kind}': only 'absolute' can be read")
    activation = known("hidden_act", value["hidden_act"], ACTIVATIONS)
    return models.EncoderConfig(
        embedding=models.EmbeddingConfig(value["vocab_size"], width, token_types=value["type_vocab_size"], norm=True),
        attention=models.AttentionConfig(
            heads, width // heads, models.LearnedPositions(value["max_position_embeddings"], init_std=std)
        ),
        feed_forward=models.FeedForwardConfig(value["intermediate_size"], activation),
        stack=models.StackConfig(value["num_hidden_layers"]),
        norm=models.NormConfig(value["layer_norm_eps"], placement="post"),
        head=models.VocabularyHead(bool(value["tie_word_embeddings"]), transform=activation, bias=True),
        pooler=models.Pooler(),
        dropout=models.DropoutConfig(
            embedding=value["hidden_dropout_prob"],
            attention=value["attention_probs_dropout_prob"],
            residual=value["hidden_dropout_prob"],
        ),
        initializer=models.InitializerConfig(std, truncated=True),
    )


def to_config(model: models.EncoderConfig) -> dict[str, Any]:
    """The `config.json` of a BERT with these settings; one dropout rate stands for embeddings and sub-layers."""
    has_head, pooler = isinstance(model.head, models.VocabularyHead), model.pooler
    return {
        "architectures": [ARCHITECTURES[has_head, isinstance(pooler, models.Pooler) and pooler.classes > 0]],
        "model_type": "bert",
        "vocab_size": model.embedding.vocab_size,
        "hidden_size": model.embedding.width,
        "num_hidden_layers": model.stack.layers,
        "num_attention_heads": model.attention.heads,
        "intermediate_size": model.feed_forward.width,
        "hidden_act": name_of(model.feed_forward.activation),
        "hidden_dropout_prob": model.dropout.residual,
        "attention_probs_dropout_prob": model.dropout.attention,
        "max_position_embeddings": getattr(model.attention.position, "length", DEFAULTS["max_position_embeddings"]),
        "type_vocab_size": max(1, model.embedding.token_types),
        "initializer_range": getattr(model.initializer, "std", DEFAULTS["initializer_range"]),
        "layer_norm_eps": model.norm.epsilon,
        "tie_word_embeddings": not has_head or model.head.tied,
    }


SYMBOLS = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def tokenizer_config(files: list[bytes], special_ids: Mapping[str, Any]) -> dict[str, Any]:
    """Whether text is lower-cased, which vocab.txt alone does not always tell."""
    uncased = wordpiece.is_uncased(wordpiece.read(files[0]))
    return {"tokenizer_class": "BertTokenizer", "do_lower_case": special_ids.get("lowercase", uncased)}


def special_ids(files: list[bytes], tokenizer_config: Mapping[str, Any]) -> dict[str, Any]:
    """Where vocab.txt has the tokens that frame a text and the mask, and whether text is lower-cased."""
    tokens = wordpiece.read(files[0])
    ids = {token: i for i, token in enumerate(tokens)}
    found = {f"{name}_token_id": ids[symbol] for name, symbol in SYMBOLS.items() if symbol in ids}
    return found | {"lowercase": bool(tokenizer_config.get("do_lower_case", wordpiece.is_uncased(tokens)))}


FAMILY = Family(
    name="BERT",
    model_type="bert",
    kind=models.EncoderConfig.kind,
    prefix="bert.",
    tensors=TENSORS,
    buffers=BUFFERS,
    to_settings=to_settings,
    to_config=to_config,
    vocabulary_files={"wordpiece": ("vocab.txt",)},
    tokenizer_config=tokenizer_config,
    special_ids=special_ids,
    copies={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    old_endings={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    tasks=tasks("classifier_dropout"),
    task_class="Bert",
    other_heads=OTHER_HEADS,
)
