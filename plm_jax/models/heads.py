"""Heads, which compute outputs from the features of a model.

Shapes: B batch, L length, D width, E width of the embedding tables, T targets, V vocabulary.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Shaped
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.roles import Role
from plm_jax.models.initializers import Initialization
from plm_jax.models.layers import ACTIVATIONS, Activation, Dense, Dropout, NormConfig, ScalarMix, Stream, norm
from plm_jax.models.partitioning import partitioned
from plm_jax.models.recurrent import BiLstm, BiLstmConfig

# The name of a task's head in a model's `heads`.
TASK = "task"


@runtime_checkable
class TableSizes(Protocol):
    """Sizes of a model's embedding tables."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens or words that a vocabulary head predicts."""
        ...

    @property
    def columns(self) -> int:
        """Width of the tables."""
        ...

    @property
    def width(self) -> int:
        """Width of the model."""
        ...


@runtime_checkable
class HeadedModel(Protocol):
    """Interface of the settings of a model with heads: the fields that heads read."""

    @property
    def embedding(self) -> TableSizes:
        """Sizes of the embedding tables."""
        ...

    @property
    def initializer(self) -> Initialization:
        """Initialization of the heads' matrices."""
        ...

    @property
    def norm(self) -> NormConfig:
        """Settings of the model's norms."""
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
    """A Linen module that owns the parameters of a head and provides the layers that most heads use.

    Attributes:
      head: settings of the head; their method `compute` defines the computation.
      model: settings of the model with this head.
      dtype: dtype of activations.
    """

    head: "Head"
    model: HeadedModel
    dtype: Any

    @nn.compact
    def __call__(self, features: Stream, **inputs: Any) -> Any:
        """Returns the output of the head for features [B, L, D] and further inputs."""
        return self.head.compute(self, features, **inputs)

    def dense(
        self,
        name: str,
        x: Float[Array, "*rows inputs"],
        features: int,
        axes: tuple[str | None, str | None] = ("embed", None),
        bias: bool = True,
    ) -> Float[Array, "*rows outputs"]:
        """Applies a dense layer, [..., in] → [..., features]; `axes` are the logical axes of the matrix."""
        return Dense(features, axes, bias, self.model.initializer.matrix(), self.dtype, name=name)(x)

    def dropout(self, x: Stream, rate: float, shared: bool, deterministic: bool) -> Stream:
        """Applies dropout to x [B, L, features].

        If `shared` is True, the same features are dropped at all positions of a row.
        """
        return Dropout(rate, shared)(x, deterministic=deterministic)

    def mixed(
        self,
        name: str,
        layers: Float[Array, "states batch length dim"],
        mask: Shaped[Array, "batch length"] | None,
        layer_norm: bool,
    ) -> Stream:
        """Applies a `ScalarMix` over S hidden states, [S, B, L, D] → [B, L, D]."""
        return ScalarMix(layer_norm, name=name)(layers, mask).astype(self.dtype)

    def recurrent(
        self,
        name: str,
        lstm: BiLstmConfig,
        x: Stream,
        mask: Shaped[Array, "batch length"] | None,
        deterministic: bool,
    ) -> Float[Array, "batch length units"]:
        """Applies LSTMs in both directions, [B, L, D] → [B, L, 2 · cell]."""
        return BiLstm(lstm, self.dtype, name=name)(x, mask, deterministic=deterministic)

    def norm(self, name: str, x: Float[Array, "*rows dim"]) -> Float[Array, "*rows dim"]:
        """Applies the model's norm, [..., width] → [..., width]."""
        return norm(self.model.norm, self.dtype, name=name)(x)

    def table(self, name: str, rows: int, width: int) -> Float[Array, "rows width"]:
        """Creates and returns a trained table [rows, width]."""
        init = partitioned(self.model.initializer.matrix(), (None, None))
        return self.param(name, init, (rows, width)).astype(self.dtype)

    def bias(self, name: str, size: int, axis: str | None = None) -> Float[Array, " size"]:
        """Creates and returns a trained float32 vector [size], initialized to zeros."""
        return self.param(name, partitioned(nn.initializers.zeros, (axis,)), (size,))


