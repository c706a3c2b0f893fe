"""The encoder architecture: embeddings, a bidirectional stack, and heads for tokens, spans and pairs of sentences."""

import dataclasses
import functools
from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
from jaxtyping import Array, Float, Integer, Shaped
from typing_extensions import override

from plm_jax.common.errors import UserError
from plm_jax.models.architecture import Architecture
from plm_jax.models.deberta import ConvolutionConfig, DebertaStack
from plm_jax.models.heads import (
    TASK,
    Discriminator,
    Head,
    HeadModule,
    MaskDecoderHead,
    NoHead,
    Pooler,
    SpanBoundary,
    VocabularyHead,
)
from plm_jax.models.kernels import Context
from plm_jax.models.layers import Stream
from plm_jax.models.stack import Stack
from plm_jax.models.tables import GatheredTable
from plm_jax.models.transformer import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """A bidirectional transformer with optional heads: BERT and related models.

    Attributes:
      head: masked LM head; `none`: the model returns features only.
      pooler: dense layer on the first token, with an optional classifier of sentence pairs.
      discriminator: ELECTRA's detection of replaced tokens.
      span_boundary: SpanBERT's prediction of spans from their boundaries.
      convolution: DeBERTa-v2's convolution, added to the output of the first layer; None: no convolution.
    """

    kind: ClassVar[str] = "encoder"
    inputs = ("tokens", "mask", "token_types", "positions", "segment_ids")
    head: VocabularyHead | MaskDecoderHead | NoHead = VocabularyHead()
    pooler: Pooler | NoHead = NoHead()
    discriminator: Discriminator | NoHead = NoHead()
    span_boundary: SpanBoundary | NoHead = NoHead()
    convolution: ConvolutionConfig | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.convolution is None and not isinstance(self.head, MaskDecoderHead):
            return
        if self.stack.stored_blocks < self.stack.layers or self.stack.inner > 1:
            raise UserError(
                "a convolution and a mask decoder need layers of one block that share no parameters: leave out "
                "stack.groups and stack.inner"
            )

    @property
    @override
    def num_positions(self):
        limits = super().num_positions, getattr(self.head, "positions", None)
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    @override
    def max_length(self):
        return getattr(self.head, "positions", None) or super().max_length

    @property
    @override
    def uses_absolute_positions(self):
        return super().uses_absolute_positions or isinstance(self.head, MaskDecoderHead)

    @property
    @override
    def has_stages(self):
        return self.convolution is None and not isinstance(self.head, MaskDecoderHead)

    @property
    def own_heads(self) -> dict[str, Head]:
        """Heads by name that are fields of these settings, except the vocabulary head."""
        pair = "sentence_pair" if getattr(self.pooler, "classes", 0) else "pooled"
        heads = {pair: self.pooler, "discriminator": self.discriminator, "span_boundary": self.span_boundary}
        return {name: head for name, head in heads.items() if not isinstance(head, NoHead)}

    @property
    @override
    def named_heads(self) -> dict[str, Head]:
        """Heads by name: the heads that are fields of these settings, and the heads in `heads`."""
        return {**super().named_heads, **self.own_heads}

    @override
    def with_task(self, head):
        """Returns these settings with the task's head as the only head.

        If this head reads a pooler, the result also has a pooler.
        """
        pooler = Pooler(0) if getattr(head, "feature", None) == "pooler" else NoHead()
        fields = {"head": NoHead(), "discriminator": NoHead(), "span_boundary": NoHead(), "pooler": pooler}
        return dataclasses.replace(self, heads=((TASK, head),), **fields)

    @override
    def module(self, dtype):
        """Returns an `Encoder`.

        Raises:
          UserError: a model with a mask decoder has other heads, or it has a convolution and only one layer.
        """
        if isinstance(self.head, MaskDecoderHead):
            self._check_mask_decoder()
        return Encoder(self, dtype)

    def _check_mask_decoder(self) -> None:
        if self.convolution is not None and self.stack.layers == 1:
            raise UserError(
                "a convolution follows the first layer, and a mask decoder replaces the last one: set stack.layers to "
                "at least 2"
            )
        if len(self.named_heads) > 1:
            other = next(name for name in self.named_heads if name != "vocabulary")
            raise UserError(
                f"the head '{other}' cannot read the output of a mask decoder: leave it out, or set "
                "config.model.head.kind to vocabulary"
            )

    @override
    def macs(self, length, targets, decoder_length=0, samples=0):
        """Counts the multiply-accumulate operations of a bidirectional stack and of the heads."""
        layers = self.stack.layers + isinstance(self.head, MaskDecoderHead)  # The decoder has the last layer twice.
        attention = self.attention
        scores = attention.position.macs(length, length, attention.heads * attention.head_dim)
        stack = self.stack_macs(length, causal=False) * layers / self.stack.layers + layers * self.stack.inner * scores
        if self.convolution is not None:
            stack += length * self.convolution.width * self.embedding.width**2
        return stack + self.projection_macs(length) + self.heads_macs(length, targets)


