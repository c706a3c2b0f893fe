"""A Hugging Face model family: its table of tensor names, and functions between `config.json` and our settings."""

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from plm_jax import models
from plm_jax.common.errors import UserError, nearest
from plm_jax.models.layers import Activation


@dataclass(frozen=True)
class Tensor:
    """A Hugging Face tensor, and which of our parameters it holds.

    Attributes:
      name: its full name; `{layer}` stands for the block's number, and the parameters are then stacked [layers, ...].
        Of layers with several blocks or shared parameters `{group}` and `{inner}` say which.
      parameters: our paths, joined by `/`; several lie side by side along the tensor's last axis.
      transposed: it is stored [out, in], as torch's `Linear` keeps its weight.
      by_head: the parameters, of one width, alternate head by head.
      applies: whether a model with these parameters has the tensor, as far as it has the parameters named.
      as_row: a vector is stored as a matrix of one row, [1, n].
    """

    name: str
    parameters: tuple[str, ...]
    transposed: bool = False
    by_head: bool = False
    applies: Callable[[Collection[str]], bool] = lambda parameters: True
    as_row: bool = False


def dense(name: str, path: str) -> tuple[Tensor, Tensor]:
    """The tensors of torch's `Linear` with a bias, our `Dense`."""
    return (
        Tensor(f"{name}.weight", (f"{path}/kernel",), transposed=True),
        Tensor(f"{name}.bias", (f"{path}/bias",)),
    )


def norm(name: str, path: str) -> tuple[Tensor, Tensor]:
    """The tensors of torch's `LayerNorm`, ours."""
    return Tensor(f"{name}.weight", (f"{path}/scale",)), Tensor(f"{name}.bias", (f"{path}/bias",))


def unembedding(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors of a `decoder` whose bias is stored beside it, too: untied, its own counts, and the other is unused.

    `Family.copies` is to name the bias of a tied one.
    """
    return (
        Tensor(f"{name}.decoder.weight", ("head",)),
        Tensor(f"{name}.bias", ("head_bias",)),
        Tensor(f"{name}.decoder.bias", ("head_bias",), applies=lambda parameters: "head" in parameters),
    )


@dataclass(frozen=True)
class TaskLayout:
    """How a family keeps a head of a task, of `models.task_heads`.

    Attributes:
      output: the name of the tensors of its last layer.
      fields: of the head's settings, but labels and rates.
      transform: the name of those of its transform, where it has one.
      rate: what `config.json` calls the rate of its dropout; None: it has no name there.
      default: the rate where `config.json` says nothing; None: that of the model's sub-layers.
      drops_input: dropout of that rate comes before the transform, too.
    """

    output: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    transform: str | None = None
    rate: str | None = None
    default: float | None = None
    drops_input: bool = False


def task_layouts(
    text: TaskLayout, tags: TaskLayout | None = None, span: TaskLayout | None = None, choice: TaskLayout | None = None
) -> dict[str, TaskLayout]:
    """`Family.tasks` of a family, of which a class and a score are told alike."""
    found = {"classes": text, "score": text, "tags": tags, "span": span, "choice": choice}
    return {kind: layout for kind, layout in found.items() if layout}


@dataclass(frozen=True)
class Family:
    """How Hugging Face keeps a family's models.

    Attributes:
      name: what people call it.
      model_type: what `config.json` calls it, unless `reads` says more.
      kind: the architecture of its models, as in `models`.
      prefix: the part of the names that a file of the bare model, without its head, leaves out.
      tensors: the table of names; a model has those of which it has the parameters.
      buffers: regular expression of names, without the prefix, that hold no weights.
      to_settings: `config.json` → the settings of a model with all its heads; UserError for what those cannot say.
      to_config: the inverse, without the special ids, of any settings of this kind; what it cannot say it leaves out.
      vocabulary_files: by scheme of `vocabularies.load`, the files that such a vocabulary has in a directory.
      tokenizer_config: the vocabulary's files and the special ids → `tokenizer_config.json`, what `transformers` cannot
        guess of the two.
      special_ids: the vocabulary's files and `tokenizer_config.json` → the special ids that those alone tell.
      start: which of the special ids a decoder's input begins with, where it has an encoder.
      copies: names under which a file may hold another tensor once more → that tensor's name.
      old_endings: endings of names in old files → today's.
      reads: whether a `config.json` is of this family though its `model_type` is another's.
      ids: special ids that `config.json` keeps beside those that all do, and what it calls them.
      tasks: by their kinds the heads of tasks that fine-tuned models have.
      task_class: what the names of these models' classes begin with.
      other_heads: regular expression of names, without the prefix, of heads of fine-tuned models; they are left out
        where they are none of `tasks` or not whole.
    """

    name: str
    model_type: str
    kind: str
    prefix: str
    tensors: tuple[Tensor, ...]
    buffers: str
    to_settings: Callable[[Mapping[str, Any]], models.TransformerConfig]
    to_config: Callable[[Any], dict[str, Any]]
    vocabulary_files: Mapping[str, tuple[str, ...]]
    tokenizer_config: Callable[[list[bytes], Mapping[str, Any]], dict[str, Any]] = lambda files, special_ids: {}
    special_ids: Callable[[list[bytes], Mapping[str, Any]], dict[str, Any]] = lambda files, tokenizer_config: {}
    start: str | None = None
    copies: Mapping[str, str] = field(default_factory=dict)
    old_endings: Mapping[str, str] = field(default_factory=dict)
    reads: Callable[[Mapping[str, Any]], bool] = lambda config: False
    ids: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, TaskLayout] = field(default_factory=dict)
    task_class: str = ""
    other_heads: str = "(?!)"  # Nothing.


# Hugging Face's names → ours; of several for one of ours, the first is the one we write.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu_exact",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


def name_of(activation: Activation, names: Mapping[str, Any] = ACTIVATIONS) -> str:
    """The name in `config.json` of a value of ours, of several the first."""
    return next(name for name, value in names.items() if value == activation)


def values(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """`config.json` over a family's defaults, each value of its default's sort: a size, a rate, a switch or a text.

    Raises:
      UserError: a size that is no positive integer, a rate that is no number of at least 0.
    """
    found = {name: config.get(name, default) for name, default in defaults.items()}
    for name, default in defaults.items():
        if type(default) is int:
            check_size(name, found[name])
        elif type(default) is float:
            right = type(found[name]) in (int, float) and 0 <= found[name] <= sys.float_info.max
            check(name, found[name], right, "a number of at least 0")
            found[name] = float(found[name])
    return found


def check_size(name: str, value: Any) -> None:
    """Refuses a value of `config.json` that is no positive integer, or one that is the size of nothing."""
    check(name, value, type(value) is int and 0 < value < 2**31, "a positive integer")


def check(name: str, value: Any, right: bool, wanted: str) -> None:
    """Refuses a value of `config.json` that is not what is wanted."""
    if not right:
        raise UserError(f"config.json: {name} is {repr(value)[:100]}: give {wanted}")


def known(name: str, value: Any, names: Mapping[str, Any]) -> Any:
    """Our value for a name in `config.json`.

    Raises:
      UserError: it is not among the names.
    """
    if value not in names:
        raise UserError(f"config.json: {name} is '{value}': {nearest(str(value), names)}")
    return names[value]
