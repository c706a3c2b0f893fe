"""The interface of models, for training, planning, evaluation and conversion: settings that build a Linen module.

    model = EncoderConfig(…)                  # hashable and JSON-serializable; a static argument of jitted functions
    module = model.module(jnp.bfloat16)       # a `Module`
    params = module.init(key, **model.init_inputs())["params"]
    features = module.apply({"params": params}, **model.read(batch), method="features")

A new kind of model is a frozen dataclass derived from `ModelConfig` and a Linen module that implements `Module`;
`VocabularyModule` implements most of it.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from plm_jax.common.errors import UserError
from plm_jax.common.roles import Role
from plm_jax.models.heads import TASK, Head, VocabularyHead
from plm_jax.models.partitioning import constrain


class ModelConfig(Role):
    """The base of models' settings.

    Attributes:
      kind: name in configs.
      architecture: name by which objectives list the models that they train: `kind`, or for a variant of another model,
        the `kind` of that model.
      inputs: names of the arrays of a batch that `Module.features` reads.
      vocab_size: number of tokens, or words, that the model distinguishes; may be larger than the vocabulary.
      num_positions: maximum number of tokens in a row; None for any number.
      max_length: number of tokens in a row that the model was designed for; None if unknown.
      max_characters: maximum number of characters of a word, for a model that reads characters; 0 for a model that
        reads tokens.
      token_types: number of token types; 0 for none.
      attention_heads: number of attention heads, which `mesh.tensor` should divide; 0 without attention.
      any_order: whether the positions of a row are computed in parallel, so that `mesh.context` can shard them.
      uses_absolute_positions: whether outputs depend on absolute positions, not only on distances between tokens.
      remat_levels: values of the field `remat`, from the least recomputation to the most; ("none",) without this field.
      stacks: `transformer.StackConfig` of each stack of layers; () if there is none.
      has_stages: whether pipeline stages can split the stacks.
      is_placeholder: whether these settings are a placeholder in a config for a model loaded from a checkpoint.
      stack_paths: path of each of `stacks` in the parameter tree, such as `encoder`.
      pipeline_microbatches: as in `TransformerConfig`.
      num_states: number of hidden states [B, L, state_width] that task heads can read: the embeddings and each layer.
      heads: heads by name, except heads that have a separate field; () if the model cannot have any.
      dropout: dropout rates, with `rates` and `all_at` as in `DropoutConfig`; None without dropout.
    """

    architecture: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]] = ("tokens",)
    vocab_size: int
    num_positions = None
    max_length = None
    max_characters = 0
    token_types = 0
    attention_heads = 0
    any_order = True
    uses_absolute_positions = False
    remat = "none"
    remat_levels: ClassVar[tuple[str, ...]] = ("none",)
    stacks = ()
    has_stages = True
    stack_paths: ClassVar[tuple[str, ...]] = ()
    is_placeholder: ClassVar[bool] = False
    pipeline_microbatches = 0
    dropout = None
    heads: tuple[tuple[str, Head], ...] = ()
    if TYPE_CHECKING:  # All models' settings are dataclasses.
        __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **arguments):
        if "kind" in vars(cls) and not hasattr(cls, "architecture"):
            cls.architecture = cls.kind
        super().__init_subclass__(**arguments)

    def module(self, dtype: Any) -> "Module":
        """Returns the Linen module of these settings, with activations of a dtype."""
        raise NotImplementedError

    def init_inputs(self) -> dict[str, Any]:
        """Returns the smallest inputs of the module, all zeros, which initialize its parameters."""
        return {"tokens": jnp.zeros((1, 1), jnp.int32)}

    def new_carry(self, rows: int) -> Any:
        """Returns the initial carry of a loss, a tree of boxed arrays [rows, …]; empty for most models."""
        return {}

    @property
    def has_carry(self) -> bool:
        """Whether the model has recurrent state that a loss carries from batch to batch."""
        if type(self).new_carry is ModelConfig.new_carry:
            return False
        return bool(jax.tree.leaves(jax.eval_shape(lambda: self.new_carry(1))))

    def macs(self, length: int, targets: int, decoder_length: int = 0, samples: int = 0) -> float:
        """Returns the multiply-accumulate operations in the matrix products of the forward pass of a row.

        Causal attention counts half, look-ups count nothing.

        Args:
          length: number of tokens of the row.
          targets: number of predicted tokens, of the decoder if there is one; the head is applied only to them.
          decoder_length: number of tokens of the decoder, for a model with `decoder_tokens` among its inputs.
          samples: number of words that a target is compared with in training; 0 for all.
        """
        raise NotImplementedError

    def read(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arrays of a batch that the module's `features` reads."""
        return {name: batch[name] for name in self.inputs if name in batch}

    @property
    def named_heads(self) -> Mapping[str, Head]:
        """Heads by the names that losses and callers use; by default only the vocabulary head, `Module.logits`."""
        return {"vocabulary": VocabularyHead(tied=False)}

    @property
    def has_decoder(self) -> bool:
        """Whether a second text answers the first one: the inputs are `tokens` and `decoder_tokens`."""
        return "decoder_tokens" in self.inputs

    @property
    def drops(self) -> bool:
        """Whether the model has dropout with a rate above 0."""
        model_drops = self.dropout is not None and any(self.dropout.rates.values())
        return model_drops or any(head.drops for _, head in self.heads)

    def with_task(self, head: Head) -> "ModelConfig":
        """Returns the settings for training on a task: with this head, called "task", and a vocabulary head if any.

        Raises:
          UserError: the model does not support heads of tasks.
        """
        if "heads" not in {field.name for field in dataclasses.fields(self)}:
            raise UserError(f"a model of kind '{self.kind}' does not support heads of tasks: choose another model")
        return dataclasses.replace(self, heads=((TASK, head),))

    def with_speed(self, **fields: Any) -> Self:
        """Returns these settings with other values of fields such as `scan_layers`, ignoring those it does not have."""
        names = {field.name for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **{name: value for name, value in fields.items() if name in names})

    def with_dropout(self, rate: float) -> Self:
        """Returns these settings with all dropout at this rate."""
        if self.dropout is None:
            return self
        changed: dict[str, Any] = {"dropout": self.dropout.all_at(rate)}
        if self.heads:
            changed["heads"] = tuple((name, head.with_dropout(rate)) for name, head in self.heads)
        return dataclasses.replace(self, **changed)


