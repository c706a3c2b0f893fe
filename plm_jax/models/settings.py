"""What a model is: small frozen dataclasses, nested; plain Python, so that a config can be read without JAX.

A field whose type is a union of dataclasses is a tagged choice: in a config file each choice is written as its fields
plus `kind`, so a field of one choice cannot be given to another.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from plm_jax.common.errors import UserError

Activation = Literal["gelu_tanh", "gelu_exact", "relu", "silu", "tanh"]


@dataclass(frozen=True)
class LearnedPositions:
    """A trained table [offset + length, embed], added to the token embeddings.

    Attributes:
      length: how many positions there are.
      offset: rows before the first position's; fairseq's tables have two (Liu et al. 2019, Lewis et al. 2020).
      skips_padding: a bidirectional stack counts real tokens alone, as a causal one does; padding takes the row before
        the first position's where there is one (Liu et al. 2019, fairseq).
    """

    kind: ClassVar[str] = "learned"
    length: int
    init_std: float = 0.02
    offset: int = 0
    skips_padding: bool = False


@dataclass(frozen=True)
class SinusoidalPositions:
    """Sines and cosines of wavelengths from 2π to 10,000 · 2π, added to the token embeddings (Vaswani et al. 2017)."""

    kind: ClassVar[str] = "sinusoidal"


@dataclass(frozen=True)
class BlockPositions:
    """Two trained tables [length + 1, embed], both added to the token embeddings (GLM, Du et al. 2022).

    One is for the place in the text, where all of a blank has that of its mask, the other for the place within the
    blank, from 1 on, 0 outside of blanks.
    """

    kind: ClassVar[str] = "block"
    length: int
    init_std: float = 0.02


@dataclass(frozen=True)
class RelativeBias:
    """A trained bias on scores by head and distance, one table [buckets, heads] a stack (Raffel et al. 2020 §2.1).

    Half of the buckets are single distances, the others are spaced logarithmically up to `max_distance`.
    """

    kind: ClassVar[str] = "relative_bias"
    buckets: int = 32
    max_distance: int = 128


@dataclass(frozen=True)
class RotaryScaling:
    """Slower turns, for texts longer than a model was first trained on (meta-llama/llama-models, llama3/model.py).

    Pairs that turn at least `high_frequency_factor` times over `original_length` tokens keep their frequency, those
    that turn at most `low_frequency_factor` times have it divided by `factor`; between the two it changes linearly.
    The defaults are LLaMA 3.1's.
    """

    kind: ClassVar[str] = "llama3"
    factor: float = 8.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_length: int = 8192

    def __post_init__(self):
        low, high = self.low_frequency_factor, self.high_frequency_factor
        if not (self.factor > 0 and low < high):
            raise UserError(
                f"rotary scaling by {self.factor} between {low} and {high}: give a factor above 0 and a "
                "high_frequency_factor above low_frequency_factor"
            )


@dataclass(frozen=True)
class Rotary:
    """Queries and keys turn, pair of dimensions by pair, by angles that grow with the position (Su et al. 2021).

    Attributes:
      theta: pair i of a head's d rotated dimensions turns by theta ** (-2i / d) radians a position.
      fraction: the share of a head's dimensions that are rotated, its first ones, an even number of them.
      interleaved: a pair is two neighbouring dimensions; if not, pair i is dimensions i and i + d / 2, as Hugging Face
        lays LLaMA out.
      scaling: of the frequencies; None: as they are.
      length: tokens that the model is meant for; nothing refuses more.
    """

    kind: ClassVar[str] = "rotary"
    theta: float = 10_000.0
    fraction: float = 1.0
    interleaved: bool = False
    scaling: RotaryScaling | None = None
    length: int = 2048

    def __post_init__(self):
        if not (self.theta > 0 and 0 < self.fraction <= 1):
            raise UserError(
                f"rotary positions of theta {self.theta} and fraction {self.fraction}: give a theta above 0 and a "
                "fraction above 0 up to 1"
            )

    def rotated(self, head_dim: int) -> int:
        """How many of a head's dimensions are rotated."""
        return int(head_dim * self.fraction / 2) * 2


@dataclass(frozen=True)
class Rotary2D:
    """Of each head the first half turns by the place in the text, the second by that within a blank (ChatGLM-6B).

    Both as a half-split `Rotary` of that many dimensions; for the two places see `BlockPositions`.

    Attributes:
      length: tokens that the model is meant for; nothing refuses more.
    """

    kind: ClassVar[str] = "rotary_2d"
    theta: float = 10_000.0
    length: int = 2048


