"""Settings of text-to-text models."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from plm_jax.common.lazy import lazy
from plm_jax.models.heads import NoHead, VocabularyHead
from plm_jax.models.settings.parts import Stack
from plm_jax.models.settings.transformer import Transformer

jnp = lazy("jax.numpy")


@dataclass(frozen=True, kw_only=True)
class EncoderDecoder(Transformer):
    """A text-to-text transformer, such as T5 or BART: a causal stack that attends to a bidirectional one.

    One table of token embeddings serves both; learned positions and the norm of the embeddings are each stack's own.

    Attributes:
      decoder_stack: the causal one; `stack` is the bidirectional one.
      decoder_heads, decoder_head_dim: of the causal one's attention, also of that to the other; None: as `attention`.
      decoder_feed_forward: the width of its feed-forward; None: as `feed_forward`.
    """

    kind: ClassVar[str] = "encoder_decoder"
    inputs = (
        *("tokens", "mask", "segment_ids"),
        *("decoder_tokens", "decoder_mask", "decoder_positions", "decoder_segment_ids"),
    )
    stack_paths = ("encoder", "decoder")
    decoder_stack: Stack
    decoder_heads: int | None = None
    decoder_head_dim: int | None = None
    decoder_feed_forward: int | None = None
    head: VocabularyHead | NoHead = VocabularyHead()

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

    @property
    def stacks(self):
        """Both."""
        return self.stack, self.decoder_stack

    def module(self, dtype):
        """A `models.encoder_decoder.EncoderDecoder`."""
        from plm_jax.models.encoder_decoder import EncoderDecoder as Module

        return Module(self, dtype)

    def init_inputs(self):
        """A token for each stack."""
        tokens = jnp.zeros((1, 1), jnp.int32)
        return {"tokens": tokens, "decoder_tokens": tokens}

    def products(self, length, targets, decoder_length=0, samples=0):
        """Of both stacks, of the attention between them and the heads."""
        stacks = self.stack_products(length, causal=False)
        stacks += self.decoder_model.stack_products(decoder_length, causal=True, memory_length=length)
        return stacks + self.projection_products(length + decoder_length) + self.heads_products(length, targets)
