"""Settings of causal language models."""

from dataclasses import dataclass
from typing import ClassVar

from plm_jax.models.heads import NoHead, VocabularyHead
from plm_jax.models.settings.transformer import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(TransformerConfig):
    """A causal language model: GPT, LLaMA, GLM and their kin."""

    kind: ClassVar[str] = "decoder"
    inputs = ("tokens", "mask", "positions", "segment_ids", "block_positions", "prefix_lengths")
    head: VocabularyHead | NoHead = VocabularyHead()

    def module(self, dtype):
        """A `models.decoder.Decoder`."""
        from plm_jax.models.decoder import Decoder as Module

        return Module(self, dtype)

    def products(self, length, targets, decoder_length=0, samples=0):
        """Of a causal stack and its heads."""
        stack = self.stack_products(length, causal=True)
        return stack + self.projection_products(length) + self.heads_products(length, targets)