@dataclass(frozen=True)
class NoPositions:
    """Order reaches the model through the causal mask alone."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class Embedding:
    """The token table [vocab_size, width]; `vocab_size` may exceed the vocabulary's.

    Attributes:
      token_types: rows of a second table, for the parts of a pair (BERT's segments); 0: there is none.
      norm: whether the sum of the embeddings is normed.
      table_width: of all tables, where it is not `width`: a dense layer with a bias leads from their sum, normed, to
        `width`, and the head's transform back (Lan et al. 2020 §3.1).
      scale_by_width: the tokens' embeddings grow by width ** 0.5 before the sum.
    """

    vocab_size: int
    width: int
    token_types: int = 0
    norm: bool = False
    table_width: int | None = None
    scale_by_width: bool = False

    @property
    def columns(self) -> int:
        """The tables' width."""
        return self.width if self.table_width is None else self.table_width


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
    position: LearnedPositions | SinusoidalPositions | BlockPositions | RelativeBias | Rotary | Rotary2D | NoPositions
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
        if isinstance(self.position, Rotary2D) and self.head_dim % 4:
            raise UserError(f"attention.head_dim is {self.head_dim}: rotary_2d takes a multiple of 4")

    @property
    def groups(self) -> int:
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
class Head:
    """The projection to the vocabulary.

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


@dataclass(frozen=True)
class NoHead:
    """Features only."""

    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class Pooler:
    """A dense layer with tanh on the first position, and `classes` of the text from it (0: features only)."""

    kind: ClassVar[str] = "pooler"
    classes: int = 2


@dataclass(frozen=True)
class Discriminator:
    """Whether each token was replaced: a dense layer with this activation, and one number (Clark et al. 2020 §2)."""

    kind: ClassVar[str] = "discriminator"
    activation: Activation = "gelu_exact"


@dataclass(frozen=True)
class SpanBoundary:
    """The tokens of a span from what lies on both sides of it (Joshi et al. 2020 §3.2), beside the vocabulary head.

    The defaults are those of the command in facebookresearch/SpanBERT, pretraining/README.md.

    Attributes:
      positions: how many tokens of a span, from its first on, are predicted.
      width: of the vectors that tell these apart.
      activation: of the two dense layers, each followed by a norm, before the token table transposed.
    """

    kind: ClassVar[str] = "span_boundary"
    positions: int = 15
    width: int = 200
    activation: Activation = "gelu_exact"


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


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """What the architectures share.

    Attributes:
      scan_layers: compile one block and loop, or unroll all; parameters are stacked on a `layers` axis either way.
      remat: what the backward pass recomputes: nothing; all but the products of weight matrices; whole blocks.
      attention_kernel: what computes attention: XLA; flash attention on NVIDIA GPUs (cuDNN; Ampere or newer) or TPUs
        (Splash; elsewhere interpreted, which is slow); `auto`: the device's. What a kernel cannot do falls back to XLA.
    """

    embedding: Embedding
    attention: Attention
    feed_forward: FeedForward
    stack: Stack
    norm: Norm = Norm()
    dropout: Dropout = Dropout()
    initializer: Initializer | FanIn = field(default_factory=Initializer)
    scan_layers: bool = True
    remat: Literal["none", "dots", "full"] = "none"
    attention_kernel: Literal["auto", "xla", "cudnn", "splash"] = "auto"

    def __post_init__(self):
        head = getattr(self, "head", None)
        if self.embedding.table_width is not None and isinstance(head, Head) and head.transform is None:
            raise UserError("embedding.table_width needs a head that leads back to it: set head.transform")


@dataclass(frozen=True, kw_only=True)
class Decoder(Transformer):
    """A causal language model."""

    kind: ClassVar[str] = "decoder"
    head: Head = Head()


@dataclass(frozen=True, kw_only=True)
class Encoder(Transformer):
    """A bidirectional model; its pooler's classes are those of a pair of sentences."""

    kind: ClassVar[str] = "encoder"
    head: Head | NoHead = Head()
    pooler: Pooler | NoHead = NoHead()
    discriminator: Discriminator | NoHead = NoHead()
    span_boundary: SpanBoundary | NoHead = NoHead()


@dataclass(frozen=True)
class Generator:
    """The masked language model that replaces an ELECTRA's tokens; in all else it is as the discriminator.

    Attributes:
      width: of its stack; where the tables of embeddings have another, a dense layer leads to it and the head's
        transform back.
    """

    width: int
    heads: int
    head_dim: int
    feed_forward: int
    layers: int
    head: Head = Head(transform="gelu_exact", bias=True)


@dataclass(frozen=True, kw_only=True)
class Electra(Encoder):
    """A discriminator and its generator, which share all tables of embeddings (Clark et al. 2020 §3.2)."""

    kind: ClassVar[str] = "electra"
    head: NoHead = NoHead()
    pooler: NoHead = NoHead()
    discriminator: Discriminator = Discriminator()
    span_boundary: NoHead = NoHead()
    generator: Generator

    def __post_init__(self):
        super().__post_init__()
        _ = self.generator_model  # It has checks of its own.

    @property
    def discriminator_model(self) -> Encoder:
        """The discriminator by itself."""
        return Encoder(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Encoder)})

    @property
    def generator_model(self) -> Encoder:
        """The generator by itself."""
        own, columns = self.generator, self.embedding.columns
        return dataclasses.replace(
            self.discriminator_model,
            embedding=dataclasses.replace(
                self.embedding, width=own.width, table_width=None if columns == own.width else columns
            ),
            attention=dataclasses.replace(self.attention, heads=own.heads, head_dim=own.head_dim, kv_heads=None),
            feed_forward=dataclasses.replace(self.feed_forward, width=own.feed_forward),
            stack=dataclasses.replace(self.stack, layers=own.layers),
            head=own.head,
            discriminator=NoHead(),
        )


