"""The encoder-decoder architecture: a bidirectional stack, a causal one that attends to it, the vocabulary head."""

from typing import ClassVar

from plm_jax.models.architecture import Architecture
from plm_jax.models.attention import causal_positions
from plm_jax.models.encoder import Encoder
from plm_jax.models.kernels import Context
from plm_jax.models.stack import Stack


class EncoderDecoder(Architecture):
    """A text-to-text model of `settings.EncoderDecoderConfig`. M is the encoder's length, L the decoder's."""

    last_stack: ClassVar[str] = "decoder"

    @property
    def prefixes(self):
        """The encoder's and the decoder's; of those that are tied the decoder's."""
        return ("decoder_",) if self.model.tie_encoder_decoder else ("encoder_", "decoder_")

    def setup(self):
        """Modules besides those of `Architecture`: the stacks `encoder` and `decoder`, of those that are tied the
        latter, and where the settings have one `source_encoder`, a whole `Encoder`.
        """
        super().setup()
        if self.model.source_encoder is not None:
            self.source_encoder = Encoder(self.model.source_model, self.dtype)
        self.decoder = Stack(self.model.decoder_model, self.dtype, crosses=True)
        self.encoder = self.decoder if self.model.tie_encoder_decoder else Stack(self.model, self.dtype)

    def encode(self, tokens, mask=None, positions=None, segment_ids=None, *, deterministic=True):
        """The memory [B, M, D] of tokens [B, M]; arguments as `Encoder.features`; sows `encoder_embedded`."""
        if positions is None:
            positions = self.model.attention.position.places(tokens.shape[1], mask)
        read = None
        if self.model.source_encoder is not None:
            read = self.source_encoder.features(
                tokens, mask, positions=positions, segment_ids=segment_ids, deterministic=deterministic
            )
        x = self.embed(tokens, positions, prefix=self.prefixes[0], deterministic=deterministic, read=read)
        self.sow("intermediates", "encoder_embedded", x)
        segments = None if segment_ids is None else (segment_ids, segment_ids)
        context = Context(mask=mask, segment_ids=segments, positions=positions)
        return self.encoder(x, context, deterministic=deterministic)

    def decode(
        self,
        decoder_tokens,
        memory,
        mask=None,
        decoder_mask=None,
        decoder_positions=None,
        segment_ids=None,
        decoder_segment_ids=None,
        cache_index=None,
        slot_places=None,
        *,
        deterministic=True,
    ):
        """What the head is applied to: [B, L, D]; sows `embedded`.

        Args:
          decoder_tokens: int32 [B, L].
          memory: [B, M, D]; None: with a cache, the one of the call before.
          mask, segment_ids: [B, M], the memory's.
          decoder_mask: [B, L], 1 for real tokens; with a cache [B, slots], 1 for slots filled once this call is done,
            or [B, L, slots], those of them that each token sees.
          decoder_positions: int32 [B, L]; by default arange, or cumsum(decoder_mask) - 1 with a mask and no cache.
          decoder_segment_ids: int32 [B, L]; tokens see their own segment only, of the memory too.
          cache_index: the first slot this call fills (with the `cache` collection mutable); None: no cache. With one,
            `mask` must be given.
          slot_places: int32 [slots], which place of a text each slot of the cache is for; by default they are in order.
          deterministic: no dropout.
        """
        length = decoder_tokens.shape[1]
        if decoder_positions is None:
            decoder_positions = causal_positions(length, decoder_mask, cache_index)
        x = self.embed(decoder_tokens, decoder_positions, prefix="decoder_", deterministic=deterministic)
        self.sow("intermediates", "embedded", x)
        own = across = None
        if decoder_segment_ids is not None:
            own, across = (decoder_segment_ids, decoder_segment_ids), (decoder_segment_ids, segment_ids)
        context = Context(
            causal=True,
            mask=decoder_mask,
            segment_ids=own,
            positions=decoder_positions,
            cache_index=cache_index,
            slot_places=slot_places,
        )
        memory_context = Context(mask=mask, segment_ids=across, cache_index=None if cache_index is None else 0)
        return self.decoder(x, context, memory, memory_context, deterministic=deterministic)

    def features(self, tokens, decoder_tokens, mask=None, *, deterministic=True, **decoder):
        """Both in one: [B, L, D]; `decoder` are further arguments of `decode`."""
        segment_ids = decoder.get("segment_ids")
        memory = self.encode(tokens, mask, None, segment_ids, deterministic=deterministic)
        return self.decode(decoder_tokens, memory, mask, deterministic=deterministic, **decoder)
