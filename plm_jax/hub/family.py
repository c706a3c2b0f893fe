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
      name: full name. `{layer}` stands for the index of a block. There is then one tensor for each block that has the
        parameters, and the parameters are stacked over these blocks, [blocks, ...]. If layers have several blocks or
        share parameters, the name contains `{group}` and `{inner}` instead. `{group}` stands for the index of a group
        of blocks, `{inner}` for the index of a block in this group.
      parameters: paths of the parameters, with parts joined by `/`. If there are several parameters, they are
        concatenated along the last axis.
      transposed: whether the tensor is stored [out, in], like the weight of torch's `Linear`.
      groups: function that takes the model and returns the number of equal parts into which each parameter is cut along
        its last axis. The tensor contains the first part of each parameter, then the second part of each parameter, and
        so on. None: the parameters are not cut.
      shape: function that takes the model and returns the shape of the tensor. One size may be -1, as in NumPy. None:
        the tensor is not reshaped.
      plus: constant that is added to the parameters. If it is not 0, the parameters are read as float32 even if the
        tensor has a smaller type. With -1, float32 parameters from 0.5 to 2 ** 24 do not change when they are written
        and read again. Other parameters, and values of a tensor close to 0, may be rounded by the first conversion.
        Later conversions do not change them.
      applies: function that takes the paths of a model's parameters and returns whether the model has the tensor. It is
        called only if the model has all `parameters`.
    """

    name: str
    parameters: tuple[str, ...]
    transposed: bool = False
    groups: Callable[[Any], int] | None = None
    shape: Callable[[Any], tuple[int, ...]] | None = None
    plus: float = 0.0
    applies: Callable[[Collection[str]], bool] = lambda parameters: True


def kv_heads(model: models.TransformerConfig) -> int:
    """Returns the number of key-value heads.

    This function is the value of `groups` for a fused tensor that is ordered by key-value heads. For each key-value
    head, the tensor contains the queries, the key and the value of this head.
    """
    return model.attention.num_kv_heads


def dense(
    name: str, *paths: str, transposed: bool = True, groups: Callable[[Any], int] | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the weight and the bias of a torch `Linear` that holds one or several dense layers.

    If `transposed` is False, the torch layer is a `Conv1D`, which is stored [in, out]. For a model whose dense layers
    have no bias, the second tensor is skipped when the model is read or written.
    """
    weights, biases = (tuple(f"{path}/{leaf}" for path in paths) for leaf in ("kernel", "bias"))
    return Tensor(f"{name}.weight", weights, transposed, groups), Tensor(f"{name}.bias", biases, groups=groups)


def attention(name: str, path: str, query: str, key: str, value: str, out: str) -> tuple[Tensor, ...]:
    """Returns the tensors of an attention layer.

    Args:
      name: first part of the tensor names.
      path: path of the layer in the parameters.
      query: name of the query projection in `transformers`.
      key: name of the key projection.
      value: name of the value projection.
      out: name of the output projection.
    """
    names = {"query": query, "key": key, "value": value, "out": out}
    return tuple(tensor for ours, theirs in names.items() for tensor in dense(f"{name}.{theirs}", f"{path}/{ours}"))


def norm(name: str, path: str) -> tuple[Tensor, Tensor]:
    """Returns the weight and the bias of a torch `LayerNorm`."""
    return Tensor(f"{name}.weight", (f"{path}/scale",)), Tensor(f"{name}.bias", (f"{path}/bias",))