class Head(Role):
    """Base class of heads: frozen dataclasses that hold the settings of a head and define its computation.

    Attributes:
      loss: `kind` of the `Loss` or `Term` in `losses/` that trains the head; None if losses refer to the head by its
        name (`Loss.heads`).
      drops: whether the head has dropout with a rate above 0.
    """

    loss: str | None = None
    drops = False

    def with_dropout(self, rate: float) -> "Head":
        """Returns this head with every dropout rate set to `rate`."""
        return self

    def compute(self, module: HeadModule, features: Stream, **inputs: Any) -> Any:
        """Computes the output of the head from features [B, L, D].

        Args:
          module: module that owns the parameters. This function creates the parameters with Linen modules and
            `module.param`, like a `compact` method.
          features: the output of the model.
          inputs: further inputs of the head, by name.
        """
        raise NotImplementedError

    def init_inputs(self, features: Float[Array, "batch length *dims"]) -> dict[str, jax.Array]:
        """Returns the further inputs that `compute` needs when parameters are initialized, by name."""
        return {}

    def macs(self, model: HeadedModel, length: int, targets: int) -> int:
        """Returns the number of multiply-accumulate operations of the head's matrices in a forward pass over one row.

        Matrices that are applied once per text, such as a classifier's, are not counted.

        Args:
          model: settings of the model.
          length: number of tokens in the row.
          targets: number of targets in the row.
        """
        return 0


@dataclass(frozen=True)
class NoHead(Head):
    """No head: without a vocabulary head, a model returns features only."""

    kind: ClassVar[str] = "none"
    # The fields of a `VocabularyHead`.
    tied = False
    scale_by_width = False
    transform = None
    transform_bias = True
    bias = False


@dataclass(frozen=True)
class VocabularyHead(Head):
    """The projection to the vocabulary. The model creates its parameters together with the embedding tables.

    Attributes:
      tied: whether the projection is the transposed token table.
      scale_by_width: whether features are multiplied by width ** -0.5 before the projection (T5 with a tied head).
      transform: activation of a dense layer before the projection. A norm follows the activation (BERT's masked LM
        head). None: no dense layer and no norm.
      transform_bias: whether the dense layer of the transform has a bias.
      bias: whether the projection has a bias [vocab_size].
    """

    kind: ClassVar[str] = "vocabulary"
    tied: bool = True
    scale_by_width: bool = False
    transform: Activation | None = None
    transform_bias: bool = True
    bias: bool = False

    @override
    def macs(self, model, length, targets):
        """Counts the multiplications at targets only."""
        embedding = model.embedding
        transform = embedding.width * embedding.columns if self.transform else 0
        return targets * (embedding.columns * embedding.vocab_size + transform)


@dataclass(frozen=True)
class MaskDecoderHead(VocabularyHead):
    """A vocabulary head after DeBERTa's enhanced mask decoder, which adds absolute positions (He et al. 2021 §3.2).

    The decoder applies the last layer of the stack twice. A model that is fine-tuned for a task applies this layer as
    usual.

    Attributes:
      positions: number of absolute positions.
    """

    kind: ClassVar[str] = "mask_decoder"
    positions: ranges.Length = 512


