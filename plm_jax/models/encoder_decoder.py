"""The encoder-decoder architecture: a bidirectional encoder, a causal decoder with cross-attention, and heads."""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Integer, Shaped
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.architecture import Architecture
from plm_jax.models.attention import causal_positions
from plm_jax.models.encoder import Encoder, EncoderConfig
from plm_jax.models.heads import NoHead, VocabularyHead
from plm_jax.models.kernels import Context
from plm_jax.models.layers import Memory, Stream
from plm_jax.models.stack import Stack
from plm_jax.models.transformer import StackConfig, TransformerConfig

Tokens = Integer[Array, "batch length"]
Source = Integer[Array, "batch memory"]
Mask = Shaped[Array, "batch memory"]


@dataclass(frozen=True)
class SourceEncoderConfig:
    """A new encoder whose outputs replace the token embeddings of a pretrained encoder.

    BART is fine-tuned for translation in this way (Lewis et al. 2020 §3.4). The new encoder has its own token table and
    shares no parameters with the model. Except for the number of layers, it has the same settings as the model's
    encoder.

    Attributes:
      layers: number of layers; 6 in the BART paper.
    """

    kind: ClassVar[str] = "source_encoder"
    layers: ranges.Layers = 6


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(TransformerConfig):
    """An encoder-decoder transformer, such as T5 or BART.

    Encoder and decoder share one table of token embeddings. Unless they are tied, they have separate embedding norms
    and separate position tables.

    Attributes:
      decoder_stack: stack of the decoder; `stack` is the stack of the encoder.
      decoder_heads: number of query heads in the decoder's self- and cross-attention; None: the value in `attention`.
      decoder_head_dim: dimension of heads in the decoder's self- and cross-attention; None: the value in `attention`.
      decoder_feed_forward: width of the decoder's feed-forward layers; None: the width in `feed_forward`.
      tie_encoder_decoder: whether encoder and decoder share all parameters, including norms and the relative bias,
        except the parameters of cross-attention. This is the "shared" encoder-decoder of Raffel et al. 2020 §3.2.2, as
        implemented in the paper's code.
      source_encoder: new encoder whose outputs replace the token embeddings of the encoder; None: no such encoder.
      head: head that predicts the decoder's next token; `none`: the model returns features only.
    """

    kind: ClassVar[str] = "encoder_decoder"
    inputs = (
        *("tokens", "mask", "segment_ids"),
        *("decoder_tokens", "decoder_mask", "decoder_positions", "decoder_segment_ids"),
    )
    decoder_stack: StackConfig
    decoder_heads: ranges.Width | None = None
    decoder_head_dim: ranges.Width | None = None
    decoder_feed_forward: ranges.Width | None = None
    tie_encoder_decoder: bool = False
    source_encoder: SourceEncoderConfig | None = None
    head: VocabularyHead | NoHead = VocabularyHead()

    def __post_init__(self):
        super().__post_init__()
        decoder, _ = self.decoder_model, self.source_model  # Their constructors check the settings.
        if self.norm.placement == "parallel":
            raise UserError("norm.placement 'parallel' does not support cross-attention: use pre, post or deep")
        parts = [(model.stack, model.attention, model.feed_forward) for model in (self, decoder)]
        if self.tie_encoder_decoder and parts[0] != parts[1]:
            raise UserError(
                "tie_encoder_decoder needs equal stacks: set decoder_stack to the values of stack, and leave out "
                "decoder_heads, decoder_head_dim and decoder_feed_forward"
            )
        if self.source_encoder is not None and self.embedding.embedding_size is not None:
            raise UserError("source_encoder does not support embedding.embedding_size: leave out one of them")

    @functools.cached_property
    def decoder_model(self) -> TransformerConfig:
        """Settings of the decoder's stack."""
        attention, feed_forward = self.attention, self.feed_forward
        return TransformerConfig(
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(TransformerConfig)}
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

    @functools.cached_property
    def source_model(self) -> EncoderConfig | None:
        """Settings of the source encoder; None if there is no source encoder."""
        if self.source_encoder is None:
            return None
        fields: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(TransformerConfig)}
        fields |= {"heads": (), "stack": dataclasses.replace(self.stack, layers=self.source_encoder.layers)}
        return EncoderConfig(**fields, head=NoHead())

    @property
    @override
    def stacks(self):
        """Stacks of the encoder, the decoder and, if there is one, the source encoder. A tied encoder is left out."""
        stacks = (self.decoder_stack,) if self.tie_encoder_decoder else (self.stack, self.decoder_stack)
        return stacks if self.source_model is None else (*stacks, self.source_model.stack)

    @property
    @override
    def stack_paths(self):
        """Path in the parameter tree of each stack in `stacks`."""
        paths = ("decoder",) if self.tie_encoder_decoder else ("encoder", "decoder")
        return (*paths, *(() if self.source_encoder is None else ("source_encoder/stack",)))

    @override
    def module(self, dtype):
        """Returns an `EncoderDecoder`."""
        return EncoderDecoder(self, dtype)

    @override
    def init_inputs(self):
        """Returns one token for the encoder and one for the decoder."""
        tokens = jnp.zeros((1, 1), jnp.int32)
        return {"tokens": tokens, "decoder_tokens": tokens}

    @override
    def macs(self, length, targets, decoder_length=0, samples=0):
        """Counts the multiply-accumulate operations of all stacks, including cross-attention, and of the heads."""
        stacks = self.stack_macs(length, causal=False)
        if self.source_model is not None:
            stacks += self.source_model.macs(length, 0)
        stacks += self.decoder_model.stack_macs(decoder_length, causal=True, memory_length=length)
        return stacks + self.projection_macs(length + decoder_length) + self.heads_macs(length, targets)


