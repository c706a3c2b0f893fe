"""Settings of bidirectional models."""

from dataclasses import dataclass
from typing import ClassVar

from plm_jax.models.heads import Discriminator, NoHead, Pooler, SpanBoundary, VocabularyHead
from plm_jax.models.settings.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Encoder(Transformer):
    """A bidirectional model; its pooler's classes are those of a pair of sentences."""

    kind: ClassVar[str] = "encoder"
    inputs = ("tokens", "mask", "token_types", "positions", "segment_ids")
    head: VocabularyHead | NoHead = VocabularyHead()
    pooler: Pooler | NoHead = NoHead()
    discriminator: Discriminator | NoHead = NoHead()
    span_boundary: SpanBoundary | NoHead = NoHead()

    def module(self, dtype):
        """A `models.encoder.Encoder`."""
        from plm_jax.models.encoder import Encoder as Module

        return Module(self, dtype)

    def products(self, length, targets, decoder_length=0, samples=0):
        """Of a stack that sees both ways and all heads; a pooler's, at one token, are left out."""
        heads = (self.head, self.pooler, self.discriminator, self.span_boundary)
        stack = self.stack_products(length, causal=False)
        of_heads = sum(head.products(self, length, targets) for head in heads)
        return stack + self.projection_products(length) + of_heads
