"""The decoder architecture: embeddings, a causal stack, and the vocabulary head."""

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
      head: head that predicts the next token; `none`: the model returns features only.
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
        """Creates `stack`, and the parameters and modules of `Architecture`."""
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
          mask: without a cache, [B, L] with 0 for padding. With a cache, either [B, slots] with 1 for every slot in
            use, including the slots that this call fills, or [B, L, slots] with 1 for the slots that each token attends
            to. Required with a cache; otherwise, None means no padding.
          positions: int32 [B or 1, L]; required with a cache. By default, cumsum(mask) - 1 (but at least 0), or
            arange(L) without a mask.
          segment_ids: int32 [B, L]; tokens attend only to their own segment. None: a single segment.
          cache_index: index of the first slot that this call fills; None: no cache. With a cache, the collection
            `cache` must be mutable.
          slot_positions: int32 [slots], position in the text of each cache slot; by default the index of the slot.
          block_positions: int32 [B, L], the position of each token within its blank, counted from 1, and 0 for tokens
            outside blanks. By default, 0 everywhere.
          prefix_lengths: int32 [B], number of leading positions that all tokens attend to; by default 0. With a cache,
            the number of leading slots.
          deterministic: whether dropout is disabled.

        Raises:
          ValueError: `cache_index` is set without `positions`.
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