class EncoderDecoder(Architecture):
    """A text-to-text model of `EncoderDecoderConfig`.

    In shapes, M is the length of the encoder, and L is the length of the decoder.
    """

    model: EncoderDecoderConfig

    last_stack: ClassVar[str] = "decoder"

    @property
    @override
    def prefixes(self):
        """Prefixes of the encoder and the decoder; only the decoder's prefix if encoder and decoder are tied."""
        return ("decoder_",) if self.model.tie_encoder_decoder else ("encoder_", "decoder_")

    def setup(self):
        """Creates `encoder`, `decoder`, an optional `source_encoder`, and the modules of `Architecture`.

        If encoder and decoder are tied, they are the same module.
        """
        super().setup()
        if self.model.source_model is not None:
            self.source_encoder = Encoder(self.model.source_model, self.dtype)
        self.decoder = Stack(self.model.decoder_model, self.dtype, crosses=True)
        self.encoder = self.decoder if self.model.tie_encoder_decoder else Stack(self.model, self.dtype)

    def encode(
        self, tokens: Source, mask: Mask | None = None, segment_ids: Source | None = None, *, deterministic: bool = True
    ) -> Memory:
        """Returns the memory [B, M, D], the encoder's output for tokens [B, M]; sows `encoder_embedded`.

        The arguments are the same as for `Encoder.features`.
        """
        positions = self.model.attention.position.default_positions(tokens.shape[1], mask)
        source = None
        if self.model.source_encoder is not None:
            source = self.source_encoder.features(tokens, mask, segment_ids=segment_ids, deterministic=deterministic)
        x = self.embed(tokens, positions, prefix=self.prefixes[0], deterministic=deterministic, source=source)
        self.sow("intermediates", "encoder_embedded", x)
        segments = None if segment_ids is None else (segment_ids, segment_ids)
        context = Context(mask=mask, segment_ids=segments, positions=positions)
        return self.encoder(x, context, deterministic=deterministic)

    def decode(
        self,
        decoder_tokens: Integer[Array, "batch length"],
        memory: Memory | None,
        mask: Shaped[Array, "batch memory"] | None = None,
        decoder_mask: Shaped[Array, "batch slots"] | Shaped[Array, "batch length slots"] | None = None,
        decoder_positions: Integer[Array, "rows length"] | None = None,
        segment_ids: Integer[Array, "batch memory"] | None = None,
        decoder_segment_ids: Integer[Array, "batch length"] | None = None,
        cache_index: Integer[Array, ""] | int | None = None,
        slot_positions: Integer[Array, " slots"] | None = None,
        *,
        deterministic: bool = True,
    ) -> Stream:
        """Returns the input of the head [B, L, D]; sows `embedded`.

        Args:
          decoder_tokens: int32 [B, L].
          memory: [B, M, D]; None: use the keys and values of the memory that an earlier call cached.
          mask, segment_ids: [B, M], mask and segment ids of the tokens that the memory encodes; None: no padding, a
            single segment.
          decoder_mask: without a cache, [B, L] with 0 for padding; None: no padding. With a cache, either [B, slots]
            with 1 for every slot in use, including the slots that this call fills, or [B, L, slots] with 1 for the
            slots that each token attends to.
          decoder_positions: int32 [B or 1, L]. With a cache, the default counts up from `cache_index`. Without a cache,
            the default is cumsum(decoder_mask) - 1 (but at least 0), or arange(L) without a mask.
          decoder_segment_ids: int32 [B, L]; tokens attend only to their own segment, in the decoder and, if
            `segment_ids` is set, in the memory. None: a single segment.
          cache_index: index of the first slot that this call fills; None: no cache. With a cache, `mask` and
            `decoder_mask` are required, and the collection `cache` must be mutable.
          slot_positions: int32 [slots], position in the text of each cache slot; by default the index of the slot.
          deterministic: whether dropout is disabled.
        """
        length = decoder_tokens.shape[1]
        if decoder_positions is None:
            decoder_positions = causal_positions(length, decoder_mask, cache_index)
        x = self.embed(decoder_tokens, decoder_positions, prefix="decoder_", deterministic=deterministic)
        self.sow("intermediates", "embedded", x)
        ids = decoder_segment_ids
        self_ids = None if ids is None else (ids, ids)
        cross_ids = None if ids is None or segment_ids is None else (ids, segment_ids)
        context = Context(causal=True, mask=decoder_mask, segment_ids=self_ids, positions=decoder_positions)
        context = context.replace(cache_index=cache_index, slot_positions=slot_positions)
        memory_context = Context(mask=mask, segment_ids=cross_ids, cache_index=None if cache_index is None else 0)
        return self.decoder(x, context, memory, memory_context, deterministic=deterministic)

    def features(
        self, tokens: Source, decoder_tokens: Tokens, mask: Mask | None = None, *, deterministic=True, **decoder: Any
    ) -> Stream:
        """Encodes the tokens, decodes, and returns the input of the head [B, L, D].

        Args:
          tokens, mask: as for `encode`.
          decoder_tokens: int32 [B, L].
          deterministic: whether dropout is disabled.
          decoder: further arguments of `decode`. `segment_ids` is also passed to `encode`.
        """
        segment_ids = decoder.get("segment_ids")
        memory = self.encode(tokens, mask, segment_ids, deterministic=deterministic)
        return self.decode(decoder_tokens, memory, mask, deterministic=deterministic, **decoder)
