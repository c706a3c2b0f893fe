"""What follows from a module's features and its unembedding."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.models import tables
from plm_jax.models.partitioning import constrain
from plm_jax.models.protocol import ModelConfig


class VocabularyModule(nn.Module):
    """The base of modules that predict tokens; one has `features` and `unembedding`, see `protocol.Module`.

    Attributes:
      model: its settings.
      dtype: of activations.
    """

    model: ModelConfig
    dtype: Any = jnp.float32

    def head_features(self, features: jax.Array) -> jax.Array:
        """What the unembedding is applied to, [..., D] → [..., E]; by default the features."""
        return features

    def logits(self, features: jax.Array) -> jax.Array:
        """The vocabulary head: [B, L, D] → float32 [B, L, V]."""
        matrix, bias = self.unembedding()
        matrix = tables.array(matrix).astype(self.dtype)
        logits = jnp.einsum("bld,vd->blv", self.head_features(features), matrix, preferred_element_type=jnp.float32)
        logits = logits if bias is None else logits + bias
        return constrain(logits, "batch", "length", "vocab")

    def head_output(self, features: jax.Array, name: str) -> jax.Array:
        """What one of the settings' `named_heads` gives of features [B, L, D]: here there is the vocabulary's alone."""
        return {"vocabulary": self.logits}[name](features)

    def __call__(self, *args: Any, **kwargs: Any) -> jax.Array:
        """Logits; arguments as `features`."""
        return self.logits(self.features(*args, **kwargs))
