"""What holds the parameters of a head."""

from typing import Any

import flax.linen as nn
import jax

from plm_jax.models import settings
from plm_jax.models.heads import Head
from plm_jax.models.initializers import kernel_init
from plm_jax.models.layers import Dense, Dropout, ScalarMix, norm
from plm_jax.models.recurrent import BiLstm


class HeadModule(nn.Module):
    """A head over a model's features: its parameters, and the parts that most heads are made of.

    Attributes:
      head: its settings, which compute.
      model: the settings of the model that it is a head of.
      dtype: of activations.
    """

    head: Head
    model: settings.TransformerConfig
    dtype: Any

    @nn.compact
    def __call__(self, features: jax.Array, **inputs: jax.Array) -> Any:
        """What the head gives of features [B, L, D]."""
        return self.head.compute(self, features, **inputs)

    def dense(
        self,
        name: str,
        x: jax.Array,
        features: int,
        axes: tuple[str | None, str | None] = ("embed", None),
        bias: bool = True,
    ) -> jax.Array:
        """A dense layer, [..., in] → [..., features]; `axes` are the logical ones of its matrix."""
        return Dense(features, axes, bias, kernel_init(self.model), self.dtype, name=name)(x)

    def dropout(self, x: jax.Array, rate: float, shared: bool, deterministic: bool) -> jax.Array:
        """Dropout over [B, L, features]; `shared`: the same features at each of L."""
        return Dropout(rate, shared)(x, deterministic=deterministic)

    def mixed(self, name: str, layers: jax.Array, mask: jax.Array | None, layer_norm: bool) -> jax.Array:
        """The `ScalarMix` of layers [S, B, L, D]: [B, L, D]."""
        return ScalarMix(layer_norm, name=name)(layers, mask).astype(self.dtype)

    def recurrent(
        self, name: str, lstm: settings.BiLstmConfig, x: jax.Array, mask: jax.Array | None, deterministic: bool
    ) -> jax.Array:
        """LSTMs in both directions, [B, L, D] → [B, L, 2 · cell]."""
        return BiLstm(lstm, self.dtype, name=name)(x, mask, deterministic=deterministic)

    def norm(self, name: str, x: jax.Array) -> jax.Array:
        """The model's norm, [..., width] → [..., width]."""
        return norm(self.model, self.dtype, name=name)(x)

    def table(self, name: str, rows: int, width: int) -> jax.Array:
        """A trained table [rows, width]."""
        init = nn.with_logical_partitioning(kernel_init(self.model), (None, None))
        return self.param(name, init, (rows, width)).astype(self.dtype)

    def bias(self, name: str, size: int, axis: str | None = None) -> jax.Array:
        """A trained vector float32 [size], at first zeros."""
        return self.param(name, nn.with_logical_partitioning(nn.initializers.zeros, (axis,)), (size,))
