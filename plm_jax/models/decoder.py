"""The decoder architecture: embeddings, a causal stack, the vocabulary head."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Array, Integer, Shaped
from typing_extensions import override

from plm_jax.models.architecture import Architecture
from plm_jax.models.attention import causal_positions
from plm_jax.models.heads import NoHead, VocabularyHead
from plm_jax.models.kernels import Context
from plm_jax.models.layers import Stream
from plm_jax.models.stack import Stack
from plm_jax.models.transformer import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(TransformerConfig):
    """A causal language model: GPT, LLaMA, GLM and related models.

    Attributes:
      head: prediction of the next token; `none` for features only.
    """

    kind: ClassVar[str] = "decoder"
    inputs = ("tokens", "mask", "positions", "segment_ids", "block_positions", "prefix_lengths")
    head: VocabularyHead | NoHead = VocabularyHead()

    @override
    def module(self, dtype):
        """Returns a `Decoder`."""
        return Decoder(self, dtype)

    @override
    def macs(self, length, targets, decoder_length=0, samples=0):
        """Counts the multiply-accumulate operations of a causal stack and its heads."""
        stack = self.stack_macs(length, causal=True)
        return stack + self.projection_macs(length) + self.heads_macs(length, targets)


class Decoder(Architecture):
    """The module of `DecoderConfig`: a language model that is causal except within a prefix."""

    model: DecoderConfig

    def setup(self):
        """Modules besides those of `Architecture`: `stack`."""
        super().setup()
        self.stack = Stack(self.model, self.dtype)

    def features(
        self,
        tokens: Integer[Array, "batch length"],
        mask: Shaped[Array, "batch slots"] | Shaped[Array, "batch length slots"] | None = None,
        positions: Integer[Array, "rows length"] | None = None,
        segment_ids: Integer[Array, "batch length"] | None = None,
        cache_index: Integer[Array, ""] | int | None = None,
        slot_positions: Integer[Array, " slots"] | None = None,
        *,
        block_positions: Integer[Array, "batch length"] | None = None,
        prefix_lengths: Integer[Array, " batch"] | None = None,
        deterministic: bool = True,
    ) -> Stream:
        """Returns the input of the head [B, L, D]; sows `embedded` and, in the stack, `hidden`.

        Args:
          tokens: int32 [B, L].
          mask: [B, L], 0 for padding; with a cache [B, slots], 1 for slots filled once this call is done, or
            [B, L, slots], 1 for the slots that each token attends to.
          positions: int32 [B, L]; by default arange, or cumsum(mask) - 1 where there is a mask and no cache.
          segment_ids: int32 [B, L]; tokens attend only to their own segment.
          cache_index: the first slot this call fills (with the `cache` collection mutable); None: no cache.
          slot_positions: int32 [slots], position in the text of each slot of the cache; by default they are in order.
          block_positions: int32 [B, L], the position within a blank, from 1; by default 0, outside all blanks.
          prefix_lengths: int32 [B], number of leading positions (or cache slots) visible to all tokens; by default 0.
          deterministic: no dropout.
        """
        length = tokens.shape[1]
        if positions is None:
            if cache_index is not None:
                raise ValueError("positions are required with a cache")
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
            slot_positions=slot_positions,
            prefix_lengths=prefix_lengths,
        )
        return self.stack(x, context, deterministic=deterministic)