@dataclass(frozen=True, kw_only=True)
class EncoderDecoder(Transformer):
    """A bidirectional stack that a causal one attends to.

    One table of token embeddings serves both; learned positions and the norm of the embeddings are each stack's own.

    Attributes:
      decoder_stack: the causal one; `stack` is the bidirectional one.
      decoder_heads, decoder_head_dim: of the causal one's attention, also of that to the other; None: as `attention`.
      decoder_feed_forward: the width of its feed-forward; None: as `feed_forward`.
    """

    kind: ClassVar[str] = "encoder_decoder"
    decoder_stack: Stack
    decoder_heads: int | None = None
    decoder_head_dim: int | None = None
    decoder_feed_forward: int | None = None
    head: Head = Head()

    def __post_init__(self):
        super().__post_init__()
        _ = self.decoder_model  # It has checks of its own.

    @property
    def decoder_model(self) -> Transformer:
        """The settings of the causal stack."""
        attention, feed_forward = self.attention, self.feed_forward
        return Transformer(
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(Transformer)}
            | {
                "attention": dataclasses.replace(
                    attention,
                    heads=attention.heads if self.decoder_heads is None else self.decoder_heads,
                    head_dim=attention.head_dim if self.decoder_head_dim is None else self.decoder_head_dim,
                ),
                "feed_forward": dataclasses.replace(
                    feed_forward,
                    width=feed_forward.width if self.decoder_feed_forward is None else self.decoder_feed_forward,
                ),
                "stack": self.decoder_stack,
            }
        )


@dataclass(frozen=True)
class CharacterCNN:
    """Words from their characters (Kim et al. 2016), as in allenai/bilm-tf: no word is out of reach.

    Attributes:
      vocab_size: words that the head tells apart.
      width: of a word's vector, and of what each LSTM gives.
      dim: of a character's vector.
      filters: (characters wide, how many), each applied wherever it fits; of each the largest value stays.
      max_characters: of a word, its begin and end among them; a longer one is cut.
      activation: after the largest value is taken.
      highway_layers: between the filters and the projection to `width` (Srivastava et al. 2015).
    """

    vocab_size: int
    width: int = 512
    dim: int = 16
    filters: tuple[tuple[int, int], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    max_characters: int = 50
    activation: Literal["relu", "tanh"] = "relu"
    highway_layers: int = 2

    def __post_init__(self):
        widest = max((width for width, _ in self.filters), default=0)
        if not self.filters or min(min(pair) for pair in self.filters) < 1 or widest > self.max_characters:
            raise UserError(
                f"embedding.filters are {self.filters}: give (characters, filters), both at least 1, at most "
                f"{self.max_characters} characters"
            )
        if self.highway_layers < 1:
            raise UserError(f"embedding.highway_layers is {self.highway_layers}: give at least 1")


@dataclass(frozen=True)
class Lstm:
    """LSTMs with a projection of what they give (Sak et al. 2014), a stack of them for each direction.

    Attributes:
      cell: units of the memory.
      cell_clip, projection_clip: the largest absolute value of the memory and of what is given.
    """

    layers: int = 2
    cell: int = 4096
    cell_clip: float = 3.0
    projection_clip: float = 3.0


@dataclass(frozen=True)
class LstmDropout:
    """Rates: on what goes into each LSTM, on what leaves the last."""

    input: float = 0.0
    output: float = 0.0

    rates = Dropout.rates
    all_at = Dropout.all_at


@dataclass(frozen=True)
class Softmax:
    """A matrix [vocab_size, width] and a bias [vocab_size], the same ones for both directions."""

    kind: ClassVar[str] = "softmax"


@dataclass(frozen=True, kw_only=True)
class Elmo:
    """A bidirectional language model (Peters et al. 2018): LSTMs that read forward and others that read backward.

    Attributes:
      scan_layers, remat: as in `Transformer`.
    """

    kind: ClassVar[str] = "elmo"
    embedding: CharacterCNN
    lstm: Lstm = Lstm()
    head: Softmax | NoHead = Softmax()
    dropout: LstmDropout = LstmDropout()
    scan_layers: bool = True
    remat: Literal["none", "dots", "full"] = "none"
