"""The role of a Hugging Face model family: a two-way table of `config.json` and a table of tensor names."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from plm_jax import models
from plm_jax.common.roles import Role
from plm_jax.hub.fields import Entry, read, with_settings, write


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


def dense(name: str, *paths: str, transposed: bool = True, by_head: bool = False) -> tuple[Tensor, Tensor]:
    """Returns the weight and the bias of a `Linear` of torch that holds one or several dense layers.

    Without `transposed`, it is a `Conv1D`, which is stored [in, out]. A layer without a bias has no such tensor.
    """
    weights, biases = (tuple(f"{path}/{leaf}" for path in paths) for leaf in ("kernel", "bias"))
    return Tensor(f"{name}.weight", weights, transposed, by_head), Tensor(f"{name}.bias", biases, by_head=by_head)


def attention(name: str, path: str, query: str, key: str, value: str, out: str) -> tuple[Tensor, ...]:
    """Returns the tensors of an attention with four projections under these names."""
    names = {"query": query, "key": key, "value": value, "out": out}
    return tuple(tensor for ours, theirs in names.items() for tensor in dense(f"{name}.{theirs}", f"{path}/{ours}"))


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


class Family(Role):
    """How Hugging Face stores the models of a family.

    A family is a class below this one that sets `kind`. Importing its module registers it.

    Attributes:
      kind: name of the family of this package, and by default its `model_type` in `config.json`.
      name: name of the family in messages.
      base: settings that the models have in common. The fields set the others.
      fields: entries of `config.json`, in the order in which they are written. A file describes a model with all heads.
      tensors: names of the tensors. A model has those whose parameters it has.
      model_type: `model_type` in `config.json`, unless it is `kind`.
      prefix: part of the names that a file of the model without its head leaves out.
      buffers: regular expression of names, without the prefix, of tensors that are not weights.
      vocabulary_files: names of the files of a vocabulary by scheme of `vocabularies.load`.
      tokenizer_class: name of the class of the tokenizer in `transformers`. Empty: it is not written.
      start: special id that a decoder's input begins with, in an encoder-decoder.
      copies: names under which a file may repeat another tensor → that tensor's name.
      old_endings: endings of names in old files → today's.
      ids: special ids that `config.json` has besides those of every family → their names there.
      tasks: layouts of the heads of fine-tuned models, by kind of the head.
      task_class: beginning of the names of these models' classes.
      other_heads: regular expression of names, without the prefix, of heads of fine-tuned models. They are left out
        unless they are complete heads of `tasks`.
    """

    name: ClassVar[str]
    base: ClassVar[models.TransformerConfig]
    fields: ClassVar[tuple[Entry, ...]]
    tensors: ClassVar[tuple[Tensor, ...]]
    model_type: ClassVar[str] = ""
    prefix: ClassVar[str] = ""
    buffers: ClassVar[str] = "(?!)"  # Matches nothing.
    vocabulary_files: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    tokenizer_class: ClassVar[str] = ""
    start: ClassVar[str | None] = None
    copies: ClassVar[Mapping[str, str]] = {}
    old_endings: ClassVar[Mapping[str, str]] = {}
    ids: ClassVar[Mapping[str, str]] = {}
    tasks: ClassVar[Mapping[str, TaskLayout]] = {}
    task_class: ClassVar[str] = ""
    other_heads: ClassVar[str] = "(?!)"

    def architecture(self, model: Any) -> str:
        """Returns the name of the class of a model without a task's head, for `architectures` in `config.json`."""
        raise NotImplementedError

    def to_settings(self, config: Mapping[str, Any]) -> Any:
        """Returns the settings of the model that a `config.json` describes, with all its heads.

        Raises:
          UserError: a value is missing, invalid or not supported.
        """
        return with_settings(self.base, read(self.fields, config))

    def to_config(self, model: Any) -> dict[str, Any]:
        """Returns the `config.json` of a model of the family's kind, without the special ids.

        Settings that have no field are left out.
        """
        named = {"architectures": [self.architecture(model)], "model_type": self.model_type or self.kind}
        return named | write(self.fields, model)

    def reads(self, config: Mapping[str, Any]) -> bool:
        """Whether a `config.json` is of this family although its `model_type` is another family's `kind`."""
        return False

    def tokenizer_config(self, files: list[bytes], special_ids: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of `tokenizer_config.json` that `transformers` needs, given a vocabulary's files."""
        return {"tokenizer_class": self.tokenizer_class} if self.tokenizer_class else {}

    def special_ids(self, files: list[bytes], tokenizer_config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the special ids that only a vocabulary's files and `tokenizer_config.json` contain."""
        return {}
