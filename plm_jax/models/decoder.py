"""The decoder arrangement: embeddings, a causal stack, a final norm, the vocabulary head."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.models import settings
from plm_jax.models.partitioning import constrain
from plm_jax.models.transformer import Stack, norm


def causal_visibility(length, slots, cache_index, mask, segment_ids):
    """Which keys each query sees: bool [B or 1, 1, length, slots].

    Queries stand in slots cache_index … cache_index + length - 1. A key is visible if it stands no later, is not
    padding (`mask` [B, slots]) and is of the same segment (`segment_ids` [B, length], only where slots = length).
    """
    query_slots = cache_index + jnp.arange(length)
    visible = (query_slots[:, None] >= jnp.arange(slots))[None, None]
    if mask is not None:
        visible = visible & (mask[:, None, None, :] != 0)
    if segment_ids is not None:
        visible = visible & (segment_ids[:, None, :, None] == segment_ids[:, None, None, :])
    return visible


class Decoder(nn.Module):
    """A causal language model.

    Attributes:
      model: its settings.
      dtype: of activations.
    """

    model: settings.Decoder
    dtype: Any = jnp.float32

    def setup(self):
        """Parameters: `token_embedding` [V, D], `position_embedding` [P, D], `stack`, `final_norm`, `head` [V, D]."""
        embedding, position = self.model.embedding, self.model.attention.position

        def table(name, std, rows, axes):
            init = nn.with_logical_partitioning(nn.initializers.normal(std), axes)
            return self.param(name, init, (rows, embedding.width))

        std = self.model.initializer.std
        self.token_embedding = table("token_embedding", std, embedding.vocab_size, ("vocab", "embed"))
        if isinstance(position, settings.LearnedPositions):
            self.position_embedding = table(
                "position_embedding", position.init_std, position.length, ("positions", "embed")
            )
        if not self.model.head.tied:
            self.head = table("head", std, embedding.vocab_size, ("vocab", "embed"))
        self.final_norm = norm(self.model, self.dtype)

    @nn.compact
    def features(self, tokens, mask=None, positions=None, segment_ids=None, cache_index=None, *, deterministic=True):
        """What the head is applied to: [B, L, D]; sows `embedded` and, in each block, `hidden`.

        Args:
          tokens: int32 [B, L].
          mask: [B, L], 1 for real tokens; with a cache [B, slots], 1 for slots filled once this call is done.
          positions: int32 [B, L]; by default arange, or cumsum(mask) - 1 where there is a mask and no cache.
          segment_ids: int32 [B, L]; tokens see their own segment only.
          cache_index: the first slot this call fills (with the `cache` collection mutable); None: no cache.
          deterministic: no dropout.
        """
        length = tokens.shape[1]
        if positions is None:
            if cache_index is not None:
                raise ValueError("with a cache, give positions")
            positions = jnp.arange(length)[None] if mask is None else jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)
        x = self.token_embedding.astype(self.dtype)[tokens]
        if isinstance(self.model.attention.position, settings.LearnedPositions):
            x = x + self.position_embedding.astype(self.dtype)[positions]
        x = nn.Dropout(self.model.dropout.embedding, deterministic=deterministic)(x)
        x = constrain(x, "batch", "length", "embed")
        self.sow("intermediates", "embedded", x)
        slots = length if cache_index is None else mask.shape[1]
        visible = causal_visibility(length, slots, 0 if cache_index is None else cache_index, mask, segment_ids)
        x = Stack(self.model, self.dtype, deterministic, name="stack")(x, visible, cache_index)
        return self.final_norm(x)

    def unembedding(self):
        """The head's matrix [V, D]: logits are features @ unembedding.T."""
        return self.token_embedding if self.model.head.tied else self.head

    def logits(self, features):
        """The head: [B, L, D] → float32 [B, L, V]."""
        logits = jnp.einsum(
            "bld,vd->blv", features, self.unembedding().astype(self.dtype), preferred_element_type=jnp.float32
        )
        return constrain(logits, "batch", "length", "vocab")

    def __call__(self, tokens, *args, **kwargs):
        """Logits, float32 [B, L, V]; arguments as `features`."""
        return self.logits(self.features(tokens, *args, **kwargs))
