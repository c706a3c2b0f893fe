"""Heads of tasks as Hugging Face's families lay them out: `BertForSequenceClassification` and its kin.

Which of them a directory holds, `architectures` in its `config.json` says, since several call their tensors alike.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from plm_jax import models
from plm_jax.common.errors import UserError
from plm_jax.hub.family import Family, TaskLayout, Tensor
from plm_jax.hub.fields import check
from plm_jax.models.heads import TASK, Head
from plm_jax.models.protocol import ModelConfig
from plm_jax.models.task_heads import TaskHead

# What a model's class is called, by the kind of its head.
FORMS = {
    "classes": "ForSequenceClassification",
    "score": "ForSequenceClassification",
    "tags": "ForTokenClassification",
    "span": "ForQuestionAnswering",
    "choice": "ForMultipleChoice",
}
PROBLEMS = {"classes": "single_label_classification", "score": "regression"}
PATH = f"heads_{TASK}"
Transformer = TypeVar("Transformer", bound=models.TransformerConfig)
# More than any task has that is no vocabulary's.
_MOST_LABELS = 2**20
# What transformers calls a score that has no name.
_UNNAMED = ("LABEL_0",)


def head_of(model: ModelConfig) -> TaskHead | None:
    """A model's head of a task; None: it has none."""
    head = dict(model.heads).get(TASK)
    return head if isinstance(head, TaskHead) else None


def tensors(family: Family, kind: str) -> tuple[Tensor, ...]:
    """Those of a head of a kind; none where the family has no such."""
    if kind not in family.tasks:
        return ()
    layout = family.tasks[kind]
    names = {layout.transform: "transform", layout.output: "output"}
    return tuple(
        Tensor(f"{name}.{end}", (f"{PATH}/{part}/{leaf}",), transposed=leaf == "kernel")
        for name, part in names.items()
        if name
        for end, leaf in (("weight", "kernel"), ("bias", "bias"))
    )


def names(family: Family) -> set[str]:
    """The tensors of all heads of tasks that a family has."""
    return {tensor.name for kind in family.tasks for tensor in tensors(family, kind)}


def to_settings(family: Family, config: Mapping[str, Any], model: Transformer) -> Transformer:
    """The model with the head that a `config.json` names; as it is where that is none, or one for several labels a
    text or several numbers, which we lack.

    Raises:
      UserError: labels that are not numbered from 0 on, a rate that is no number.
    """
    wanted = {str(name) for name in config.get("architectures") or ()}
    kinds = [kind for kind in family.tasks if f"{family.task_class}{FORMS[kind]}" in wanted]
    if not kinds:
        return model
    labels, problem = labels_of(config), config.get("problem_type")
    kind = kinds[0]
    if kind == "classes":
        is_score = problem == "regression" or (problem is None and len(labels) == 1)
        if problem == "multi_label_classification" or (is_score and len(labels) > 1):
            return model
        kind = "score" if is_score else kind
        labels = () if is_score and labels == _UNNAMED else labels
    layout = family.tasks[kind]
    rate = config.get(layout.rate) if layout.rate else None
    rate = layout.default if rate is None else rate
    rate = getattr(model.dropout, "residual", 0.0) if rate is None else rate
    check(str(layout.rate), rate, type(rate) in (int, float) and rate >= 0, "a number of at least 0")
    return _with(model, replace(_made(layout, kind, labels), **_rates(layout, float(rate))))


def _made(layout: TaskLayout, kind: str, labels: Sequence[str]) -> TaskHead:
    named = {} if kind in ("span", "choice") else {"labels": tuple(labels)}
    head = Head.choices[kind](**layout.fields, **named)
    assert isinstance(head, TaskHead)
    return head


def _rates(layout: TaskLayout, rate: float) -> dict[str, float]:
    return {"dropout": rate, "input_dropout": rate if layout.drops_input else 0.0}


