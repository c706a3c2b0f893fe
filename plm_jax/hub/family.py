"""Base class of Hugging Face model families: a two-way table of `config.json` and a table of tensor names."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from plm_jax import models
from plm_jax.common.roles import Role
from plm_jax.hub.fields import Entry, read, with_settings, write


@dataclass(frozen=True)
class Tensor:
    """A Hugging Face tensor and the parameters that it holds.

    The parameters are joined, transposed, reshaped and increased by `plus`, in this order.

    Attributes:
      name: full name. `{layer}` is replaced by the number of the block; the parameters are then stacked [layers, ...].
        If layers have several blocks or share parameters, `{group}` and `{inner}` are the numbers of the group and of
        the block in it.
      parameters: paths of the parameters, joined by `/`. Several are concatenated along the last axis.
      transposed: whether the tensor is stored [out, in], like the weight of torch's `Linear`.
      groups: number of parts of equal width into which each parameter is cut along its last axis, given the model. The
        tensor has the first part of each parameter, then the second part of each, and so on. None: whole parameters.
      shape: shape of the tensor, given the model; one size may be -1, as in NumPy. None: the shape of the matrix or
        vector.
      plus: constant that is added to the parameters, which are read as float32 if the tensor has a smaller type. With
        -1, float32 parameters from 0.5 to 2 ** 24 are written and read again without a change. Other parameters and
        small values of a tensor may be rounded the first time, and do not change from then on.
      applies: whether a model with these parameters has the tensor, provided that it has `parameters`.
    """

    name: str
    parameters: tuple[str, ...]
    transposed: bool = False
    groups: Callable[[Any], int] | None = None
    shape: Callable[[Any], tuple[int, ...]] | None = None
    plus: float = 0.0
    applies: Callable[[Collection[str]], bool] = lambda parameters: True


def kv_heads(model: models.TransformerConfig) -> int:
    """Returns the number of heads of keys and values.

    It is the `groups` of a tensor that has, for one such head after another, the queries, the key and the value.
    """
    return model.attention.num_kv_heads


def dense(
    name: str, *paths: str, transposed: bool = True, groups: Callable[[Any], int] | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the weight and the bias of a `Linear` of torch that holds one or several dense layers.

    Without `transposed`, it is a `Conv1D`, which is stored [in, out]. A layer without a bias has no such tensor.
    """
    weights, biases = (tuple(f"{path}/{leaf}" for path in paths) for leaf in ("kernel", "bias"))
    return Tensor(f"{name}.weight", weights, transposed, groups), Tensor(f"{name}.bias", biases, groups=groups)


def attention(name: str, path: str, query: str, key: str, value: str, out: str) -> tuple[Tensor, ...]:
    """Returns the tensors of an attention layer whose four projections have these names."""
    names = {"query": query, "key": key, "value": value, "out": out}
    return tuple(tensor for ours, theirs in names.items() for tensor in dense(f"{name}.{theirs}", f"{path}/{ours}"))


def norm(name: str, path: str) -> tuple[Tensor, Tensor]:
    """Returns the tensors of torch's `LayerNorm`."""
    return Tensor(f"{name}.weight", (f"{path}/scale",)), Tensor(f"{name}.bias", (f"{path}/bias",))


