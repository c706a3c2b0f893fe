"""Heads: what a model makes of its features.

Shapes: B batch, L length, D width, E the tables' width, T targets, V vocabulary.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.common import ranges
from plm_jax.common.roles import Role
from plm_jax.models.initializers import Initialization
from plm_jax.models.layers import ACTIVATIONS, Activation, Dense, Dropout, NormConfig, ScalarMix, norm
from plm_jax.models.partitioning import partitioned
from plm_jax.models.recurrent import BiLstm, BiLstmConfig

# What the head of a task is called among a model's `heads`.
TASK = "task"


@runtime_checkable
class TableSizes(Protocol):
    """Sizes of a model's tables of embeddings."""

    @property
    def vocab_size(self) -> int:
        """Number of rows."""
        ...

    @property
    def columns(self) -> int:
        """Width of the tables."""
        ...

    @property
    def width(self) -> int:
        """Width of the model that reads them."""
        ...


@runtime_checkable
class HeadedModel(Protocol):
    """The part of a model's settings that its heads depend on."""

    @property
    def embedding(self) -> TableSizes:
        """Sizes of the tables of embeddings."""
        ...

    @property
    def initializer(self) -> Initialization:
        """Initialization of the heads' matrices."""
        ...

    @property
    def norm(self) -> NormConfig:
        """The norm of the model."""
        ...

    @property
    def num_states(self) -> int:
        """Number of hidden states that a head can read, the embeddings included."""
        ...

    @property
    def state_width(self) -> int:
        """Width of each hidden state."""
        ...


class HeadModule(nn.Module):
    """A head over a model's features: its parameters, and the parts that most heads are made of.

    Attributes:
      head: its settings, which compute.
      model: the settings of the model that it is a head of.
      dtype: of activations.
    """

    head: "Head"
    model: HeadedModel
    dtype: Any

    @nn.compact
    def __call__(self, features: jax.Array, **inputs: jax.Array) -> Any:
        """What the head gives of features [B, L, D]."""
        return self.head.compute(self, features, **inputs)

    def dense(
        self,
        name: str,
        x: jax.Array,
        features: int,
        axes: tuple[str | None, str | None] = ("embed", None),
        bias: bool = True,
    ) -> jax.Array:
        """A dense layer, [..., in] → [..., features]; `axes` are the logical ones of its matrix."""
        return Dense(features, axes, bias, self.model.initializer.matrix(), self.dtype, name=name)(x)

    def dropout(self, x: jax.Array, rate: float, shared: bool, deterministic: bool) -> jax.Array:
        """Dropout over [B, L, features]; `shared`: the same features at each of L."""
        return Dropout(rate, shared)(x, deterministic=deterministic)

    def mixed(self, name: str, layers: jax.Array, mask: jax.Array | None, layer_norm: bool) -> jax.Array:
        """The `ScalarMix` of layers [S, B, L, D]: [B, L, D]."""
        return ScalarMix(layer_norm, name=name)(layers, mask).astype(self.dtype)

    def recurrent(
        self, name: str, lstm: BiLstmConfig, x: jax.Array, mask: jax.Array | None, deterministic: bool
    ) -> jax.Array:
        """LSTMs in both directions, [B, L, D] → [B, L, 2 · cell]."""
        return BiLstm(lstm, self.dtype, name=name)(x, mask, deterministic=deterministic)

    def norm(self, name: str, x: jax.Array) -> jax.Array:
        """The model's norm, [..., width] → [..., width]."""
        return norm(self.model.norm, self.dtype, name=name)(x)

    def table(self, name: str, rows: int, width: int) -> jax.Array:
        """A trained table [rows, width]."""
        init = partitioned(self.model.initializer.matrix(), (None, None))
        return self.param(name, init, (rows, width)).astype(self.dtype)

    def bias(self, name: str, size: int, axis: str | None = None) -> jax.Array:
        """A trained vector float32 [size], at first zeros."""
        return self.param(name, partitioned(nn.initializers.zeros, (axis,)), (size,))


class Head(Role):
    """The base of heads. One is a frozen dataclass of its fields and what it computes.

    Attributes:
      loss: kind of the loss, or of the term of one, that trains it, in `losses/`; None: the loss of an objective names
        the head.
      drops: whether it has dropout of a rate above 0.
    """

    loss: str | None = None
    drops = False

    def with_dropout(self, rate: float) -> "Head":
        """The same with all its dropout at this rate."""
        return self

    def compute(self, module: HeadModule, features: jax.Array, **inputs: Any) -> Any:
        """What it gives of features [B, L, D].

        Args:
          module: has the parameters: inside of this function Linen modules and `module.param` make them, as in a
            `compact` method.
          features: the model's.
          inputs: what else it reads, by name.
        """
        raise NotImplementedError

    def init_inputs(self, features: jax.Array) -> dict[str, jax.Array]:
        """Inputs besides the features with which its parameters are made."""
        return {}

    def products(self, model: HeadedModel, length: int, targets: int) -> int:
        """Multiplications with its matrices, forward, for a row of so many tokens, so many of them targets.

        What is done once a row is left out.
        """
        return 0


