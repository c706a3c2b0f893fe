"""The decoder architecture: embeddings, a causal stack, the vocabulary head."""

from dataclasses import dataclass
from typing import ClassVar

from plm_jax.models.architecture import Architecture
from plm_jax.models.attention import causal_positions
from plm_jax.models.heads import NoHead, VocabularyHead
from plm_jax.models.kernels import Context
from plm_jax.models.stack import Stack
from plm_jax.models.transformer import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(TransformerConfig):
    """A causal language model: GPT, LLaMA, GLM and their kin."""

    kind: ClassVar[str] = "decoder"
    inputs = ("tokens", "mask", "positions", "segment_ids", "block_positions", "prefix_lengths")
    head: VocabularyHead | NoHead = VocabularyHead()

    def module(self, dtype):
        """A `Decoder`."""
        return Decoder(self, dtype)

    def products(self, length, targets, decoder_length=0, samples=0):
        """Of a causal stack and its heads."""
        stack = self.stack_products(length, causal=True)
        return stack + self.projection_products(length) + self.heads_products(length, targets)


class Decoder(Architecture):
    """A language model of `DecoderConfig`: causal, but for a prefix where one is given."""

    model: DecoderConfig

    def setup(self):
        """Modules besides those of `Architecture`: `stack`."""
        super().setup()
        self.stack = Stack(self.model, self.dtype)

    def features(
        self,
        tokens,
        mask=None,
        positions=None,
        segment_ids=None,
        cache_index=None,
        slot_places=None,
        *,
        block_positions=None,
        prefix_lengths=None,
        deterministic=True,
    ):
        """What the head is applied to: [B, L, D]; sows `embedded` and, in the stack, `hidden`.

        Args:
          tokens: int32 [B, L].
          mask: [B, L], 1 for real tokens; with a cache [B, slots], 1 for slots filled once this call is done, or
            [B, L, slots], those of them that each token sees.
          positions: int32 [B, L]; by default arange, or cumsum(mask) - 1 where there is a mask and no cache.
          segment_ids: int32 [B, L]; tokens see their own segment only.
          cache_index: the first slot this call fills (with the `cache` collection mutable); None: no cache.
          slot_places: int32 [slots], which place of a text each slot of the cache is for; by default they are in order.
          block_positions: int32 [B, L], the place within a blank, from 1 on; by default 0, outside of all blanks.
          prefix_lengths: int32 [B], how many of the first places (with a cache: slots) all tokens see; by default none.
          deterministic: no dropout.
        """
        length = tokens.shape[1]
        if positions is None:
            if cache_index is not None:
                raise ValueError("with a cache, give positions")
            positions = causal_positions(length, mask)
        x = self.embed(tokens, positions, block_positions=block_positions, deterministic=deterministic)
        self.sow("intermediates", "embedded", x)
        segments = None if segment_ids is None else (segment_ids, segment_ids)
        context = Context(
            causal=True,
            mask=mask,
            segment_ids=segments,
            positions=positions,
            block_positions=block_positions,
            cache_index=cache_index,
            slot_places=slot_places,
            prefix_lengths=prefix_lengths,
        )
        return self.stack(x, context, deterministic=deterministic)
