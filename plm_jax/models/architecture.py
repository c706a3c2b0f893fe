"""What every architecture has: tables of embeddings before its stacks, a head to the vocabulary after them."""

from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.models import settings
from plm_jax.models.partitioning import constrain
from plm_jax.models.transformer import ACTIVATIONS, Dense, dropout, kernel_init, norm, normal, sinusoids


class Architecture(nn.Module):
    """The base of `Decoder`, `Encoder` and `EncoderDecoder`.

    Attributes:
      model: its settings.
      dtype: of activations.
      inputs: prefixes of the names of what the architecture has once for each of its inputs.
    """

    inputs: ClassVar[tuple[str, ...]] = ("",)
    model: settings.Transformer
    dtype: Any = jnp.float32

    def setup(self):
        """Parameters: `token_embedding` [V, E], `position_embedding` and `block_position_embedding` [P, E],
        `token_type_embedding` [T, E], `head` [V, E], `head_bias` [V]; modules `embedding_norm`, `embedding_projection`
        [E, D], `head_transform` [D, E], `head_norm`: what the settings ask for. E is the tables' width, by default D.

        Positions and the norm of embeddings are there once for each of `inputs`.
        """
        embedding, position, head = self.model.embedding, self.model.attention.position, self.model.head
        initializer = self.model.initializer
        table_std = 1.0 if isinstance(initializer, settings.FanIn) else initializer.std

        def table(name, rows, axis, init):
            return self.param(name, nn.with_logical_partitioning(init, (axis, "embed")), (rows, embedding.columns))

        table_init = normal(self.model, table_std)
        self.token_embedding = table("token_embedding", embedding.vocab_size, "vocab", table_init)
        for prefix in self.inputs:
            if isinstance(position, settings.LearnedPositions):
                name, init = f"{prefix}position_embedding", normal(self.model, position.init_std)
                setattr(self, name, table(name, position.offset + position.length, "positions", init))
            if embedding.norm:
                setattr(self, f"{prefix}embedding_norm", norm(self.model, self.dtype))
        if isinstance(position, settings.BlockPositions):
            rows, init = position.length + 1, normal(self.model, position.init_std)
            self.position_embedding = table("position_embedding", rows, "positions", init)
            self.block_position_embedding = table("block_position_embedding", rows, "positions", init)
        if embedding.token_types:
            self.token_type_embedding = table("token_type_embedding", embedding.token_types, None, table_init)
        self.embedding_dropout = dropout(self.model, "embedding")
        if embedding.table_width is not None:
            axes, init = (None, "embed"), kernel_init(self.model)
            self.embedding_projection = Dense(embedding.width, axes, True, init, self.dtype)
        if isinstance(head, settings.NoHead):
            return
        if head.transform:
            axes = ("embed", None)
            self.head_transform = Dense(embedding.columns, axes, True, kernel_init(self.model), self.dtype)
            self.head_norm = norm(self.model, self.dtype)
        if not head.tied:
            fan_in = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", in_axis=1, out_axis=0)
            init = fan_in if isinstance(initializer, settings.FanIn) else table_init
            self.head = table("head", embedding.vocab_size, "vocab", init)
        if head.bias:
            bias = nn.with_logical_partitioning(nn.initializers.zeros, ("vocab",))
            self.head_bias = self.param("head_bias", bias, (embedding.vocab_size,))

    def embed(self, tokens, positions, token_types=None, block_positions=None, prefix="", *, deterministic):
        """[B, L, D] of tokens [B, L], positions [B or 1, L] and, where the model has them, token types [B, L] and
        places within blanks [B, L]; of the last two, None is 0 everywhere. `prefix` is which of `inputs` they are.
        """
        embedding, position = self.model.embedding, self.model.attention.position
        x = self.token_embedding.astype(self.dtype)[tokens]
        if embedding.scale_by_width:
            x = x * embedding.width**0.5
        if isinstance(position, settings.LearnedPositions):
            table = getattr(self, f"{prefix}position_embedding")
            x = x + table.astype(self.dtype)[positions + position.offset]
        if isinstance(position, settings.BlockPositions):
            within = jnp.zeros_like(tokens) if block_positions is None else block_positions
            x = x + self.position_embedding.astype(self.dtype)[positions]
            x = x + self.block_position_embedding.astype(self.dtype)[within]
        if isinstance(position, settings.SinusoidalPositions):
            x = x + sinusoids(positions, embedding.columns).astype(self.dtype)
        if embedding.token_types:
            types = jnp.zeros_like(tokens) if token_types is None else token_types
            x = x + self.token_type_embedding.astype(self.dtype)[types]
        if embedding.norm:
            x = getattr(self, f"{prefix}embedding_norm")(x)
        x = self.embedding_dropout(x, deterministic=deterministic)
        if embedding.table_width is not None:
            x = self.embedding_projection(x)
        return constrain(x, "batch", "length", "embed")

    def head_features(self, features):
        """What the unembedding is applied to, [..., D] → [..., E]."""
        head = self.model.head
        if head.transform:
            features = self.head_norm(ACTIVATIONS[head.transform](self.head_transform(features)))
        return features * self.model.embedding.width**-0.5 if head.scale_by_width else features

    def unembedding(self):
        """The head's matrix [V, E] and bias [V] (None: it has none)."""
        head = self.model.head
        return self.token_embedding if head.tied else self.head, self.head_bias if head.bias else None

    def logits(self, features):
        """The head: [B, L, D] → float32 [B, L, V]."""
        matrix, bias = self.unembedding()
        logits = jnp.einsum(
            "bld,vd->blv", self.head_features(features), matrix.astype(self.dtype), preferred_element_type=jnp.float32
        )
        logits = logits if bias is None else logits + bias
        return constrain(logits, "batch", "length", "vocab")
