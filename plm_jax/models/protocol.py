"""What a model is, to all that trains, plans, evaluates or converts one: settings that build a Linen module.

    model = EncoderConfig(…)                  # hashable, JSON: jitted functions are static on it
    module = model.module(jnp.bfloat16)       # a `Module`
    params = module.init(key, **model.init_inputs())["params"]
    features = module.apply({"params": params}, **model.read(batch), method="features")

A model of another kind is a frozen dataclass below `ModelConfig` and a Linen module that keeps `Module`; one below
`VocabularyModule` has most of it.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.common.errors import UserError
from plm_jax.common.roles import Role
from plm_jax.models.heads import TASK, Head, VocabularyHead
from plm_jax.models.partitioning import constrain


class ModelConfig(Role):
    """The base of models' settings.

    Attributes:
      kind: what configs call it.
      architecture: what objectives call the models that they train; its `kind`, or that of the model it varies.
      inputs: what of a batch `Module.features` takes, by name.
      vocab_size: how many tokens, or words, it tells apart; perhaps more than the vocabulary has.
      num_positions: how many tokens a row may have; None: any number.
      meant_length: how many tokens of a row it is meant for; None: it is not said.
      max_characters: of a word, of a model that reads words by their characters; 0: it reads tokens.
      token_types: of how many parts of a row it tells which a token is of; 0: of none.
      attention_heads: of its attention, whose number `mesh.tensor` should divide; 0: it has none.
      any_order: the places of a row are computed together, so that `mesh.context` can cut it.
      tells_places: a text reads otherwise where it stands further back in a row.
      remat_levels: values of its field `remat`, from what recomputes least to most; "none" alone: it has no such field.
      stacks: `transformer.StackConfig`s of its layers, each of which a mesh's stages cut; none: they cannot.
      stands_in: it is no model, and a config has it where a checkpoint is to bring one.
      stack_paths: of each of these where its parameters are in the tree, as `encoder`.
      pipeline_microbatches: as of `TransformerConfig`.
      num_states: how many [B, L, state_width] the heads of tasks read from, the embeddings and what each layer gives.
      heads: those that are not its fields by themselves, by name; () where it can have none.
      dropout: its rates, with `rates` and `all_at` as `DropoutConfig` has them; None: it has no dropout.
    """

    architecture: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]] = ("tokens",)
    vocab_size: int
    num_positions = None
    meant_length = None
    max_characters = 0
    token_types = 0
    attention_heads = 0
    any_order = True
    tells_places = False
    remat = "none"
    remat_levels: ClassVar[tuple[str, ...]] = ("none",)
    stacks = ()
    stack_paths: ClassVar[tuple[str, ...]] = ()
    stands_in: ClassVar[bool] = False
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
        """The Linen module of these settings, with activations of this type."""
        raise NotImplementedError

    def init_inputs(self) -> dict[str, Any]:
        """The smallest inputs of the module, all zeros, with which its parameters are made."""
        return {"tokens": jnp.zeros((1, 1), jnp.int32)}

    def new_carry(self, rows: int) -> Any:
        """What a loss carries from batch to batch before the first: a tree of boxed arrays [rows, …]; mostly empty."""
        return {}

    @property
    def has_carry(self) -> bool:
        """Whether the model has recurrent state that a loss carries from batch to batch."""
        if type(self).new_carry is ModelConfig.new_carry:
            return False
        return bool(jax.tree.leaves(jax.eval_shape(lambda: self.new_carry(1))))

    def products(self, length: int, targets: int, decoder_length: int = 0, samples: int = 0) -> float:
        """Multiplications in the matrix products of a row's forward pass, causal attention halved, no look-ups.

        Args:
          length: tokens of the row.
          targets: of them, or of the decoder's, predicted: the head is applied there only.
          decoder_length: tokens of the decoder, of a model with `decoder_tokens` among its inputs.
          samples: words that a target is compared with in training; 0: all.
        """
        raise NotImplementedError

    def read(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """What of a batch the module's `features` takes."""
        return {name: batch[name] for name in self.inputs if name in batch}

    @property
    def named_heads(self) -> Mapping[str, Head]:
        """Its heads by the names that losses and callers ask for them by; by default `Module.logits` alone."""
        return {"vocabulary": VocabularyHead(tied=False)}

    @property
    def has_decoder(self) -> bool:
        """Whether a second text answers the first: its inputs are `tokens` and `decoder_tokens`."""
        return "decoder_tokens" in self.inputs

    @property
    def drops(self) -> bool:
        """Whether it has dropout of a rate above 0."""
        own = self.dropout is not None and any(self.dropout.rates.values())
        return own or any(head.drops for _, head in self.heads)

    def with_task(self, head: Head) -> "ModelConfig":
        """The model to be trained for a task alone: with this head, called "task", and no others but the vocabulary's.

        Raises:
          UserError: it takes none.
        """
        if "heads" not in {field.name for field in dataclasses.fields(self)}:
            raise UserError(f"a model of kind '{self.kind}' takes no head of a task: choose another model")
        return dataclasses.replace(self, heads=((TASK, head),))

    def with_speed(self, **fields: Any) -> Self:
        """The same with other settings of how it is computed, such as `scan_layers`, those of them that it has."""
        own = {field.name for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **{name: value for name, value in fields.items() if name in own})

    def with_dropout(self, rate: float) -> Self:
        """The same with all dropout at this rate."""
        if self.dropout is None:
            return self
        changed: dict[str, Any] = {"dropout": self.dropout.all_at(rate)}
        if self.heads:
            changed["heads"] = tuple((name, head.with_dropout(rate)) for name, head in self.heads)
        return dataclasses.replace(self, **changed)