@dataclass(frozen=True)
class NoHead(Head):
    """No head: the model gives features only."""

    kind: ClassVar[str] = "none"
    # As of a `VocabularyHead`.
    tied = False
    scale_by_width = False
    transform = None
    bias = False


@dataclass(frozen=True)
class VocabularyHead(Head):
    """The projection to the vocabulary, which the architecture makes beside its tables of embeddings.

    Attributes:
      tied: it is the token table transposed.
      scale_by_width: features shrink by width ** -0.5 before it (T5 with a tied head).
      transform: before it comes a dense layer with this activation, and a norm (BERT's masked LM head).
      bias: it has a bias [vocab_size].
    """

    kind: ClassVar[str] = "vocabulary"
    tied: bool = True
    scale_by_width: bool = False
    transform: Activation | None = None
    bias: bool = False

    def products(self, model, length, targets):
        """At targets alone."""
        embedding = model.embedding
        transform = embedding.width * embedding.columns if self.transform else 0
        return targets * (embedding.columns * embedding.vocab_size + transform)


@dataclass(frozen=True)
class Pooler(Head):
    """A dense layer with tanh on the first position, and `classes` of the text from it (0: features only)."""

    kind: ClassVar[str] = "pooler"
    classes: Annotated[int, ranges.Range(0, 1024)] = 2

    @property
    def loss(self) -> str | None:
        """That of pairs; features alone have none."""
        return "pair" if self.classes else None

    def compute(self, module, features, classify=True):
        """[B, L, D] → float32 [B, classes]; without classes, or where they are not asked for, [B, D]."""
        pooled = jnp.tanh(module.dense("pooler", features[:, 0], module.model.embedding.width))
        if not (self.classes and classify):
            return pooled
        return module.dense("classifier", pooled, self.classes).astype(jnp.float32)


@dataclass(frozen=True)
class Discriminator(Head):
    """ELECTRA's head: for each token a dense layer and one logit, was it replaced (Clark et al. 2020 §2)."""

    kind: ClassVar[str] = "discriminator"
    loss = "replaced_token"
    activation: Activation = "gelu_exact"

    def compute(self, module, features):
        """[B, L, D] → float32 [B, L], above 0 where a token was replaced."""
        hidden = module.dense("discriminator_transform", features, module.model.embedding.width)
        return module.dense("discriminator", ACTIVATIONS[self.activation](hidden), 1)[..., 0].astype(jnp.float32)

    def products(self, model, length, targets):
        """At all tokens."""
        width = model.embedding.width
        return length * (width * width + width)


@dataclass(frozen=True)
class SpanBoundary(Head):
    """SpanBERT's span boundary head: a span's tokens from the two beside it (Joshi et al. 2020 §3.2).

    The defaults are those of the command in facebookresearch/SpanBERT, pretraining/README.md.

    Attributes:
      positions: how many tokens of a span, from its first on, are predicted.
      width: of the vectors that tell these apart.
      activation: of the two dense layers, each followed by a norm, before the token table transposed.
    """

    kind: ClassVar[str] = "span_boundary"
    loss = "boundary"
    positions: ranges.Length = 15
    width: ranges.Width = 200
    activation: Activation = "gelu_exact"

    def compute(self, module, features, left, right, offsets):
        """From features [B, L, D] to those of T targets, [B, T, E], and the bias [V] of what they are multiplied with.

        Args:
          module: as in `Head`.
          features: [B, L, D].
          left, right: int32 [B, T], the positions before and after each target's span.
          offsets: int32 [B, T], each target's number in its span, from 0.
        """
        embedding = module.model.embedding
        table = module.table("position_embedding", self.positions, self.width)
        boundaries = [jnp.take_along_axis(features, at[..., None], axis=1) for at in (left, right)]
        x = jnp.concatenate([*boundaries, table[jnp.minimum(offsets, self.positions - 1)]], axis=-1)
        for number, width in enumerate((embedding.width, embedding.columns)):
            axes = ("embed", None) if number else (None, "embed")
            x = module.dense(f"transform_{number}", x, width, axes)
            x = module.norm(f"norm_{number}", ACTIVATIONS[self.activation](x))
        return x, module.bias("bias", embedding.vocab_size, "vocab")

    def init_inputs(self, features):
        """One target a token."""
        return dict.fromkeys(("left", "right", "offsets"), jnp.zeros(features.shape[:2], jnp.int32))

    def products(self, model, length, targets):
        """At targets alone."""
        width, columns = model.embedding.width, model.embedding.columns
        return targets * (columns * model.embedding.vocab_size + (2 * width + self.width) * width + width * columns)


@dataclass(frozen=True)
class Softmax(Head):
    """A matrix [vocab_size, width] and a bias [vocab_size], the same ones for both directions of an ELMo."""

    kind: ClassVar[str] = "softmax"
