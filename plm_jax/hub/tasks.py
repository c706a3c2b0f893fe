"""Task heads in Hugging Face's format: `BertForSequenceClassification` and similar classes.

`architectures` in `config.json` determines the task head of a directory. The tensor names cannot determine it, because
several heads have the same tensor names.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub.family import Family, TaskLayout, Tensor, dense, norm
from plm_jax.hub.fields import check, read, write
from plm_jax.models.heads import TASK, Head
from plm_jax.models.protocol import ModelConfig
from plm_jax.models.task_heads import TaskHead

# Ending of the name of a model's class, by kind of its head.
FORMS = {
    "classes": "ForSequenceClassification",
    "labels": "ForSequenceClassification",
    "score": "ForSequenceClassification",
    "tags": "ForTokenClassification",
    "span": "ForQuestionAnswering",
    "choice": "ForMultipleChoice",
}
PROBLEMS = {
    "classes": "single_label_classification",
    "labels": "multi_label_classification",
    "score": "regression",
}
PATH = f"heads_{TASK}"
Transformer = TypeVar("Transformer", bound=models.TransformerConfig)
# More labels than any task has, except prediction of a vocabulary's tokens.
_MAX_LABELS = 2**20
# Labels in `transformers` of a score that has no name.
_UNNAMED = ("LABEL_0",)


def head_of(model: ModelConfig) -> TaskHead | None:
    """Returns the task head of a model, or None if the model has no task head."""
    head = dict(model.heads).get(TASK)
    return head if isinstance(head, TaskHead) else None


def class_name(family: Family, kind: str) -> str:
    """Returns the name of the `transformers` class for a task head of this kind, which the family must have."""
    return family.task_class + (family.tasks[kind].form or FORMS[kind])


def tensors(family: Family, kind: str) -> tuple[Tensor, ...]:
    """Returns the tensors of a task head of this kind, or no tensors if the family has no such head."""
    if kind not in family.tasks:
        return ()
    layout = family.tasks[kind]
    norms = norm(layout.norm, f"{PATH}/norm") if layout.norm else ()
    parts = {layout.transform: "transform", layout.output: "output"}
    layers = (dense(name, f"{PATH}/{part}") for name, part in parts.items() if name)
    return (*(tensor for layer in layers for tensor in layer), *norms)


def names(family: Family) -> set[str]:
    """Returns the tensor names of all task heads of a family."""
    return {tensor.name for kind in family.tasks for tensor in tensors(family, kind)}


def to_settings(family: Family, config: Mapping[str, Any], model: Transformer) -> Transformer:
    """Returns the settings of the model with the task head that a `config.json` names.

    The settings are returned unchanged if the file names no task head. They are also unchanged if the head predicts
    several numbers per text, because such heads are not supported.

    Raises:
      UserError: the labels are invalid, or the value of another field of the head is not supported.
    """
    classes = {str(name) for name in config.get("architectures") or ()}
    kinds = [kind for kind in family.tasks if class_name(family, kind) in classes]
    if not kinds:
        return model
    labels, problem = labels_of(config), config.get("problem_type")
    kind = kinds[0]
    if kind == "classes":
        is_score = problem == "regression" or (problem is None and len(labels) == 1)
        if is_score and len(labels) > 1:
            return model
        kind = "score" if is_score else "labels" if problem == PROBLEMS["labels"] else kind
        labels = () if is_score and labels == _UNNAMED else labels
    layout = family.tasks[kind]
    rate = config.get(layout.rate) if layout.rate else None
    rate = layout.default if rate is None else rate
    rate = getattr(model.dropout, "residual", 0.0) if rate is None else rate
    check(str(layout.rate), rate, type(rate) in (int, float) and rate >= 0, "a number of at least 0")
    settings = read(layout.entries, config) | _rates(layout, float(rate))
    return _with(model, replace(_new_head(layout, kind, labels), **settings))


def _new_head(layout: TaskLayout, kind: str, labels: Sequence[str]) -> TaskHead:
    named = {} if kind in ("span", "choice") else {"labels": tuple(labels)}
    head = Head.choices[kind](**layout.fields, **named)
    assert isinstance(head, TaskHead)
    return head


def _rates(layout: TaskLayout, rate: float) -> dict[str, float]:
    return {"dropout": rate, "input_dropout": rate if layout.drops_input else 0.0}


def _with(model: Transformer, head: TaskHead) -> Transformer:
    other_heads = tuple(pair for pair in model.heads if pair[0] != TASK)
    return replace(model, heads=(*other_heads, (TASK, head)))


def labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the labels of a `config.json` in the order of their ids.

    Without `id2label`, there are `num_labels` labels, by default 2: LABEL_0, LABEL_1, …

    Raises:
      UserError: the ids are not consecutive numbers from 0, or `num_labels` is not a number of labels.
    """
    names = config.get("id2label")
    if not names:
        number = config.get("num_labels") or 2
        check("num_labels", number, type(number) is int and 0 < number <= _MAX_LABELS, "the number of labels")
        return tuple(f"LABEL_{number}" for number in range(number))
    by_id = {str(number): str(label) for number, label in names.items()}
    if by_id.keys() != {str(number) for number in range(len(by_id))}:
        raise UserError(f"config.json: id2label has the ids {', '.join(by_id)}: number them from 0")
    return tuple(by_id[str(number)] for number in range(len(by_id)))


