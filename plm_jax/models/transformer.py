"""The settings that transformers share: embeddings, attention, feed-forward, stack, dropout."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Literal

from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.heads import Head, NoHead, VocabularyHead
from plm_jax.models.initializers import FanInConfig, InitializerConfig
from plm_jax.models.layers import Activation, NormConfig
from plm_jax.models.positions import Position, Table
from plm_jax.models.protocol import ModelConfig


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
        self.position.check(self.head_dim)

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


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """The settings that all transformers have.

    Attributes:
      scan_layers: compile one block and loop, or unroll all; parameters are stacked on a `layers` axis either way.
      remat: what of a block is kept for the backward pass, which recomputes the rest, besides its input. `none`: all of
        it; `dots`: the products of weight matrices and what a flash kernel leaves; `minimal`: of these the ones that
        are as wide as the model, attention's and the sub-layers' outputs; `attention`: what a flash kernel leaves;
        `full`: nothing; `offload`: nothing, and the input is kept in the host's memory.
      pipeline_microbatches: where the layers lie in stages, into how many microbatches the rows that a device has at a
        time are cut, which go through the stages one after another: the most up to this number that divide them. 0:
        four a stage. Of S stages and M microbatches a stage waits for (S - 1) / (M + S - 1) of the time.
      heads: others than those of the fields, by the names that losses and callers ask for them by; in a config a
        mapping.
      attention_kernel: what computes attention: XLA; this package's flash attention on TPUs and NVIDIA GPUs (elsewhere
        interpreted, which is slow); cuDNN's (Ampere or newer); `auto`: the device's. What a kernel cannot do falls to
        the next, in the end to XLA.
    """

    embedding: EmbeddingConfig
    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    stack: StackConfig
    norm: NormConfig = NormConfig()
    dropout: DropoutConfig = DropoutConfig()
    initializer: InitializerConfig | FanInConfig = field(default_factory=InitializerConfig)
    scan_layers: bool = True
    remat: Literal["none", "dots", "minimal", "attention", "full", "offload"] = "none"
    attention_kernel: Literal["auto", "xla", "flash", "cudnn"] = "auto"
    pipeline_microbatches: Annotated[int, ranges.Range(0, 2**20)] = 0
    heads: tuple[tuple[str, Head], ...] = ()

    def __post_init__(self):
        _check_heads(self)
        head = self.vocabulary_head
        if self.embedding.embedding_size is not None and isinstance(head, VocabularyHead) and head.transform is None:
            raise UserError("embedding.embedding_size needs a head that leads back to it: set head.transform")

    stack_paths = ("stack",)
    remat_levels = ("none", "dots", "minimal", "attention", "full", "offload")

    @property
    def vocab_size(self) -> int:
        """How many tokens have an embedding."""
        return self.embedding.vocab_size

    @property
    @override
    def num_positions(self) -> int | None:
        """How many positions the position scheme has; None: any number."""
        return self.attention.position.limit

    @property
    def vocabulary_head(self) -> VocabularyHead | NoHead:
        """The head of its field `head`, where it has one."""
        return getattr(self, "head", NoHead())

    @property
    def position_tables(self) -> dict[str, Table]:
        """The tables of its position scheme that are added to embeddings."""
        return self.attention.position.embedding_tables(self.embedding.columns, self.initializer)

    @property
    @override
    def stacks(self) -> tuple[StackConfig, ...]:
        """Its one."""
        return (self.stack,)

    @property
    @override
    def meant_length(self) -> int | None:
        """As its position scheme says."""
        return getattr(self.attention.position, "length", None)

    @property
    @override
    def attention_heads(self) -> int:
        """Of queries."""
        return self.attention.heads

    @property
    @override
    def token_types(self) -> int:
        """Rows of the table for the parts of a row."""
        return self.embedding.token_types

    @property
    @override
    def tells_places(self) -> bool:
        """As its position scheme does."""
        return self.attention.position.tells_places

    @property
    @override
    def named_heads(self) -> dict[str, Head]:
        """The vocabulary head, where there is one, and the others."""
        head = self.vocabulary_head
        return ({} if isinstance(head, NoHead) else {"vocabulary": head}) | dict(self.heads)

    @property
    def num_states(self) -> int:
        """The embeddings and each layer of the stack that heads read."""
        return getattr(self, "decoder_stack", self.stack).layers + 1

    @property
    def state_width(self) -> int:
        """The stack's."""
        return self.embedding.width

    def heads_products(self, length: int, targets: int) -> int:
        """Multiplications of a row with the matrices of all heads."""
        return sum(head.products(self, length, targets) for head in self.named_heads.values())

    def stack_products(self, length: int, causal: bool, memory_length: int = 0) -> float:
        """Multiplications of a row in the stack's matrix products; with a memory also those of attention to it."""
        width, attention, blocks = self.embedding.width, self.attention, self.stack.blocks
        joined, joined_keys = attention.heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
        feed_forward = (3 if self.feed_forward.gated else 2) * width * self.feed_forward.width
        windows = attention.windows or (0,)
        attended = sum(_seen(windows[i % len(windows)], length) for i in range(blocks)) / blocks / (2 if causal else 1)
        products = length * (2 * width * (joined + joined_keys) + feed_forward + 2 * attended * joined)
        # Of attention to a memory queries and outputs are the stack's, keys and values the memory's.
        if memory_length:
            products += 2 * width * (joined * length + joined_keys * memory_length)
            products += 2 * joined * length * memory_length
        return blocks * products

    def projection_products(self, length: int) -> int:
        """Multiplications with the matrix that leads from the tables' width to the model's, where they differ."""
        embedding = self.embedding
        return 0 if embedding.embedding_size is None else length * embedding.columns * embedding.width


# The names of heads that are fields of a model's settings, or what they give.
OWN = ("vocabulary", "sentence_pair", "pooled", "discriminator", "span_boundary")


def _check_heads(model: TransformerConfig) -> None:
    names = [name for name, _ in model.heads]
    taken = [name for name in names if name in OWN or names.count(name) > 1]
    if taken:
        raise UserError(f"model.heads has '{taken[0]}', which names another head: give it another name")
    for name, head in model.heads:
        if getattr(head, "feature", None) == "pooler" and isinstance(getattr(model, "pooler", NoHead()), NoHead):
            raise UserError(
                f"model.heads.{name}.feature is 'pooler', and the model has none: set model.pooler.kind to pooler, or "
                "the feature to first"
            )


def _seen(window: int, length: int) -> float:
    """Keys less than `window` (0: any number) places away, on either side, in the mean over `length` queries."""
    window = min(window or length, length)
    return 2 * window - 1 - window * (window - 1) / length
