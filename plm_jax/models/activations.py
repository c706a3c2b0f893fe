"""Activations by their names in settings."""

from typing import Literal

from plm_jax.common.lazy import lazy

jnp = lazy("jax.numpy")
nn = lazy("flax.linen")

Activation = Literal["gelu_tanh", "gelu_exact", "relu", "silu", "tanh"]
ACTIVATIONS = {
    "gelu_tanh": lambda x: nn.gelu(x, approximate=True),
    "gelu_exact": lambda x: nn.gelu(x, approximate=False),
    "relu": lambda x: nn.relu(x),
    "silu": lambda x: nn.silu(x),
    "tanh": lambda x: jnp.tanh(x),
}
