"""Settings of text-to-text models."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.common.lazy import lazy
from plm_jax.models.heads import NoHead, VocabularyHead
from plm_jax.models.settings.encoder import EncoderConfig
from plm_jax.models.settings.parts import StackConfig
from plm_jax.models.settings.transformer import TransformerConfig

jnp = lazy("jax.numpy")


@dataclass(frozen=True)
class SourceEncoderConfig:
    """A new encoder whose outputs take the place of the token embeddings that a pretrained encoder reads.

    So a BART learns to translate (Lewis et al. 2020 §3.4). It has a table of tokens of its own; but for how many layers
    it has, it is made as the model's own encoder, and shares nothing with it.

    Attributes:
      layers: of its stack; the paper's has 6.
    """

    kind: ClassVar[str] = "source_encoder"
    layers: ranges.Layers = 6


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(TransformerConfig):
    """A text-to-text transformer, such as T5 or BART: a causal stack that attends to a bidirectional one.

    One table of token embeddings serves both; learned positions and the norm of the embeddings are each stack's own.

    Attributes:
      decoder_stack: the causal one; `stack` is the bidirectional one.
      decoder_heads, decoder_head_dim: of the causal one's attention, also of that to the other; None: as `attention`.
      decoder_feed_forward: the width of its feed-forward; None: as `feed_forward`.
      tie_encoder_decoder: the bidirectional stack has the causal one's parameters, all but those of the attention to
        it, which is the latter's alone (the "shared" encoder-decoder of Raffel et al. 2020 §3.2.2; in their code both
        stacks bear one name, and so share norms and relative bias, too).
      source_encoder: what reads the input's tokens before the bidirectional stack; None: their embeddings do.
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
        decoder, _ = self.decoder_model, self.source_model  # They have checks of their own.
        parts = [(model.stack, model.attention, model.feed_forward) for model in (self, decoder)]
        if self.tie_encoder_decoder and parts[0] != parts[1]:
            raise UserError(
                "tie_encoder_decoder needs stacks that are alike: give decoder_stack what stack has, and leave "
                "decoder_heads, decoder_head_dim and decoder_feed_forward out"
            )
        if self.source_encoder is not None and self.embedding.embedding_size is not None:
            raise UserError("source_encoder gives what is as wide as the model: leave embedding.embedding_size out")

    @property
    def decoder_model(self) -> TransformerConfig:
        """The settings of the causal stack."""
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

    @property
    def source_model(self) -> EncoderConfig | None:
        """The settings of the new encoder of the input; None: there is none."""
        if self.source_encoder is None:
            return None
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(TransformerConfig)} | {"heads": ()}
        fields["stack"] = dataclasses.replace(self.stack, layers=self.source_encoder.layers)
        return EncoderConfig(**fields, head=NoHead())

    @property
    def stacks(self):
        """Both, or the one that they are, and the new encoder's."""
        own = (self.decoder_stack,) if self.tie_encoder_decoder else (self.stack, self.decoder_stack)
        return (*own, *(() if self.source_encoder is None else (self.source_model.stack,)))

    @property
    def stack_paths(self):
        """Of each of `stacks`."""
        own = ("decoder",) if self.tie_encoder_decoder else ("encoder", "decoder")
        return (*own, *(() if self.source_encoder is None else ("source_encoder/stack",)))

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
        if self.source_encoder is not None:
            stacks += self.source_model.products(length, 0)
        stacks += self.decoder_model.stack_products(decoder_length, causal=True, memory_length=length)
        return stacks + self.projection_products(length + decoder_length) + self.heads_products(length, targets)
