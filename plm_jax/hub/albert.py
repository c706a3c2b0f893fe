"""ALBERT (Lan et al. 2020) as Hugging Face keeps it: `AlbertForPreTraining` and all models that hold part of it.

Its tables are narrower than its layers, and its layers, BERT's but for their names, are those of a few groups.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub import bert
from plm_jax.hub.family import Family, dense, norm, unembedding, values

LAYER, BLOCKS = "albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}", "stack/blocks"
TENSORS = (
    *bert.embeddings("albert"),
    *dense("albert.encoder.embedding_hidden_mapping_in", "embedding_projection"),
    *dense(f"{LAYER}.attention.query", f"{BLOCKS}/attention/query"),
    *dense(f"{LAYER}.attention.key", f"{BLOCKS}/attention/key"),
    *dense(f"{LAYER}.attention.value", f"{BLOCKS}/attention/value"),
    *dense(f"{LAYER}.attention.dense", f"{BLOCKS}/attention/out"),
    *norm(f"{LAYER}.attention.LayerNorm", f"{BLOCKS}/attention_norm"),
    *dense(f"{LAYER}.ffn", f"{BLOCKS}/feed_forward/up"),
    *dense(f"{LAYER}.ffn_output", f"{BLOCKS}/feed_forward/down"),
    *norm(f"{LAYER}.full_layer_layer_norm", f"{BLOCKS}/feed_forward_norm"),
    *dense("albert.pooler", "pooler"),
    *dense("sop_classifier.classifier", "classifier"),
    *dense("predictions.dense", "head_transform"),
    *norm("predictions.LayerNorm", "head_norm"),
    *unembedding("predictions"),
)

# What `AlbertConfig` takes where `config.json` says nothing.
DEFAULTS = bert.DEFAULTS | {
    "vocab_size": 30000,
    "embedding_size": 128,
    "hidden_size": 4096,
    "num_hidden_groups": 1,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "inner_group_num": 1,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def to_settings(config: Mapping[str, Any]) -> models.EncoderConfig:
    """The settings that an ALBERT `config.json` describes, with both heads.

    Raises:
      UserError: as `bert.to_settings`; groups that do not divide the layers.
    """
    value = values(config, DEFAULTS)
    model, layers, groups = bert.to_settings(value), value["num_hidden_layers"], value["num_hidden_groups"]
    if layers % groups:
        raise UserError(
            f"config.json: num_hidden_groups {groups} does not divide num_hidden_layers {layers}: change one"
        )
    return replace(
        model,
        embedding=replace(model.embedding, embedding_size=value["embedding_size"]),
        stack=models.StackConfig(layers, None if groups == layers else groups, value["inner_group_num"]),
    )


def to_config(model: models.EncoderConfig) -> dict[str, Any]:
    """The `config.json` of an ALBERT with these settings."""
    config, has_head, stack = bert.to_config(model), isinstance(model.head, models.VocabularyHead), model.stack
    whole = has_head and isinstance(model.pooler, models.Pooler) and model.pooler.classes > 0
    return config | {
        "architectures": ["AlbertForPreTraining" if whole else "AlbertForMaskedLM" if has_head else "AlbertModel"],
        "model_type": "albert",
        "embedding_size": model.embedding.columns,
        "num_hidden_groups": stack.layers if stack.groups is None else stack.groups,
        "inner_group_num": stack.inner,
    }


def tokenizer_config(files: list[bytes], special_ids: Mapping[str, Any]) -> dict[str, Any]:
    """Whether text is folded; if nothing tells, spiece.model does."""
    lower = special_ids.get("lowercase", _is_uncased(files))
    return {"tokenizer_class": "AlbertTokenizer", "do_lower_case": lower, "keep_accents": not lower}


def special_ids(files: list[bytes], tokenizer_config: Mapping[str, Any]) -> dict[str, Any]:
    """Where spiece.model has the tokens that frame a text and the mask, and whether text is folded.

    Raises:
      UserError: text is lower-cased with its accents kept, which no vocabulary of ours does.
    """
    ids = {piece.piece: i for i, piece in enumerate(_pieces(files))}
    lower, keeps_accents = tokenizer_config.get("do_lower_case"), tokenizer_config.get("keep_accents")
    lower = _is_uncased(files) if lower is None else bool(lower)
    if lower and keeps_accents:
        raise UserError(
            "tokenizer_config.json has keep_accents with do_lower_case: set keep_accents to false, by which letters "
            "with accents have other ids"
        )
    if not lower and keeps_accents is False:
        warnings.warn(
            "tokenizer_config.json has neither do_lower_case nor keep_accents: here a cased vocabulary keeps accents, "
            "and letters that have them get other ids",
            stacklevel=2,
        )
    found = {f"{name}_token_id": ids[symbol] for name, symbol in bert.SYMBOLS.items() if symbol in ids}
    return found | {"lowercase": lower}


def _is_uncased(files: list[bytes]) -> bool:
    """Whether no piece of text in spiece.model has an upper-case letter."""
    return all(piece.piece == piece.piece.lower() for piece in _pieces(files) if piece.type == piece.NORMAL)


def _pieces(files: list[bytes]):
    # Imported here: only a vocabulary needs protobuf.
    from plm_jax.common import sentence_models

    try:
        return sentence_models.parse(files[0]).pieces
    except ValueError as error:
        raise UserError(f"spiece.model is damaged ({error}): fetch it again") from error


FAMILY = Family(
    name="ALBERT",
    model_type="albert",
    kind=models.EncoderConfig.kind,
    prefix="albert.",
    tensors=TENSORS,
    buffers=bert.BUFFERS,
    to_settings=to_settings,
    to_config=to_config,
    vocabulary_files={"sentencepiece": ("spiece.model",)},
    tokenizer_config=tokenizer_config,
    special_ids=special_ids,
    copies={"predictions.decoder.bias": "predictions.bias"},
    # transformers gives its rate a default of its own.
    tasks={
        kind: layout if kind == "span" else replace(layout, default=0.1)
        for kind, layout in bert.tasks("classifier_dropout_prob").items()
    },
    task_class="Albert",
    other_heads=bert.OTHER_HEADS,
)
