"""What a model is: small frozen dataclasses, nested; plain Python, so that a config can be read without JAX.

A field whose type is a union of dataclasses is a tagged choice: in a config file each choice is written as its fields
plus `kind`, so a field of one choice cannot be given to another.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar, Literal

Activation = Literal["gelu_tanh", "gelu_exact", "relu", "silu", "tanh"]


@dataclass(frozen=True)
class LearnedPositions:
    """A trained table [length, embed], added to the token embeddings."""

    kind: ClassVar[str] = "learned"
    length: int
    init_std: float = 0.02


@dataclass(frozen=True)
class NoPositions:
    """Order reaches the model through the causal mask alone."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class Embedding:
    """The token table [vocab_size, width]; `vocab_size` may exceed the vocabulary's."""

    vocab_size: int
    width: int


@dataclass(frozen=True)
class Attention:
    """Multi-head attention.

    Attributes:
      score_scale: factor on query·key; None means head_dim ** -0.5.
      scale_by_inverse_depth: layer i (from 0) further divides its scores by i + 1.
    """

    heads: int
    head_dim: int
    position: LearnedPositions | NoPositions
    bias: bool = True
    score_scale: float | None = None
    scale_by_inverse_depth: bool = False


@dataclass(frozen=True)
class FeedForward:
    """width → activation → back."""

    width: int
    activation: Activation = "gelu_tanh"
    bias: bool = True


@dataclass(frozen=True)
class Norm:
    """LayerNorm, before each sub-layer and once more after the stack."""

    epsilon: float = 1e-5


@dataclass(frozen=True)
class Stack:
    """How many blocks."""

    layers: int


@dataclass(frozen=True)
class Head:
    """The projection to the vocabulary; tied means the token table transposed."""

    tied: bool = True


@dataclass(frozen=True)
class Dropout:
    """Rates: after the embeddings, on attention probabilities, on each sub-layer's output before it is added."""

    embedding: float = 0.0
    attention: float = 0.0
    residual: float = 0.0

    def all_at(self, rate: float) -> "Dropout":
        """Every rate set to `rate`."""
        return Dropout(**{f.name: rate for f in dataclasses.fields(self)})


@dataclass(frozen=True)
class Initializer:
    """Normal with `std`; the projections that write to the residual stream shrink by 1 / sqrt(2 · layers) if asked."""

    std: float = 0.02
    shrink_residual: bool = False


@dataclass(frozen=True)
class Decoder:
    """A causal language model.

    Attributes:
      scan_layers: compile one block and loop, or unroll all; parameters are stacked on a `layers` axis either way.
      remat: what the backward pass recomputes: nothing; all but the products of weight matrices; whole blocks.
    """

    kind: ClassVar[str] = "decoder"
    embedding: Embedding
    attention: Attention
    feed_forward: FeedForward
    stack: Stack
    norm: Norm = Norm()
    head: Head = Head()
    dropout: Dropout = Dropout()
    initializer: Initializer = field(default_factory=Initializer)
    scan_layers: bool = True
    remat: Literal["none", "dots", "full"] = "none"