@runtime_checkable
class Module(Protocol):
    """The interface of the Linen module of a `ModelConfig`, besides `init` and `apply`.

    Shapes: B batch, L length, T targets, D width, E the columns of the unembedding, V vocabulary.
    """

    @property
    def model(self) -> ModelConfig:
        """Settings of the model."""
        ...

    @property
    def dtype(self) -> Any:
        """Dtype of activations."""
        ...

    def features(self, **inputs: jax.Array) -> jax.Array:
        """Returns the features [B, L, D] that the heads read.

        Args:
          inputs: the arrays named by `ModelConfig.inputs`, and `deterministic`, which is True for no dropout.
        """
        ...

    def states(self, **inputs: jax.Array) -> jax.Array:
        """Returns the embeddings and the output of each layer, [layers + 1, B, L, D], for heads of tasks.

        Arguments as `features`. The collection `intermediates` must be mutable.
        """
        ...

    def head_features(self, features: Float[Array, "*rows dim"]) -> Float[Array, "*rows columns"]:
        """Returns the input of the unembedding, [..., D] → [..., E]."""
        ...

    def unembedding(self) -> tuple[Any, Float[Array, " vocab"] | None]:
        """Returns the matrix [V, E] of the vocabulary head and its bias [V] or None."""
        ...

    def logits(self, features: Float[Array, "batch length dim"]) -> Float[Array, "batch length vocab"]:
        """Returns the logits of the vocabulary head, [B, L, D] → float32 [B, L, V]."""
        ...

    def head_output(self, features: jax.Array, name: str, **inputs: jax.Array) -> Any:
        """Returns the output of one of `ModelConfig.named_heads` for features and further inputs."""
        ...

    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies the module, like `flax.linen.Module.apply`."""
        ...

    def init(self, rngs: jax.Array, *args: Any, **kwargs: Any) -> nn.FrozenDict | dict:
        """Initializes the parameters of the module and all heads, like `flax.linen.Module.init`."""
        ...


class VocabularyModule(nn.Module):
    """The base of modules that predict tokens; subclasses implement `features` and `unembedding`.

    Attributes:
      model: settings.
      dtype: dtype of activations.
    """

    model: ModelConfig
    dtype: Any = jnp.float32

    def head_features(self, features: Float[Array, "*rows dim"]) -> Float[Array, "*rows columns"]:
        """Returns the input of the unembedding, [..., D] → [..., E]; by default the features."""
        return features

    def logits(self, features: Float[Array, "batch length dim"]) -> Float[Array, "batch length vocab"]:
        """Returns the logits of the vocabulary head, [B, L, D] → float32 [B, L, V]."""
        matrix, bias = self.unembedding()
        matrix = matrix.astype(self.dtype)
        logits = jnp.einsum("bld,vd->blv", self.head_features(features), matrix, preferred_element_type=jnp.float32)
        logits = logits if bias is None else logits + bias
        return constrain(logits, "batch", "length", "vocab")

    def head_output(self, features: Float[Array, "batch length dim"], name: str) -> Any:
        """Returns the output of a head for features [B, L, D]; only "vocabulary" exists here."""
        return {"vocabulary": self.logits}[name](features)

    def __call__(self, *args: Any, **kwargs: Any) -> jax.Array:
        """Returns logits; arguments as `features`."""
        return self.logits(self.features(*args, **kwargs))
