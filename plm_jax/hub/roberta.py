"""RoBERTa (Liu et al. 2019) as Hugging Face keeps it: `RobertaForMaskedLM`, and `RobertaModel`.

Its layers are BERT's. Positions count real tokens alone, from the row after that of the padding's id on.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plm_jax import models
from plm_jax.common import strict_json
from plm_jax.common.errors import UserError, one_line
from plm_jax.hub import bert
from plm_jax.hub.family import Family, TaskLayout, check, check_size, dense, norm, unembedding

TENSORS = (
    *bert.embeddings("roberta"),
    *bert.layers("roberta"),
    *dense("roberta.pooler.dense", "pooler"),
    *dense("lm_head.dense", "head_transform"),
    *norm("lm_head.layer_norm", "head_norm"),
    *unembedding("lm_head"),
)

# What `RobertaConfig` takes where `config.json` says nothing.
DEFAULTS = bert.DEFAULTS | {"vocab_size": 50265, "pad_token_id": 1}


def to_settings(config: Mapping[str, Any]) -> models.EncoderConfig:
    """The settings that a RoBERTa `config.json` describes; its head has the exact GELU whatever its layers have.

    Raises:
      UserError: as `bert.to_settings`; a padding id that leaves no position.
    """
    value = {**DEFAULTS, **config}
    rows, pad = value["max_position_embeddings"], value["pad_token_id"]
    check_size("max_position_embeddings", rows)
    check("pad_token_id", pad, type(pad) is int and 0 <= pad < rows - 1, f"an id from 0 to {rows - 2}")
    model, offset = bert.to_settings(value), pad + 1
    position = replace(model.attention.position, length=rows - offset, offset=offset, skips_padding=True)
    return replace(
        model,
        attention=replace(model.attention, position=position),
        head=replace(model.head, transform="gelu_exact"),
        initializer=replace(model.initializer, truncated=False),
    )


def to_config(model: models.EncoderConfig) -> dict[str, Any]:
    """The `config.json` of a RoBERTa with these settings, and the padding's id, from which positions follow."""
    config, offset = bert.to_config(model), max(1, getattr(model.attention.position, "offset", 1))
    return config | {
        "architectures": ["RobertaForMaskedLM" if isinstance(model.head, models.VocabularyHead) else "RobertaModel"],
        "model_type": "roberta",
        "max_position_embeddings": config["max_position_embeddings"] + offset,
        "pad_token_id": offset - 1,
    }


def special_ids(files: list[bytes], tokenizer_config: Mapping[str, Any]) -> dict[str, Any]:
    """Where vocab.json has the mask; `config.json` has the tokens that frame a text, `<s>` and `</s>`."""
    try:
        ids = strict_json.loads(files[0])
    except ValueError as error:
        raise UserError(f"vocab.json is damaged ({one_line(error)}): fetch it again") from error
    return {"mask_token_id": ids["<mask>"]} if "<mask>" in ids else {}


FAMILY = Family(
    name="RoBERTa",
    model_type="roberta",
    kind=models.EncoderConfig.kind,
    prefix="roberta.",
    tensors=TENSORS,
    buffers=bert.BUFFERS,
    to_settings=to_settings,
    to_config=to_config,
    vocabulary_files={"bpe": ("vocab.json", "merges.txt")},
    tokenizer_config=lambda files, special_ids: {"tokenizer_class": "RobertaTokenizer"},
    special_ids=special_ids,
    copies={"lm_head.decoder.bias": "lm_head.bias"},
    tasks=bert.tasks(
        "classifier_dropout",
        bert.transformed("tanh", "classifier_dropout"),
        choice=TaskLayout("classifier", {"feature": "pooler"}),
    ),
    task_class="Roberta",
    other_heads=bert.OTHER_HEADS,
)
