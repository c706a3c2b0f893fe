"""ELECTRA (Clark et al. 2020) in Hugging Face's format: `ElectraForPreTraining` and `ElectraForMaskedLM`.

A directory contains either a discriminator or a generator. Both models are BERTs with other heads, and their embedding
tables may be narrower than their layers.
"""

from dataclasses import replace

from typing_extensions import override

from plm_jax import models
from plm_jax.hub import bert
from plm_jax.hub.family import TaskLayout, Tensor, dense, norm
from plm_jax.hub.fields import Field, activation, changed


class ElectraFamily(bert.WordPieceFamily):
    """ELECTRA. The generator's head always uses the exact GELU, even if the layers use another activation."""

    kind = "electra"
    name = "ELECTRA"
    base = replace(bert.BASE, pooler=models.NoHead(), discriminator=models.Discriminator())
    fields = changed(
        bert.BertFamily.fields,
        activation("hidden_act", "gelu", "discriminator.activation"),
        Field("embedding_size", "embedding.embedding_size", 128, same_as="hidden_size"),
        hidden_size=256,
        num_attention_heads=4,
        intermediate_size=1024,
    )
    prefix = "electra."
    tensors = (
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
    buffers = bert.BUFFERS
    tasks = bert.encoder_tasks(
        "classifier_dropout",
        bert.transformed("gelu_exact", "classifier_dropout"),
        choice=TaskLayout(
            "classifier",
            {"feature": "first", "transform": "gelu_exact"},
            "sequence_summary.summary",
            rate="summary_last_dropout",
            default=0.1,
        ),
    )
    task_class = "Electra"
    other_heads = bert.OTHER_HEADS

    @override
    def architecture(self, model):
        if isinstance(model.discriminator, models.Discriminator):
            return "ElectraForPreTraining"
        return "ElectraForMaskedLM" if bert.has_head(model) else "ElectraModel"