def to_config(family: Family, model: ModelConfig) -> dict[str, Any]:
    """Returns the fields of `config.json` that describe the task head of a model, such as its class and its labels.

    Returns no fields if the model has no task head, or if the family has no task head of this kind.
    """
    head = head_of(model)
    if head is None or head.kind not in family.tasks:
        return {}
    layout = family.tasks[head.kind]
    fields: dict[str, Any] = {"architectures": [class_name(family, head.kind)]}
    if head.kind in ("classes", "labels", "tags", "score"):
        labels = getattr(head, "labels", ()) or _UNNAMED
        fields["id2label"] = {str(number): label for number, label in enumerate(labels)}
        fields["label2id"] = {label: number for number, label in enumerate(labels)}
    if head.kind in PROBLEMS:
        fields["problem_type"] = PROBLEMS[head.kind]
    return fields | write(layout.entries, head) | ({layout.rate: head.dropout} if layout.rate else {})


def drop_incomplete_head(family: Family, model: Transformer, stored: Collection[str]) -> Transformer:
    """Returns the settings without the task head if a tensor of the task head is not stored."""
    head = head_of(model)
    if head is None or {tensor.name for tensor in _tensors_of(family, model, head)} <= set(stored):
        return model
    return replace(model, heads=tuple(pair for pair in model.heads if pair[0] != TASK))


def _tensors_of(family: Family, model: models.TransformerConfig, head: TaskHead) -> tuple[Tensor, ...]:
    """Returns the tensors of a model's task head, and the weight of the pooler if the head reads the pooler."""
    reads = ("pooler/kernel",) if getattr(head, "feature", None) == "pooler" else ()
    pooler = tuple(tensor for tensor in family.tensors if tensor.parameters == reads)
    of_head = tensors(family, head.kind)
    absent = {
        f"{PATH}/output/bias": not head.bias,
        f"{PATH}/transform/bias": not head.transform_bias,
        f"{PATH}/norm/bias": not model.norm.bias,
    }
    return pooler + tuple(tensor for tensor in of_head if not absent.get(tensor.parameters[0]))


def new(kind: str, model: ModelConfig, labels: Sequence[str] = (), family: Family | None = None) -> TaskHead:
    """Returns a new task head.

    If the family has a task head of this kind, the new head has the same layout. Its dropout rate is the default of
    this layout or, if the layout has no default, the rate of the model's sub-layers.

    Otherwise, a head of a whole text reads the first token of an encoder or the last token of another model. It has a
    dense layer with tanh before the output, except in decoder-only models. Heads of decoder-only models have no bias.
    Heads of tags and spans have only the output layer. The dropout rate is the rate of the model's sub-layers, or 0 for
    spans.

    The labels are ignored for spans and choices.

    Raises:
      UserError: there is no task head of this kind.
    """
    if kind not in FORMS:
        raise UserError(f"there is no task head of kind '{kind}': use one of {', '.join(FORMS)}")
    rate = getattr(model.dropout, "residual", 0.0)
    if family is not None and kind in family.tasks:
        layout = family.tasks[kind]
        default = rate if layout.default is None else layout.default
        return replace(_new_head(layout, kind, labels), **_rates(layout, default))
    is_of_text = kind not in ("tags", "span")
    is_decoder = isinstance(model, models.DecoderConfig)
    fields: dict[str, Any] = (
        {"feature": "first" if isinstance(model, models.EncoderConfig) else "last"} if is_of_text else {}
    )
    fields |= {"transform": "tanh"} if is_of_text and not is_decoder else {}
    fields |= {"bias": False} if is_decoder else {}
    return replace(_new_head(TaskLayout("", fields), kind, labels), dropout=0.0 if kind == "span" else rate)
