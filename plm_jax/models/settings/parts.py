"""The parts that transformers share, as settings."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

from plm_jax.common.errors import UserError
from plm_jax.models.positions import Position

Activation = Literal["gelu_tanh", "gelu_exact", "relu", "silu", "tanh"]


@dataclass(frozen=True)
class Embedding:
    """The token table [vocab_size, width]; `vocab_size` may exceed the vocabulary's.

    Attributes:
      token_types: rows of a second table, for the parts of a pair (BERT's segments); 0: there is none.
      norm: whether the sum of the embeddings is normed.
      embedding_size: the width of all tables, where it is not `width`: a dense layer with a bias leads from their sum,
        normed, to `width`, and the head's transform back (Lan et al. 2020 §3.1).
      scale_by_width: the tokens' embeddings grow by width ** 0.5 before the sum.
    """

    vocab_size: int
    width: int
    token_types: int = 0
    norm: bool = False
    embedding_size: int | None = None
    scale_by_width: bool = False

    @property
    def columns(self) -> int:
        """The tables' width."""
        return self.width if self.embedding_size is None else self.embedding_size


@dataclass(frozen=True)
class Attention:
    """Multi-head attention.

    Attributes:
      kv_heads: heads of keys and values, each shared by as many heads in a row (Ainslie et al. 2023); None: all heads
        have their own.
      score_scale: factor on query·key; None means head_dim ** -0.5.
      scale_by_inverse_depth: layer i (from 0) further divides its scores by i + 1.
      out_bias: whether the projection after the heads has a bias; None: if queries, keys and values have one.
      windows: layer i sees keys less than windows[i % len(windows)] places away, 0: all of them; empty: all layers do.
    """

    heads: int
    head_dim: int
    position: Position
    bias: bool = True
    score_scale: float | None = None
    scale_by_inverse_depth: bool = False
    kv_heads: int | None = None
    out_bias: bool | None = None
    windows: tuple[int, ...] = ()

    def __post_init__(self):
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise UserError(f"attention.kv_heads is {self.kv_heads}: give a divisor of the {self.heads} heads")
        if any(window < 0 for window in self.windows):
            raise UserError(f"attention.windows is {self.windows}: give numbers of keys, or 0 for all")
        self.position.check(self)

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def bias_after(self) -> bool:
        """Whether the projection after the heads has a bias."""
        return self.bias if self.out_bias is None else self.out_bias


@dataclass(frozen=True)
class FeedForward:
    """width → activation → back; `gated` multiplies the activation with a second product (Shazeer 2020)."""

    width: int
    activation: Activation = "gelu_tanh"
    bias: bool = True
    gated: bool = False


@dataclass(frozen=True)
class Norm:
    """LayerNorm, or RMSNorm, which has neither mean nor bias (Zhang and Sennrich 2019).

    Attributes:
      placement: before each sub-layer and once more after the stack; or after each addition of a sub-layer's output;
        `deep` is as `pre`, but a sub-layer's output is added to its normed input times sqrt(2 · layers), not to the
        input itself (ChatGLM-6B's variant of Wang et al. 2022).
    """

    epsilon: float = 1e-5
    kind: Literal["layer", "rms"] = "layer"
    placement: Literal["pre", "post", "deep"] = "pre"


@dataclass(frozen=True)
class Stack:
    """How many blocks.

    Attributes:
      layers: how many; each gives a hidden state.
      groups: so many runs of layers, all as long, of which each shares its parameters (Lan et al. 2020 §3.1); None:
        each layer has its own.
      inner: blocks of a layer, one after another, each with parameters of its own.
    """

    layers: int
    groups: int | None = None
    inner: int = 1

    def __post_init__(self):
        if self.groups is not None and (self.groups < 1 or self.layers % self.groups):
            raise UserError(f"stack.groups is {self.groups}: give a divisor of the {self.layers} layers")
        if self.inner < 1:
            raise UserError(f"stack.inner is {self.inner}: give at least 1")

    @property
    def blocks(self) -> int:
        """How many a token goes through."""
        return self.layers * self.inner

    @property
    def stored_blocks(self) -> int:
        """How many have parameters."""
        return (self.layers if self.groups is None else self.groups) * self.inner


@dataclass(frozen=True)
class Dropout:
    """Rates: after the embeddings, on attention probabilities, on each sub-layer's output before it is added, on the
    activations of the feed-forward, on what leaves a stack. `broadcast` drops the same units at every position (T5).
    """

    embedding: float = 0.0
    attention: float = 0.0
    residual: float = 0.0
    feed_forward: float = 0.0
    output: float = 0.0
    broadcast: bool = False

    @property
    def rates(self) -> dict[str, float]:
        """Each rate by its name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "broadcast"}

    def all_at(self, rate: float) -> "Dropout":
        """Every rate set to `rate`."""
        return dataclasses.replace(self, **dict.fromkeys(self.rates, rate))


@dataclass(frozen=True)
class Initializer:
    """Normal with `std`, its tails cut at two of them if `truncated`.

    Attributes:
      shrink_residual: the projections that write to the residual stream shrink by 1 / sqrt(2 · layers).
    """

    kind: ClassVar[str] = "normal"
    std: float = 0.02
    shrink_residual: bool = False
    truncated: bool = False


@dataclass(frozen=True)
class FanIn:
    """T5's: matrices with a variance of 1 / inputs, queries also / head_dim; tables of embeddings with one of 1.

    google-research/t5x, examples/t5/layers.py.
    """

    kind: ClassVar[str] = "fan_in"