def unembedding(name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the tensors of a vocabulary head: its matrix, and its bias as `NAME.bias` and as `NAME.decoder.bias`.

    An untied head has both biases, and the value of `NAME.decoder.bias` is used. A tied head has only `NAME.bias`.
    Files of tied heads may also contain `NAME.decoder.bias`, which `Family.copies` must map to `NAME.bias`.
    """
    return (
        Tensor(f"{name}.decoder.weight", ("head",)),
        Tensor(f"{name}.bias", ("head_bias",)),
        Tensor(f"{name}.decoder.bias", ("head_bias",), applies=lambda parameters: "head" in parameters),
    )


@dataclass(frozen=True)
class TaskLayout:
    """Format in which the models of a family store a task head of `models.task_heads`.

    Attributes:
      output: first part of the names of the output layer's tensors.
      fields: settings of the head, except labels and dropout rates.
      transform: first part of the names of the transform's tensors; None if the head has no transform.
      rate: field of `config.json` that contains the dropout rate; None if there is no such field.
      default: dropout rate if `config.json` does not contain one. None: the rate of the model's sub-layers.
      drops_input: whether dropout of the same rate is also applied before the transform.
      norm: first part of the tensor names of the norm after the transform; None if the head has no such norm.
      entries: entries of `config.json` that set further settings of the head. They override `fields`.
      form: ending of the name of the model's class. Empty: the ending in `tasks.FORMS`.
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
    """Returns `Family.tasks` for a family whose heads for classes, labels and scores of texts have the same layout.

    Kinds whose layout is None are left out.
    """
    layouts = {"classes": text, "labels": text, "score": text, "tags": tags, "span": span, "choice": choice}
    return {kind: layout for kind, layout in layouts.items() if layout}


class Family(Role):
    """Base of the classes that define how Hugging Face stores the models of a family.

    A subclass that sets `kind` is registered when its module is imported.

    Attributes:
      kind: name of the family in this package. By default, it is also the `model_type` in `config.json`.
      name: name of the family in messages.
      base: settings that the models of the family have in common. `fields` sets the other settings.
      fields: entries of `config.json`, in the order in which they are written. They describe a model with all heads.
      tensors: tensors of a model with all heads. If a model lacks the parameters of a tensor, the tensor is skipped.
      model_type: `model_type` in `config.json`; empty if it equals `kind`.
      prefix: first part of tensor names, such as `bert.`. Files of models without a head may leave this prefix out.
      buffers: regular expression for tensors that are not weights. It matches their names without the prefix. Such
        tensors are ignored.
      unused: regular expression for weights that a model may contain but does not use. It matches their names without
        the prefix. Such weights are left out with a warning.
      vocabulary_files: mapping from schemes of `vocabularies.load`, such as `wordpiece`, to names of vocabulary files.
      unsupported_vocabulary: names of vocabulary files that this package cannot read. If a directory has no other
        vocabulary files, it is loaded without a vocabulary, with a warning.
      tokenizer_class: class name of the tokenizer in `transformers`; empty if no class name is written.
      token_types_are_of_texts: whether token types distinguish the two texts of a pair. If they do, tokenizers return
        token types.
      start: key in `Pretrained.special_ids`, such as `pad_token_id`, of the token that begins a decoder's input if
        `config.json` has no `decoder_start_token_id`. None: the models are not encoder-decoders.
      copies: mapping from the name of a copy, which a file may contain, to the name of the copied tensor.
      old_endings: mapping from endings of tensor names in old files to the current endings.
      ids: mapping from keys of `Pretrained.special_ids` to fields of `config.json`, for ids that not every family has.
      tasks: mapping from kinds of task heads to their layouts.
      task_class: beginning of the class names of models with a task head, such as `Bert`.
      other_heads: regular expression for tensors of the heads of fine-tuned models. It matches their names without the
        prefix. Such tensors are ignored with a warning, unless they form a complete head that `tasks` describes and
        `config.json` names.
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
        """Returns the name of the `transformers` class for a model without a task head."""
        raise NotImplementedError

    def to_settings(self, config: Mapping[str, Any]) -> Any:
        """Returns the settings that a `config.json` describes, with all heads of the model.

        Raises:
          UserError: a value is invalid or not supported.
        """
        return with_settings(self.base, read(self.fields, config))

    def to_config(self, model: Any) -> dict[str, Any]:
        """Returns the contents of a model's `config.json`, without the special ids.

        Settings that have no field in `config.json` are left out. The model must have the same kind as `base`.
        """
        named = {"architectures": [self.architecture(model)], "model_type": self.model_type or self.kind}
        return named | write(self.fields, model)

    def reads(self, config: Mapping[str, Any]) -> bool:
        """Whether a `config.json` belongs to this family although its `model_type` is the `kind` of another family."""
        return False

    def tokenizer_config(self, files: list[bytes], special_ids: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of `tokenizer_config.json` that `transformers` needs.

        Args:
          files: contents of the vocabulary files.
          special_ids: `Pretrained.special_ids` of the model.
        """
        return {"tokenizer_class": self.tokenizer_class} if self.tokenizer_class else {}

    def special_ids(self, files: list[bytes], tokenizer_config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the entries of `Pretrained.special_ids` that follow from the tokenizer's files.

        Entries that come from `config.json` have priority over these.

        Args:
          files: contents of the vocabulary files.
          tokenizer_config: contents of `tokenizer_config.json`.
        """
        return {}
