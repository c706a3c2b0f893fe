"""ERNIE 1.0, 2.0 and 3.0 of Baidu (Sun et al. 2019, 2020, 2021) in Hugging Face's format: `ErnieForPreTraining`.

The models have the architecture of BERT with both heads. Their tensor names have another prefix. ERNIE 2.0 and 3.0 also
have an embedding table for tasks.
"""

from typing_extensions import override

from plm_jax.hub import bert
from plm_jax.hub.family import Tensor
from plm_jax.hub.fields import Entry, check_size


class TaskTypes(Entry):
    """The fields `use_task_id` and `task_type_vocab_size`.

    `use_task_id` is true if the model has an embedding table for tasks. `task_type_vocab_size` is the number of rows of
    this table.
    """

    @override
    def values(self, config):
        values = {"use_task_id": bool(config.get("use_task_id"))}
        values["task_type_vocab_size"] = config.get("task_type_vocab_size", 3)
        if values["use_task_id"]:
            check_size("task_type_vocab_size", values["task_type_vocab_size"])
        return values

    @override
    def settings(self, values):
        return {"embedding.task_types": values["task_type_vocab_size"] if values["use_task_id"] else 0}

    @override
    def fields(self, model, fields):
        number = model.embedding.task_types
        return {"use_task_id": number > 0} | ({"task_type_vocab_size": number} if number else {})


class ErnieFamily(bert.BertFamily):
    """ERNIE."""

    kind = "ernie"
    name = "ERNIE"
    fields = (*bert.BertFamily.fields, TaskTypes())
    prefix = "ernie."
    tensors = (
        *bert.encoder_tensors("ernie"),
        Tensor("ernie.embeddings.task_type_embeddings.weight", ("task_type_embedding",)),
    )
    task_class = "Ernie"
