"""Settings of bidirectional models."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from plm_jax.models.heads import TASK, Discriminator, Head, NoHead, Pooler, SpanBoundary, VocabularyHead
from plm_jax.models.settings.transformer import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """A bidirectional transformer with optional heads: BERT and its kin. The pooler classifies pairs of sentences."""

    kind: ClassVar[str] = "encoder"
    inputs = ("tokens", "mask", "token_types", "positions", "segment_ids")
    head: VocabularyHead | NoHead = VocabularyHead()
    pooler: Pooler | NoHead = NoHead()
    discriminator: Discriminator | NoHead = NoHead()
    span_boundary: SpanBoundary | NoHead = NoHead()

    @property
    def own_heads(self) -> dict[str, Head]:
        """Those of its fields but the vocabulary's."""
        pair = "sentence_pair" if getattr(self.pooler, "classes", 0) else "pooled"
        heads = {pair: self.pooler, "discriminator": self.discriminator, "span_boundary": self.span_boundary}
        return {name: head for name, head in heads.items() if not isinstance(head, NoHead)}

    @property
    def named_heads(self) -> dict[str, Head]:
        """Those of its fields, and the others."""
        return {**super().named_heads, **self.own_heads}

    def with_task(self, head):
        """Without the heads that it was trained with, but for a pooler that the task's head reads."""
        pooler = Pooler(0) if getattr(head, "feature", None) == "pooler" else NoHead()
        fields = {"head": NoHead(), "discriminator": NoHead(), "span_boundary": NoHead(), "pooler": pooler}
        return dataclasses.replace(self, heads=((TASK, head),), **fields)

    def module(self, dtype):
        """A `models.encoder.Encoder`."""
        from plm_jax.models.encoder import Encoder as Module

        return Module(self, dtype)

    def products(self, length, targets, decoder_length=0, samples=0):
        """Of a stack that sees both ways, and the heads."""
        stack = self.stack_products(length, causal=False)
        return stack + self.projection_products(length) + self.heads_products(length, targets)