def _with(model: Transformer, head: TaskHead) -> Transformer:
    others = tuple(pair for pair in model.heads if pair[0] != TASK)
    return replace(model, heads=(*others, (TASK, head)))


def labels_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels of a `config.json` in the order of their ids; where it names none, as transformers calls them.

    Raises:
      UserError: they are not numbered from 0 on.
    """
    found = config.get("id2label")
    if not found:
        number = config.get("num_labels") or 2
        check("num_labels", number, type(number) is int and 0 < number <= _MOST_LABELS, "how many there are")
        return tuple(f"LABEL_{number}" for number in range(number))
    by_id = {str(number): str(label) for number, label in found.items()}
    if by_id.keys() != {str(number) for number in range(len(by_id))}:
        raise UserError(f"config.json: id2label has the ids {', '.join(by_id)}: number them from 0 on")
    return tuple(by_id[str(number)] for number in range(len(by_id)))


def to_config(family: Family, model: ModelConfig) -> dict[str, Any]:
    """What a `config.json` says of a model's head: its class, the labels, the rate of its dropout."""
    head = head_of(model)
    if head is None or head.kind not in family.tasks:
        return {}
    layout = family.tasks[head.kind]
    found: dict[str, Any] = {"architectures": [f"{family.task_class}{FORMS[head.kind]}"]}
    if head.kind in ("classes", "tags", "score"):
        labels = getattr(head, "labels", ()) or _UNNAMED
        found["id2label"] = {str(number): label for number, label in enumerate(labels)}
        found["label2id"] = {label: number for number, label in enumerate(labels)}
    if head.kind in PROBLEMS:
        found["problem_type"] = PROBLEMS[head.kind]
    return found | ({layout.rate: head.dropout} if layout.rate else {})


def kept(family: Family, model: Transformer, stored: Collection[str]) -> Transformer:
    """The model without its head of a task where some of the tensors that this has are not among those stored."""
    head = head_of(model)
    if head is None or {tensor.name for tensor in needed(family, head)} <= set(stored):
        return model
    return replace(model, heads=tuple(pair for pair in model.heads if pair[0] != TASK))


def needed(family: Family, head: TaskHead) -> tuple[Tensor, ...]:
    """The tensors that hold all of a head, and the pooler that it reads."""
    reads = ("pooler/kernel",) if getattr(head, "feature", None) == "pooler" else ()
    pooler = tuple(tensor for tensor in family.tensors if tensor.parameters == reads)
    own = tensors(family, head.kind)
    return pooler + tuple(tensor for tensor in own if head.bias or tensor.parameters != (f"{PATH}/output/bias",))


def new(kind: str, model: ModelConfig, labels: Sequence[str] = (), family: Family | None = None) -> TaskHead:
    """A head for a task as the family lays it out, with the model's dropout.

    For a model of no family, or of one that has no such head: a text's by the first token of an encoder, or the last of
    a decoder, after a dense layer with tanh where not by a decoder alone; each token's as it is.

    Raises:
      UserError: there is no head of this kind.
    """
    if kind not in FORMS:
        raise UserError(f"there is no head of a task of kind '{kind}': give one of {', '.join(FORMS)}")
    rate = getattr(model.dropout, "residual", 0.0)
    if family is not None and kind in family.tasks:
        layout = family.tasks[kind]
        default = rate if layout.default is None else layout.default
        return replace(_made(layout, kind, labels), **_rates(layout, default))
    of_text = kind not in ("tags", "span")
    is_decoder = isinstance(model, models.DecoderConfig)
    fields: dict[str, Any] = (
        {"feature": "first" if isinstance(model, models.EncoderConfig) else "last"} if of_text else {}
    )
    fields |= {"transform": "tanh"} if of_text and not is_decoder else {}
    fields |= {"bias": False} if is_decoder else {}
    return replace(_made(TaskLayout("", fields), kind, labels), dropout=0.0 if kind == "span" else rate)