def unembedding(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the tensors of a vocabulary head, whose bias is stored both in its `decoder` and next to it.

    An untied head uses the bias of the `decoder`. For a tied head, `Family.copies` must contain the bias of the
    `decoder`.
    """
    return (
        Tensor(f"{name}.decoder.weight", ("head",)),
        Tensor(f"{name}.bias", ("head_bias",)),
        Tensor(f"{name}.decoder.bias", ("head_bias",), applies=lambda parameters: "head" in parameters),
    )


@dataclass(frozen=True)
class TaskLayout:
    """Format of a task head of `models.task_heads` in a family.

    Attributes:
      output: name of the tensors of the last layer.
      fields: settings of the head, except labels and dropout rates.
      transform: name of the tensors of the transform; None if the head has none.
      rate: field of the dropout rate in `config.json`; None if there is none.
      default: dropout rate if `config.json` has none; None for that of the model's sub-layers.
      drops_input: whether dropout of that rate is also applied before the transform.
      norm: name of the tensors of the norm after the transform; None if there is none.
      entries: entries of `config.json` for settings of the head that differ from `fields`.
      form: ending of the name of the model's class; by default as in `tasks.FORMS`.
    """

    output: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    transform: str | None = None
    rate: str | None = None
    default: float | None = None
    drops_input: bool = False
    norm: str | None = None
    entries: tuple[Entry, ...] = ()
    form: str = ""


def task_layouts(
    text: TaskLayout, tags: TaskLayout | None = None, span: TaskLayout | None = None, choice: TaskLayout | None = None
) -> dict[str, TaskLayout]:
    """Returns `Family.tasks` for a family that uses one layout for everything that is predicted of a text."""
    layouts = {"classes": text, "labels": text, "score": text, "tags": tags, "span": span, "choice": choice}
    return {kind: layout for kind, layout in layouts.items() if layout}


class Family(Role):
    """Base of the classes that define how Hugging Face stores the models of a family.

    A subclass that sets `kind` is registered when its module is imported.

    Attributes:
      kind: name of the family of this package, and by default its `model_type` in `config.json`.
      name: name of the family in messages.
      base: settings that the models have in common. The fields set the remaining ones.
      fields: entries of `config.json`, in the order in which they are written. Their values are those of the model with
        all its heads.
      tensors: names of the tensors of a model with all its heads. Tensors of parameters that a model lacks are skipped.
      model_type: `model_type` in `config.json`, unless it is `kind`.
      prefix: first part of tensor names, such as `bert.`, which files of models without a head leave out.
      buffers: regular expression that matches the names, without the prefix, of tensors that are not weights.
      unused: regular expression that matches the names, without the prefix, of weights that a model may have without
        using them. They are left out with a warning.
      vocabulary_files: vocabulary file names for each scheme of `vocabularies.load`, such as `wordpiece`.
      unsupported_vocabulary: vocabulary files of a tokenizer that this package does not have. A directory that has no
        other files of a vocabulary is loaded without one, with a warning.
      tokenizer_class: name of the class of the tokenizer in `transformers`; empty if it is not written.
      token_types_are_of_texts: whether token types distinguish the texts of a pair, so that tokenizers return them.
      start: special id at the beginning of a decoder's input, in an encoder-decoder.
      copies: names under which a file may repeat another tensor → that tensor's name.
      old_endings: endings of names in old files → current endings.
      ids: further special ids in `config.json` that not every family has, as our name → the name of the field.
      tasks: layouts of the heads of fine-tuned models, by kind of the head.
      task_class: beginning of the names of these models' classes.
      other_heads: regular expression that matches the names, without the prefix, of heads of fine-tuned models. Such
        tensors are ignored when a model is loaded, unless they are all tensors of a head that `tasks` describes.
    """

    name: ClassVar[str]
    base: ClassVar[models.TransformerConfig]
    fields: ClassVar[tuple[Entry, ...]]
    tensors: ClassVar[tuple[Tensor, ...]]
    model_type: ClassVar[str] = ""
    prefix: ClassVar[str] = ""
    buffers: ClassVar[str] = "(?!)"  # Matches nothing.
    unused: ClassVar[str] = "(?!)"
    vocabulary_files: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    unsupported_vocabulary: ClassVar[tuple[str, ...]] = ()
    tokenizer_class: ClassVar[str] = ""
    token_types_are_of_texts: ClassVar[bool] = True
    start: ClassVar[str | None] = None
    copies: ClassVar[Mapping[str, str]] = {}
    old_endings: ClassVar[Mapping[str, str]] = {}
    ids: ClassVar[Mapping[str, str]] = {}
    tasks: ClassVar[Mapping[str, TaskLayout]] = {}
    task_class: ClassVar[str] = ""
    other_heads: ClassVar[str] = "(?!)"

    def architecture(self, model: Any) -> str:
        """Returns the transformers class of a model without a task head, for `architectures` in `config.json`."""
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
