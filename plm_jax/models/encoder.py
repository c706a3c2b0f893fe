"""The encoder architecture: embeddings, a bidirectional stack, and heads for tokens, spans and pairs of sentences."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.models import settings
from plm_jax.models.activations import ACTIVATIONS
from plm_jax.models.architecture import Architecture
from plm_jax.models.initializers import kernel_init
from plm_jax.models.kernels import Context
from plm_jax.models.transformer import Dense, Stack, norm


class Encoder(Architecture):
    """A bidirectional model of `settings.Encoder`."""

    def setup(self):
        """Modules besides those of `Architecture`: `stack`, `pooler` [D, D], `classifier` [D, classes],
        `discriminator_transform` [D, D], `discriminator` [D, 1], `span_boundary`.
        """
        super().setup()
        self.stack = Stack(self.model, self.dtype, causal=False)
        pooler, init = self.model.pooler, kernel_init(self.model)
        if isinstance(pooler, settings.Pooler):
            self.pooler = Dense(self.model.embedding.width, ("embed", None), True, init, self.dtype)
            if pooler.classes:
                self.classifier = Dense(pooler.classes, ("embed", None), True, init, self.dtype)
        if isinstance(self.model.discriminator, settings.Discriminator):
            width = self.model.embedding.width
            self.discriminator_transform = Dense(width, ("embed", None), True, init, self.dtype)
            self.discriminator = Dense(1, ("embed", None), True, init, self.dtype)
        if isinstance(self.model.span_boundary, settings.SpanBoundary):
            self.span_boundary = SpanBoundary(self.model, self.dtype)

    def features(self, tokens, mask=None, token_types=None, positions=None, segment_ids=None, *, deterministic=True):
        """What the heads are applied to: [B, L, D]; sows `embedded` and, in the stack, `hidden`.

        Args:
          tokens: int32 [B, L].
          mask: [B, L], 1 for real tokens.
          token_types: int32 [B, L], which part of a pair each token is of; by default all 0.
          positions: int32 [B, L]; by default as the position scheme's `places`.
          segment_ids: int32 [B, L]; tokens see their own segment only.
          deterministic: no dropout.
        """
        if positions is None:
            positions = self.model.attention.position.places(tokens.shape[1], mask)
        x = self.embed(tokens, positions, token_types, deterministic=deterministic)
        self.sow("intermediates", "embedded", x)
        segments = None if segment_ids is None else (segment_ids, segment_ids)
        context = Context(mask=mask, segment_ids=segments, positions=positions)
        return self.stack(x, context, deterministic=deterministic)

    def pooled(self, features):
        """The text as a whole, from its first position: [B, L, D] → [B, D]."""
        return jnp.tanh(self.pooler(features[:, 0]))

    def pair_logits(self, features):
        """The classes of the pair: [B, L, D] → float32 [B, classes]."""
        return self.classifier(self.pooled(features)).astype(jnp.float32)

    def discriminator_logits(self, features):
        """Whether each token was replaced, above 0: it was: [B, L, D] → float32 [B, L]."""
        activation = ACTIVATIONS[self.model.discriminator.activation]
        return self.discriminator(activation(self.discriminator_transform(features)))[..., 0].astype(jnp.float32)

    def boundary_head(self, features, left, right, offsets):
        """The second vocabulary head of tokens in spans; arguments as `SpanBoundary`.

        Returns:
          What its matrix is applied to [B, T, E], the matrix [V, E] and the bias [V].
        """
        features, bias = self.span_boundary(features, left, right, offsets)
        return features, self.token_embedding, bias

    def __call__(self, tokens, *args, **kwargs):
        """Logits, float32 [B, L, V], or the features of a model without that head; arguments as `features`."""
        features = self.features(tokens, *args, **kwargs)
        if self.is_initializing():
            self._init_heads(features)
        return features if isinstance(self.model.head, settings.NoHead) else self.logits(features)

    def _init_heads(self, features):
        """Applies all heads but the vocabulary's."""
        if isinstance(self.model.pooler, settings.Pooler):
            self.pair_logits(features) if self.model.pooler.classes else self.pooled(features)
        if isinstance(self.model.discriminator, settings.Discriminator):
            self.discriminator_logits(features)
        if isinstance(self.model.span_boundary, settings.SpanBoundary):
            first = jnp.zeros(features.shape[:2], jnp.int32)
            self.boundary_head(features, first, first, first)


class SpanBoundary(nn.Module):
    """What predicts the tokens of spans from their boundaries, `settings.SpanBoundary`."""

    model: settings.Encoder
    dtype: Any

    @nn.compact
    def __call__(self, features, left, right, offsets):
        """From features [B, L, D] to those of T targets, [B, T, E], and the bias [V] of what they are multiplied with.

        Args:
          features: [B, L, D].
          left, right: int32 [B, T], the positions before and after each target's span.
          offsets: int32 [B, T], each target's number in its span, from 0.
        """
        head, embedding = self.model.span_boundary, self.model.embedding
        init = kernel_init(self.model)
        table_init = nn.with_logical_partitioning(init, (None, None))
        table = self.param("position_embedding", table_init, (head.positions, head.width)).astype(self.dtype)
        boundaries = [jnp.take_along_axis(features, at[..., None], axis=1) for at in (left, right)]
        x = jnp.concatenate([*boundaries, table[jnp.minimum(offsets, head.positions - 1)]], axis=-1)
        for number, width in enumerate((embedding.width, embedding.columns)):
            axes = ("embed", None) if number else (None, "embed")
            x = Dense(width, axes, True, init, self.dtype, name=f"transform_{number}")(x)
            x = norm(self.model, self.dtype, name=f"norm_{number}")(ACTIVATIONS[head.activation](x))
        bias_init = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
        return x, self.param("bias", bias_init, (embedding.vocab_size,))
