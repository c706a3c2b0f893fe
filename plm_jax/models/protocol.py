"""The interface of models, for training, planning, evaluation and conversion: settings that build a Linen module.

    model = EncoderConfig(…)                  # hashable and JSON-serializable; a static argument of jitted functions
    module = model.module(jnp.bfloat16)       # a `Module`
    params = module.init(key, **model.init_inputs())["params"]
    features = module.apply({"params": params}, **model.read(batch), method="features")

A new kind of model is a frozen dataclass derived from `ModelConfig`, together with a Linen module that implements
`Module`. `VocabularyModule` implements most of `Module`.
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
    """Base class of model settings.

    Attributes:
      kind: name in configs.
      architecture: name by which objectives list the models that they train; by default the `kind`. A class derived
        from the settings of another model inherits the `architecture` of that model, unless it sets its own.
      inputs: names of the arrays of a batch that `Module.features` reads, if the batch has them.
      vocab_size: number of rows of the token table or, for a model that reads characters, number of words that the
        model can predict; may be larger than the vocabulary.
      num_positions: maximum number of positions in a row; None: no maximum.
      max_length: number of tokens in a row that the model was designed for; None if unknown.
      max_characters: maximum number of characters of a word, for a model that reads characters; 0 for a model that
        reads tokens.
      token_types: number of token types; 0: no token types.
      attention_heads: number of attention heads, in an encoder-decoder those of the encoder; 0 without attention.
        `mesh.tensor` should divide this number.
      any_order: whether the positions of a row are computed in parallel. If not, `mesh.context` cannot shard them.
      uses_absolute_positions: whether positions are treated as absolute, as in `Position.uses_absolute_positions`.
      remat_levels: values of the field `remat`, from the least recomputation to the most; ("none",) without this field.
      stacks: `transformer.StackConfig` of each stack of layers; () for a model without stacks.
      has_stages: whether pipeline stages may split the stacks.
      is_placeholder: whether these settings are a placeholder in a config for a model loaded from a checkpoint.
      stack_paths: path in the parameter tree of each stack in `stacks`, such as `encoder`.
      pipeline_microbatches: as in `TransformerConfig`.
      num_states: number of hidden states [B, L, state_width] that task heads can read: the embeddings and the output of
        each layer, in an encoder-decoder those of the decoder.
      heads: heads by name, except heads that have a separate field; () if the model does not support such heads.
      dropout: dropout rates, an object with `rates` and `all_at` as in `DropoutConfig`; None: no dropout.
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
        """Returns the Linen module of these settings; its activations have the given dtype."""
        raise NotImplementedError

    def init_inputs(self) -> dict[str, Any]:
        """Returns inputs to initialize the module with: zeros in the smallest possible shapes."""
        return {"tokens": jnp.zeros((1, 1), jnp.int32)}

    def new_carry(self, rows: int) -> Any:
        """Returns the initial recurrent state of a batch, a tree of boxed arrays [rows, …]; empty for most models."""
        return {}

    @property
    def has_carry(self) -> bool:
        """Whether the model has recurrent state that a loss carries from batch to batch."""
        if type(self).new_carry is ModelConfig.new_carry:
            return False
        return bool(jax.tree.leaves(jax.eval_shape(lambda: self.new_carry(1))))

    def macs(self, length: int, targets: int, decoder_length: int = 0, samples: int = 0) -> float:
        """Returns the number of multiply-accumulate operations in the matrix products of a forward pass over a row.

        Causal attention counts half as much as bidirectional attention. Embedding look-ups and layers that run once per
        row, such as a pooler, do not count.

        Args:
          length: number of tokens of the row.
          targets: number of predicted tokens, in the decoder if there is one. A vocabulary head counts only for these
            tokens, except in ELMo, which predicts words at all positions.
          decoder_length: number of tokens of the decoder, for a model with `decoder_tokens` among its inputs.
          samples: number of other words with which a target is compared in training (sampled softmax); 0: all words.
            Only ELMo uses this argument.
        """
        raise NotImplementedError

    def read(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arrays of a batch whose names are in `inputs`."""
        return {name: batch[name] for name in self.inputs if name in batch}

    @property
    def named_heads(self) -> Mapping[str, Head]:
        """Heads by the names that losses and callers use; by default only "vocabulary", the head of `Module.logits`."""
        return {"vocabulary": VocabularyHead(tied=False)}

    @property
    def has_decoder(self) -> bool:
        """Whether the model is an encoder-decoder, which reads `decoder_tokens` in addition to `tokens`."""
        return "decoder_tokens" in self.inputs

    @property
    def drops(self) -> bool:
        """Whether the model or a head in `heads` has a dropout rate above 0."""
        model_drops = self.dropout is not None and any(self.dropout.rates.values())
        return model_drops or any(head.drops for _, head in self.heads)

    def with_task(self, head: Head) -> "ModelConfig":
        """Returns the settings for training on a task.

        In the result, `heads` contains only this head, with the name "task". Some subclasses also remove other heads,
        such as the vocabulary head.

        Raises:
          UserError: the model does not support heads of tasks.
        """
        if "heads" not in {field.name for field in dataclasses.fields(self)}:
            raise UserError(f"a model of kind '{self.kind}' does not support heads of tasks: choose another model")
        return dataclasses.replace(self, heads=((TASK, head),))

    def with_speed(self, **fields: Any) -> Self:
        """Returns these settings with some fields replaced, such as `scan_layers`.

        Fields that these settings do not have are ignored.
        """
        names = {field.name for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **{name: value for name, value in fields.items() if name in names})

    def with_dropout(self, rate: float) -> Self:
        """Returns these settings with every dropout rate set to `rate`, or unchanged if `dropout` is None."""
        if self.dropout is None:
            return self
        changed: dict[str, Any] = {"dropout": self.dropout.all_at(rate)}
        if self.heads:
            changed["heads"] = tuple((name, head.with_dropout(rate)) for name, head in self.heads)
        return dataclasses.replace(self, **changed)


@runtime_checkable
class Module(Protocol):
    """The interface of the Linen module of a `ModelConfig`.

    Shapes: B batch, L length, D width, E the columns of the unembedding, V vocabulary.
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
        """Returns the features that the heads read: [B, L, D] in most models, [B, 2, L, D] in ELMo.

        XLNet returns the features of the targets, [B, T, D], if the inputs contain `target_positions` of T targets.

        Args:
          inputs: the arrays named by `ModelConfig.inputs`, and `deterministic`. Dropout is disabled if `deterministic`
            is True, which is the default.
        """
        ...

    def states(self, **inputs: jax.Array) -> jax.Array:
        """Returns the embeddings and the output of each layer, for heads of tasks.

        In an encoder-decoder, these are the states of the decoder. The arguments are the same as for `features`. The
        collection `intermediates` must be mutable.

        Returns:
          Hidden states [num_states, B, L, state_width], with the sizes in the model's settings.
        """
        ...

    def head_features(self, features: Float[Array, "*rows dim"]) -> Float[Array, "*rows columns"]:
        """Returns the input of the unembedding, [..., D] → [..., E]."""
        ...

    def unembedding(self) -> tuple[Any, Float[Array, " vocab"] | None]:
        """Returns a pair: the matrix [V, E] of the vocabulary head, and the bias [V] of the head or None."""
        ...

    def logits(self, features: Float[Array, "batch length dim"]) -> Float[Array, "batch length vocab"]:
        """Returns the logits of the vocabulary head for `features`, float32 [B, L, V]."""
        ...

    def head_output(self, features: jax.Array, name: str, **inputs: jax.Array) -> Any:
        """Returns the output of a head.

        Args:
          features: result of `features`.
          name: name of the head in `ModelConfig.named_heads`.
          inputs: further inputs of the head.
        """
        ...

    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies the module, like `flax.linen.Module.apply`."""
        ...

    def init(self, rngs: jax.Array, *args: Any, **kwargs: Any) -> nn.FrozenDict | dict:
        """Initializes the parameters of the module and of all heads, like `flax.linen.Module.init`."""
        ...


class VocabularyModule(nn.Module):
    """Base class of modules that predict tokens; subclasses implement `features` and `unembedding`.

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
        """Returns logits. The arguments are the same as for `features`."""
        return self.logits(self.features(*args, **kwargs))