@runtime_checkable
class Module(Protocol):
    """What the Linen module of a `ModelConfig` offers besides `init` and `apply`.

    Shapes: B batch, L length, T targets, D width, E the columns of the unembedding, V vocabulary.
    """

    @property
    def model(self) -> ModelConfig:
        """Settings."""
        ...

    @property
    def dtype(self) -> Any:
        """Type of activations."""
        ...

    def features(self, **inputs: jax.Array) -> jax.Array:
        """What heads are applied to, [B, L, D], of `ModelConfig.inputs` and `deterministic` (no dropout)."""
        ...

    def states(self, **inputs: jax.Array) -> jax.Array:
        """The embeddings, then what each layer gives, [layers + 1, B, L, D], for the heads of tasks; arguments as
        `features`. The collection `intermediates` is to be mutable.
        """
        ...

    def head_features(self, features: jax.Array) -> jax.Array:
        """What the unembedding is applied to, [..., D] → [..., E]."""
        ...

    def unembedding(self) -> tuple[jax.Array, jax.Array | None]:
        """The vocabulary head's matrix [V, E] and bias [V] (None: it has none)."""
        ...

    def logits(self, features: jax.Array) -> jax.Array:
        """The vocabulary head: [B, L, D] → float32 [B, L, V]."""
        ...

    def head_output(self, features: jax.Array, name: str, **inputs: jax.Array) -> Any:
        """What one of `ModelConfig.named_heads` gives of features and what else it reads; "vocabulary": `logits`."""
        ...

    def apply(self, variables: Any, *args: Any, **kwargs: Any) -> Any:
        """As `flax.linen.Module.apply`."""
        ...

    def init(self, rngs: jax.Array, *args: Any, **kwargs: Any) -> nn.FrozenDict | dict:
        """As `flax.linen.Module.init`; makes the parameters of all heads."""
        ...


class VocabularyModule(nn.Module):
    """The base of modules that predict tokens; one has `features` and `unembedding`.

    Attributes:
      model: its settings.
      dtype: of activations.
    """

    model: ModelConfig
    dtype: Any = jnp.float32

    def head_features(self, features: jax.Array) -> jax.Array:
        """What the unembedding is applied to, [..., D] → [..., E]; by default the features."""
        return features

    def logits(self, features: jax.Array) -> jax.Array:
        """The vocabulary head: [B, L, D] → float32 [B, L, V]."""
        matrix, bias = self.unembedding()
        matrix = matrix.astype(self.dtype)
        logits = jnp.einsum("bld,vd->blv", self.head_features(features), matrix, preferred_element_type=jnp.float32)
        logits = logits if bias is None else logits + bias
        return constrain(logits, "batch", "length", "vocab")

    def head_output(self, features: jax.Array, name: str) -> jax.Array:
        """What one of the settings' `named_heads` gives of features [B, L, D]: here there is the vocabulary's alone."""
        return {"vocabulary": self.logits}[name](features)

    def __call__(self, *args: Any, **kwargs: Any) -> jax.Array:
        """Logits; arguments as `features`."""
        return self.logits(self.features(*args, **kwargs))
