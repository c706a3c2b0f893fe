"""ELECTRA (Clark et al. 2020) as Hugging Face keeps it: a discriminator, `ElectraForPreTraining`, or a generator,
`ElectraForMaskedLM`, each in a directory of its own.

Both are BERT's but for their heads, and tables that may be narrower than the layers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plm_jax import models
from plm_jax.hub import bert
from plm_jax.hub.family import Family, TaskLayout, Tensor, dense, norm, values

TENSORS = (
    *bert.embeddings("electra"),
    *dense("electra.embeddings_project", "embedding_projection"),
    *bert.layers("electra"),
    *dense("discriminator_predictions.dense", "discriminator_transform"),
    *dense("discriminator_predictions.dense_prediction", "discriminator"),
    *dense("generator_predictions.dense", "head_transform"),
    *norm("generator_predictions.LayerNorm", "head_norm"),
    Tensor("generator_lm_head.weight", ("head",)),
    Tensor("generator_lm_head.bias", ("head_bias",)),
)

# What `ElectraConfig` takes where `config.json` says nothing.
DEFAULTS = bert.DEFAULTS | {
    "embedding_size": 128,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}


def to_settings(config: Mapping[str, Any]) -> models.EncoderConfig:
    """The settings that an ELECTRA `config.json` describes, with both heads.

    Raises:
      UserError: as `bert.to_settings`.
    """
    value = values(config, DEFAULTS)
    model, size = bert.to_settings(value), value["embedding_size"]
    return replace(
        model,
        embedding=replace(model.embedding, embedding_size=None if size == model.embedding.width else size),
        # Whatever `hidden_act` is.
        head=replace(model.head, transform="gelu_exact"),
        pooler=models.NoHead(),
        discriminator=models.Discriminator(model.feed_forward.activation),
    )


def to_config(model: models.EncoderConfig) -> dict[str, Any]:
    """The `config.json` of an ELECTRA with these settings."""
    architecture = "ElectraForMaskedLM" if isinstance(model.head, models.VocabularyHead) else "ElectraModel"
    if isinstance(model.discriminator, models.Discriminator):
        architecture = "ElectraForPreTraining"
    return bert.to_config(model) | {
        "architectures": [architecture],
        "model_type": "electra",
        "embedding_size": model.embedding.columns,
    }


FAMILY = Family(
    name="ELECTRA",
    model_type="electra",
    kind=models.EncoderConfig.kind,
    prefix="electra.",
    tensors=TENSORS,
    buffers=bert.BUFFERS,
    to_settings=to_settings,
    to_config=to_config,
    vocabulary_files={"wordpiece": ("vocab.txt",)},
    tokenizer_config=bert.tokenizer_config,
    special_ids=bert.special_ids,
    tasks=bert.tasks(
        "classifier_dropout",
        bert.transformed("gelu_exact", "classifier_dropout"),
        choice=TaskLayout(
            "classifier",
            {"feature": "first", "transform": "gelu_exact"},
            "sequence_summary.summary",
            rate="summary_last_dropout",
            default=0.1,
        ),
    ),
    task_class="Electra",
    other_heads=bert.OTHER_HEADS,
)
