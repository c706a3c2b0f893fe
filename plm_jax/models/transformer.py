"""The settings that transformers share: embeddings, attention, feed-forward, stack and dropout."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Literal

from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.heads import Head, NoHead, VocabularyHead
from plm_jax.models.initializers import Initialization, InitializerConfig
from plm_jax.models.layers import Activation, NormConfig
from plm_jax.models.positions import Position, Table
from plm_jax.models.protocol import ModelConfig


@dataclass(frozen=True)
class EmbeddingConfig:
    """The embeddings of tokens, token types and tasks.

    Attributes:
      vocab_size: number of rows of the token table; must be at least the size of the vocabulary.
      width: width of the hidden states of the model.
      token_types: number of token types (BERT's segments), which have a separate table; 0: no token types.
      task_types: number of tasks (ERNIE 2.0), which have a separate table; 0: no tasks. Every token gets the embedding
        of task 0.
      norm: whether the sum of the embeddings is normalized.
      embedding_size: width of the embedding tables; None: equal to `width`. If it is set, a dense layer with a bias
        projects the sum of the embeddings to `width`, after the norm, and the transform of the vocabulary head projects
        back (Lan et al. 2020 §3.1).
      scale_by_width: whether token embeddings are multiplied by width ** 0.5 before other embeddings are added.
    """

    vocab_size: ranges.Length
    width: ranges.Width
    token_types: Annotated[int, ranges.Range(0, 1024)] = 0
    norm: bool = False
    embedding_size: ranges.Width | None = None
    scale_by_width: bool = False
    task_types: Annotated[int, ranges.Range(0, 1024)] = 0

    @property
    def columns(self) -> int:
        """Width of the embedding tables: `embedding_size`, or `width` if `embedding_size` is None."""
        return self.width if self.embedding_size is None else self.embedding_size


@dataclass(frozen=True)
class AttentionConfig:
    """Multi-head attention with a position scheme; grouped-query attention if `kv_heads` is set.

    Attributes:
      heads: number of query heads.
      head_dim: dimension of each head.
      position: position scheme.
      bias: whether the projections to queries, keys and values have biases.
      kv_heads: number of key and value heads, each shared by a group of consecutive query heads (Ainslie et al. 2023);
        None: equal to `heads`.
      score_scale: factor by which attention scores are multiplied. None: head_dim ** -0.5; with disentangled positions,
        (head_dim · n) ** -0.5, where each score is a sum of n products.
      scale_by_inverse_depth: whether the scores of layer i, counted from 0, are divided by i + 1 as well.
      out_bias: whether the output projection has a bias; None: equal to `bias`.
      windows: sizes of sliding windows. Layer i, counted from 0, attends only to keys at distances less than
        windows[i % len(windows)]. A size of 0 means no window. If `windows` is empty, no layer has a window. Attention
        to an encoder has no windows.
      qk_norm: whether the queries and keys of each head are normalized over head_dim before the rotary rotation
        (Qwen3). All heads share the parameters of these norms.
      key_bias: whether `bias` also applies to the projection to keys; False in DeBERTa v1.
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
    qk_norm: bool = False
    key_bias: bool = True

    def __post_init__(self):
        if self.kv_heads is not None:
            self._check_kv_heads(self.kv_heads)
        self.position.check(self.head_dim)

    def _check_kv_heads(self, kv_heads: int) -> None:
        if kv_heads < 1 or self.heads % kv_heads:
            raise UserError(f"attention.kv_heads is {kv_heads}: set it to a divisor of the {self.heads} heads")
        if kv_heads < self.heads and not self.position.supports_kv_heads:
            raise UserError(
                f"attention.kv_heads is {kv_heads}, and positions of kind '{self.position.kind}' need a key for each "
                f"of the {self.heads} heads: leave it out"
            )

    @property
    def num_kv_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def bias_after(self) -> bool:
        """Whether the output projection has a bias."""
        return self.bias if self.out_bias is None else self.out_bias


@dataclass(frozen=True)
class FeedForwardConfig:
    """The feed-forward layer: a projection to `width`, an activation, and a projection back.

    Attributes:
      width: width of the hidden layer.
      activation: activation function; `gelu_tanh` is the tanh approximation of GELU.
      bias: whether the projections have biases.
      gated: whether the activations are multiplied by a second projection of the input, as in GLU variants (Shazeer
        2020).
    """

    width: ranges.Width
    activation: Activation = "gelu_tanh"
    bias: bool = True
    gated: bool = False


@dataclass(frozen=True)
class StackConfig:
    """The number of layers of a stack, and the sharing of parameters between layers.

    Attributes:
      layers: number of layers.
      groups: number of groups of consecutive layers that share parameters (ALBERT's `num_hidden_groups`, Lan et al.
        2020 §3.1); None: no layers share parameters.
      inner: number of transformer blocks per layer, each with its own parameters (ALBERT's `inner_group_num`). Settings
        by layer, such as `attention.windows`, count blocks.
    """

    layers: ranges.Layers
    groups: ranges.Layers | None = None
    inner: ranges.Layers = 1

    def __post_init__(self):
        if self.groups is not None and (self.groups < 1 or self.layers % self.groups):
            raise UserError(f"stack.groups is {self.groups}: set it to a divisor of the {self.layers} layers")

    @property
    def blocks(self) -> int:
        """Number of transformer blocks that a token passes through."""
        return self.layers * self.inner

    @property
    def stored_blocks(self) -> int:
        """Number of transformer blocks whose parameters are stored; shared blocks count once."""
        return (self.layers if self.groups is None else self.groups) * self.inner


@dataclass(frozen=True)
class DropoutConfig:
    """Dropout rates.

    Attributes:
      embedding: rate on the sum of the embeddings.
      attention: rate on attention probabilities, rounded to a multiple of 2^-16.
      residual: rate on the output of each sub-layer, before the residual addition.
      attention_output: rate on the output of attention sub-layers, instead of `residual`; None: equal to `residual`.
      feed_forward: rate on the activations of the feed-forward layer.
      output: rate on the output of a stack.
      broadcast: whether the same units are dropped at every position of a row, and the same attention probabilities for
        every query (T5).
    """

    embedding: ranges.ShareBelowOne = 0.0
    attention: ranges.ShareBelowOne = 0.0
    residual: ranges.ShareBelowOne = 0.0
    attention_output: ranges.ShareBelowOne | None = None
    feed_forward: ranges.ShareBelowOne = 0.0
    output: ranges.ShareBelowOne = 0.0
    broadcast: bool = False

    @property
    def rates(self) -> dict[str, float]:
        """Dropout rates by name; a rate of None is replaced by `residual`."""
        rates = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "broadcast"}
        return {name: self.residual if rate is None else rate for name, rate in rates.items()}

    def all_at(self, rate: float) -> "DropoutConfig":
        """Returns these settings with every rate set to `rate`."""
        return dataclasses.replace(self, **dict.fromkeys(self.rates, rate))


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """The settings of all transformers.

    Attributes:
      embedding: embeddings of tokens, token types and tasks.
      attention: attention layers.
      feed_forward: feed-forward layers.
      stack: number of layers and sharing of parameters.
      norm: kind and placement of norms.
      dropout: dropout rates.
      initializer: initialization of parameters.
      scan_layers: whether one block is compiled and run in a loop; if not, all blocks are unrolled. Parameters are
        stacked on a `layers` axis in both cases.
      remat: rematerialization. The backward pass recomputes the activations of a block that are not kept. `none` keeps
        all activations. `full` keeps only the input of the block. `offload` keeps only the input of the block, in host
        memory. `attention` keeps the input and the residuals of a flash kernel. `minimal` keeps the same as `attention`
        and the sum after each sub-layer (MaxText's `minimal` keeps more). `dots` keeps the same as `minimal` and the
        results of dense layers.
      pipeline_microbatches: maximum number of microbatches into which the rows of a pipeline (one device per stage) are
        split; 0: four per stage. The number of microbatches is the largest multiple of the number of stages that is at
        most this maximum and divides the number of rows. A pipeline has at least one microbatch per stage. With S
        stages and M microbatches, a stage is idle for (S - 1) / (M + S - 1) of the time.
      heads: additional heads, as pairs (name, head); in a config file, a mapping from names to heads. Losses and
        callers refer to a head by its name.
      attention_kernel: implementation of attention. `xla`: plain XLA operations. `flash`: the flash attention of this
        package, for TPUs and NVIDIA GPUs; on other devices, it is interpreted and slow. `cudnn`: cuDNN's attention
        (NVIDIA Ampere or newer). `auto`: the best kernel for the device. If the kernel does not support an attention
        layer, the layer uses the best kernel of the device that supports it, or else XLA. Calls with a key/value cache
        always use XLA.
    """

    embedding: EmbeddingConfig
    attention: AttentionConfig
    feed_forward: FeedForwardConfig
    stack: StackConfig
    norm: NormConfig = NormConfig()
    dropout: DropoutConfig = DropoutConfig()
    initializer: Initialization = field(default_factory=InitializerConfig)
    scan_layers: bool = True
    remat: Literal["none", "dots", "minimal", "attention", "full", "offload"] = "none"
    attention_kernel: Literal["auto", "xla", "flash", "cudnn"] = "auto"
    pipeline_microbatches: Annotated[int, ranges.Range(0, 2**20)] = 0
    heads: tuple[tuple[str, Head], ...] = ()

    def __post_init__(self):
        _check_heads(self)
        if not self.norm.first and (self.stack.groups is not None or self.stack.inner > 1):
            raise UserError("norm.first=False needs a stack whose layers share no parameters: leave out stack.groups")
        head = self.vocabulary_head
        if self.embedding.embedding_size is not None and isinstance(head, VocabularyHead) and head.transform is None:
            raise UserError("embedding.embedding_size needs a head that projects back to it: set head.transform")

    stack_paths = ("stack",)
    remat_levels = ("none", "dots", "minimal", "attention", "full", "offload")

    @property
    def vocab_size(self) -> int:
        """Number of rows of the token table."""
        return self.embedding.vocab_size

    @property
    @override
    def num_positions(self) -> int | None:
        """Maximum number of positions of the position scheme; None: no maximum."""
        return self.attention.position.limit

    @property
    def vocabulary_head(self) -> VocabularyHead | NoHead:
        """Vocabulary head: the field `head`, or `NoHead` for settings without this field."""
        return getattr(self, "head", NoHead())

    @property
    def position_tables(self) -> dict[str, Table]:
        """Shapes and initializers of the position tables that are added to embeddings, by parameter name."""
        return self.attention.position.embedding_tables(self.embedding.columns, self.initializer)

    @property
    @override
    def stacks(self) -> tuple[StackConfig, ...]:
        return (self.stack,)

    @property
    @override
    def max_length(self) -> int | None:
        return self.attention.position.max_length

    @property
    @override
    def attention_heads(self) -> int:
        return self.attention.heads

    @property
    @override
    def token_types(self) -> int:
        return self.embedding.token_types

    @property
    @override
    def uses_absolute_positions(self) -> bool:
        return self.attention.position.uses_absolute_positions

    @property
    @override
    def named_heads(self) -> dict[str, Head]:
        """Heads by name: the vocabulary head, if there is one, and the heads in `heads`."""
        head = self.vocabulary_head
        return ({} if isinstance(head, NoHead) else {"vocabulary": head}) | dict(self.heads)

    @property
    def num_states(self) -> int:
        """Number of hidden states that heads can read: the embeddings and each layer.

        In an encoder-decoder, these are the layers of the decoder.
        """
        return getattr(self, "decoder_stack", self.stack).layers + 1

    @property
    def state_width(self) -> int:
        """Width of each hidden state."""
        return self.embedding.width

    def heads_macs(self, length: int, targets: int) -> int:
        """Returns the number of multiply-accumulate operations of all heads for a row."""
        return sum(head.macs(self, length, targets) for head in self.named_heads.values())

    def stack_macs(self, length: int, causal: bool, memory_length: int = 0) -> float:
        """Returns the number of multiply-accumulate operations of the stack's layers for a row.

        Operations of the position scheme do not count.

        Args:
          length: number of tokens of the row.
          causal: whether the self-attention is causal, which counts half.
          memory_length: number of tokens of the memory that all layers attend to; 0: no memory.
        """
        width, attention, blocks = self.embedding.width, self.attention, self.stack.blocks
        joined, joined_keys = attention.heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
        feed_forward = (3 if self.feed_forward.gated else 2) * width * self.feed_forward.width
        windows = attention.windows or (0,)
        attended = (
            sum(_mean_keys(windows[i % len(windows)], length) for i in range(blocks)) / blocks / (2 if causal else 1)
        )
        products = length * (2 * width * (joined + joined_keys) + feed_forward + 2 * attended * joined)
        # In attention to a memory, queries and outputs come from the stack, keys and values from the memory.
        if memory_length:
            products += 2 * width * (joined * length + joined_keys * memory_length)
            products += 2 * joined * length * memory_length
        return blocks * products

    def projection_macs(self, length: int) -> int:
        """Returns the number of multiply-accumulate operations of `embedding_projection` for a row; 0 without it."""
        embedding = self.embedding
        return 0 if embedding.embedding_size is None else length * embedding.columns * embedding.width


# Names of heads that are fields of a model's settings, or of their outputs.
RESERVED_HEADS = ("vocabulary", "sentence_pair", "pooled", "discriminator", "span_boundary")


def _check_heads(model: TransformerConfig) -> None:
    names = [name for name, _ in model.heads]
    taken = [name for name in names if name in RESERVED_HEADS or names.count(name) > 1]
    if taken:
        raise UserError(f"model.heads has '{taken[0]}', which is the name of another head: rename it")
    for name, head in model.heads:
        if getattr(head, "feature", None) == "pooler" and isinstance(getattr(model, "pooler", NoHead()), NoHead):
            raise UserError(
                f"model.heads.{name}.feature is 'pooler', and the model has none: set model.pooler.kind to pooler, or "
                "the feature to first"
            )


def _mean_keys(window: int, length: int) -> float:
    """Returns the mean number of keys at distances less than `window`, in both directions, over `length` queries.

    A `window` of 0 means all distances.
    """
    window = min(window or length, length)
    return 2 * window - 1 - window * (window - 1) / length