@dataclass(frozen=True)
class Pooler(Head):
    """A dense layer with tanh on the features of the first token, optionally followed by a classifier of the text.

    Attributes:
      classes: number of classes that are predicted from the pooled features; 0: features only.
    """

    kind: ClassVar[str] = "pooler"
    classes: Annotated[int, ranges.Range(0, 1024)] = 2

    @property
    @override
    def loss(self) -> str | None:
        """Kind of the loss of sentence pairs; None if there are no classes."""
        return "pair" if self.classes else None

    @override
    def compute(self, module: HeadModule, features: Stream, classify: bool = True) -> Float[Array, "batch outputs"]:
        """Returns float32 logits [B, classes]; without classes, or if `classify` is False, pooled features [B, D]."""
        pooled = jnp.tanh(module.dense("pooler", features[:, 0], module.model.embedding.width))
        if not (self.classes and classify):
            return pooled
        return module.dense("classifier", pooled, self.classes).astype(jnp.float32)


@dataclass(frozen=True)
class Discriminator(Head):
    """ELECTRA's head: a dense layer and, for each token, the logit of being replaced (Clark et al. 2020 §2).

    Attributes:
      activation: activation of the dense layer.
      adds_first: whether, before the dense layer, the first token's features are added to every token's features and
        the sums are normalized (DeBERTaV3; microsoft/DeBERTa, replaced_token_detection_model.py).
    """

    kind: ClassVar[str] = "discriminator"
    loss = "replaced_token"
    activation: Activation = "gelu_exact"
    adds_first: bool = False

    @override
    def compute(self, module: HeadModule, features: Stream) -> Float[Array, "batch length"]:
        """Returns float32 logits [B, L]. A logit above 0 predicts that the token was replaced."""
        if self.adds_first:
            features = module.norm("discriminator_norm", features + features[:, :1])
        hidden = module.dense("discriminator_transform", features, module.model.embedding.width)
        return module.dense("discriminator", ACTIVATIONS[self.activation](hidden), 1)[..., 0].astype(jnp.float32)

    @override
    def macs(self, model, length, targets):
        """Counts the multiplications at all tokens."""
        width = model.embedding.width
        return length * (width * width + width)


@dataclass(frozen=True)
class SpanBoundary(Head):
    """SpanBERT's head, which predicts the tokens of a span from the two tokens next to it (Joshi et al. 2020 §3.2).

    The defaults are the values in the command of facebookresearch/SpanBERT, pretraining/README.md.

    Attributes:
      positions: maximum number of predicted tokens per span; the loss leaves out later tokens of a longer span.
      width: width of the embeddings of positions in a span.
      activation: activation of the two dense layers before the projection to the vocabulary; a norm follows each of
        them.
    """

    kind: ClassVar[str] = "span_boundary"
    loss = "boundary"
    positions: ranges.Length = 15
    width: ranges.Width = 200
    activation: Activation = "gelu_exact"

    @override
    def compute(
        self,
        module: HeadModule,
        features: Stream,
        left: Integer[Array, "batch targets"],
        right: Integer[Array, "batch targets"],
        offsets: Integer[Array, "batch targets"],
    ) -> tuple[Float[Array, "batch targets columns"], Float[Array, " vocab"]]:
        """Returns a pair: the features of the targets [B, T, E], and the bias [V] of the unembedding.

        Args:
          module: module that owns the parameters.
          features: [B, L, D].
          left, right: int32 [B, T], the positions directly before and directly after each target's span.
          offsets: int32 [B, T], the index of each target in its span. Indices from `positions` on have the embedding of
            the last position.
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

    @override
    def init_inputs(self, features: Stream) -> dict[str, Integer[Array, "batch length"]]:
        """Returns zeros for `left`, `right` and `offsets`, with one target per token."""
        return dict.fromkeys(("left", "right", "offsets"), jnp.zeros(features.shape[:2], jnp.int32))

    @override
    def macs(self, model, length, targets):
        """Counts the multiplications at targets only."""
        width, columns = model.embedding.width, model.embedding.columns
        return targets * (columns * model.embedding.vocab_size + (2 * width + self.width) * width + width * columns)


@dataclass(frozen=True)
class Softmax(Head):
    """ELMo's softmax: a matrix [vocab_size, width] and a bias [vocab_size], shared by both directions."""

    kind: ClassVar[str] = "softmax"