# The modules of the heads that are fields of `EncoderConfig`, by the names of the heads.
OWN_HEADS = {
    "sentence_pair": "pair_head",
    "pooled": "pair_head",
    "discriminator": "discriminator_head",
    "span_boundary": "span_boundary",
}


class Encoder(Architecture):
    """A bidirectional model of `EncoderConfig`.

    Attributes:
      stack_class: class of the module `stack`, unless a convolution or a mask decoder needs a `DebertaStack`.
    """

    stack_class: ClassVar[type[Stack]] = Stack
    model: EncoderConfig

    def setup(self):
        """Creates the parameters and modules of `Architecture`, the stack, and the heads that the settings ask for.

        Modules: `stack`, `pooler` [D, D], `classifier` [D, classes], `discriminator_transform` [D, D], `discriminator`
        [D, 1], `discriminator_norm`, `span_boundary`.
        """
        super().setup()
        head, convolution = self.model.head, self.model.convolution
        if convolution is None and not isinstance(head, MaskDecoderHead):
            self.stack = self.stack_class(self.model, self.dtype)
        else:
            positions = head.positions if isinstance(head, MaskDecoderHead) else 0
            self.stack = DebertaStack(self.model, self.dtype, convolution=convolution, positions=positions)
        for name, head in self.model.own_heads.items():
            module = HeadModule(head, self.model, self.dtype)
            setattr(self, OWN_HEADS[name], module)
            if name != "span_boundary":  # The parameters of the other heads are at the top level.
                nn.share_scope(self, module)

    def features(
        self,
        tokens: Integer[Array, "batch length"],
        mask: Shaped[Array, "batch length"] | None = None,
        token_types: Integer[Array, "batch length"] | None = None,
        positions: Integer[Array, "rows length"] | None = None,
        segment_ids: Integer[Array, "batch length"] | None = None,
        *,
        deterministic: bool = True,
    ) -> Stream:
        """Returns the input of the heads [B, L, D]; sows `embedded` and, in the stack, `hidden`.

        Args:
          tokens: int32 [B, L].
          mask: [B, L], 1 for tokens, 0 for padding; None: no padding.
          token_types: int32 [B, L], such as 0 for the first text of a pair and 1 for the second; by default 0. Ignored
            by a model without token types.
          positions: int32 [B or 1, L]; by default, the result of the position scheme's `default_positions`.
          segment_ids: int32 [B, L]; tokens attend only to their own segment. None: a single segment.
          deterministic: whether dropout is disabled.
        """
        if positions is None:
            positions = self.model.attention.position.default_positions(tokens.shape[1], mask)
        x = self.embed(tokens, positions, token_types, deterministic=deterministic)
        self.sow("intermediates", "embedded", x)
        segments = None if segment_ids is None else (segment_ids, segment_ids)
        context = Context(mask=mask, segment_ids=segments, positions=positions)
        return self.stack(x, context, deterministic=deterministic)

    @override
    def head_module(self, name):
        """Returns the `HeadModule` of a head in the settings' `named_heads`, except the vocabulary head."""
        return getattr(self, OWN_HEADS[name]) if name in OWN_HEADS else super().head_module(name)

    @override
    def head_output(self, features, name, **inputs):
        """Returns the output of a head.

        A head with the `feature` "pooler" also gets the input `pool`, the function of the model's pooler.
        """
        if getattr(self.model.named_heads.get(name), "feature", None) == "pooler":
            inputs["pool"] = functools.partial(self.pair_head, classify=False)
        return super().head_output(features, name, **inputs)

    def boundary_head(
        self,
        features: Stream,
        left: Integer[Array, "batch targets"],
        right: Integer[Array, "batch targets"],
        offsets: Integer[Array, "batch targets"],
    ) -> tuple[
        Float[Array, "batch targets columns"],
        Float[Array, "vocab columns"] | GatheredTable,
        Float[Array, " vocab"],
    ]:
        """Returns the input and the parameters of the unembedding that predicts the tokens of spans.

        The arguments are the same as for `SpanBoundary.compute`.

        Returns:
          A tuple: the features of the targets [B, T, E], the matrix [V, E] and the bias [V].
        """
        features, bias = self.span_boundary(features, left=left, right=right, offsets=offsets)
        return features, self.token_embedding, bias
