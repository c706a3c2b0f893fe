"""The parts that transformers share, as settings."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.activations import Activation
from plm_jax.models.positions import Position


@dataclass(frozen=True)
class EmbeddingConfig:
    """The embeddings of tokens, [vocab_size, width]; `vocab_size` may be larger than the vocabulary.

    Attributes:
      token_types: rows of a second table, for the parts of a pair (BERT's segments); 0: there is none.
      norm: whether the sum of the embeddings is normed.
      embedding_size: the width of all tables, where it is not `width`: a dense layer with a bias leads from their sum,
        normed, to `width`, and the head's transform back (Lan et al. 2020 §3.1).
      scale_by_width: the tokens' embeddings grow by width ** 0.5 before the sum.
    """

    vocab_size: ranges.Length
    width: ranges.Width
    token_types: Annotated[int, ranges.Range(0, 1024)] = 0
    norm: bool = False
    embedding_size: ranges.Width | None = None
    scale_by_width: bool = False

    @property
    def columns(self) -> int:
        """The width of the embedding tables: `embedding_size`, or else `width`."""
        return self.width if self.embedding_size is None else self.embedding_size


@dataclass(frozen=True)
class AttentionConfig:
    """Multi-head attention, with a position scheme; grouped-query attention where `kv_heads` is given.

    Attributes:
      kv_heads: heads of keys and values, each shared by as many heads in a row (Ainslie et al. 2023); None: all heads
        have their own.
      score_scale: factor on query·key; None means head_dim ** -0.5.
      scale_by_inverse_depth: layer i (from 0) further divides its scores by i + 1.
      out_bias: whether the projection after the heads has a bias; None: if queries, keys and values have one.
      windows: layer i sees keys less than windows[i % len(windows)] places away, 0: all of them; empty: all layers do.
    """

    heads: ranges.Width
    head_dim: ranges.Width
    position: Position
    bias: bool = True
    score_scale: ranges.Positive | None = None
    scale_by_inverse_depth: bool = False
    kv_heads: ranges.Width | None = None
    out_bias: bool | None = None
    windows: tuple[ranges.LengthOrZero, ...] = ()

    def __post_init__(self):
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise UserError(f"attention.kv_heads is {self.kv_heads}: give a divisor of the {self.heads} heads")
        self.position.check(self)

    @property
    def num_kv_heads(self) -> int:
        """How many heads of keys and values there are."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def bias_after(self) -> bool:
        """Whether the projection after the heads has a bias."""
        return self.bias if self.out_bias is None else self.out_bias


@dataclass(frozen=True)
class FeedForwardConfig:
    """The feed-forward layer: to `width`, an activation, and back; `gated`: times a second product (Shazeer 2020)."""

    width: ranges.Width
    activation: Activation = "gelu_tanh"
    bias: bool = True
    gated: bool = False


@dataclass(frozen=True)
class NormConfig:
    """The normalisation: LayerNorm, or RMSNorm, which has neither mean nor bias (Zhang and Sennrich 2019).

    Attributes:
      placement: before each sub-layer and once more after the stack; or after each addition of a sub-layer's output;
        `deep` is as `pre`, but a sub-layer's output is added to its normed input times sqrt(2 · layers), not to the
        input itself (ChatGLM-6B's variant of Wang et al. 2022).
    """

    epsilon: ranges.Share = 1e-5
    kind: Literal["layer", "rms"] = "layer"
    placement: Literal["pre", "post", "deep"] = "pre"


@dataclass(frozen=True)
class StackConfig:
    """How many layers there are, and which of them share parameters.

    Attributes:
      layers: how many; each gives a hidden state.
      groups: the layers are divided into this many groups of consecutive layers, and those of a group share one set of
        parameters (ALBERT's `num_hidden_groups`, Lan et al. 2020 §3.1); None: nothing is shared.
      inner: transformer blocks within a layer, each with parameters of its own (ALBERT's `inner_group_num`).
    """

    layers: ranges.Layers
    groups: ranges.Layers | None = None
    inner: ranges.Layers = 1

    def __post_init__(self):
        if self.groups is not None and (self.groups < 1 or self.layers % self.groups):
            raise UserError(f"stack.groups is {self.groups}: give a divisor of the {self.layers} layers")

    @property
    def blocks(self) -> int:
        """How many transformer blocks a token goes through."""
        return self.layers * self.inner

    @property
    def stored_blocks(self) -> int:
        """How many transformer blocks have parameters of their own."""
        return (self.layers if self.groups is None else self.groups) * self.inner


@dataclass(frozen=True)
class DropoutConfig:
    """Dropout rates.

    Attributes:
      embedding: after the embeddings.
      attention: on attention probabilities.
      residual: on the output of each sub-layer before it is added.
      feed_forward: on the activations of the feed-forward layer.
      output: on the output of a stack.
      broadcast: the same units are dropped at every position (T5).
    """

    embedding: ranges.ShareBelowOne = 0.0
    attention: ranges.ShareBelowOne = 0.0
    residual: ranges.ShareBelowOne = 0.0
    feed_forward: ranges.ShareBelowOne = 0.0
    output: ranges.ShareBelowOne = 0.0
    broadcast: bool = False

    @property
    def rates(self) -> dict[str, float]:
        """Each rate by its name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "broadcast"}

    def all_at(self, rate: float) -> "DropoutConfig":
        """Every rate set to `rate`."""
        return dataclasses.replace(self, **dict.fromkeys(self.rates, rate))


@dataclass(frozen=True)
class InitializerConfig:
    """Parameters are drawn from a normal distribution with `std`; `truncated`: cut off at two standard deviations.

    Attributes:
      shrink_residual: the projections that write to the residual stream shrink by 1 / sqrt(2 · layers).
    """

    kind: ClassVar[str] = "normal"
    std: ranges.Scale = 0.02
    shrink_residual: bool = False
    truncated: bool = False


@dataclass(frozen=True)
class FanInConfig:
    """T5's initialisation: matrices with a variance of 1 / inputs, queries also / head_dim; embeddings with one of 1.

    google-research/t5x, examples/t5/layers.py.
    """

    kind: ClassVar[str] = "fan_in"
