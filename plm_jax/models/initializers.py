"""The first values of a transformer's parameters, as its settings ask for them."""

from collections.abc import Callable
from typing import Literal

from flax.linen import initializers

from plm_jax.models import settings


def kernel_init(model: settings.TransformerConfig, role: Literal["", "query", "residual"] = "") -> Callable:
    """The initialiser of a matrix [in, out]; `residual`: it writes to the residual stream."""
    if isinstance(model.initializer, settings.FanInConfig):
        scale = 1 / model.attention.head_dim if role == "query" else 1.0
        return initializers.variance_scaling(scale, "fan_in", "truncated_normal")
    shrinks = model.initializer.shrink_residual and role == "residual"
    return normal(model, model.initializer.std / (2 * model.stack.blocks) ** 0.5 if shrinks else model.initializer.std)


def normal(model: settings.TransformerConfig, std: float) -> Callable:
    """Normal, truncated where the model's initialisers are."""
    truncated = isinstance(model.initializer, settings.InitializerConfig) and model.initializer.truncated
    return initializers.truncated_normal(std) if truncated else initializers.normal(std)


def table(model: settings.TransformerConfig) -> Callable:
    """The initialiser of tables of embeddings [rows, D]."""
    return normal(model, 1.0 if isinstance(model.initializer, settings.FanInConfig) else model.initializer.std)


def unembedding(model: settings.TransformerConfig) -> Callable:
    """The initialiser of a head's own matrix [V, D]."""
    if isinstance(model.initializer, settings.FanInConfig):
        return initializers.variance_scaling(1.0, "fan_in", "truncated_normal", in_axis=1, out_axis=0)
    return table(model)


def score_bias(model: settings.TransformerConfig) -> Callable:
    """The initialiser of a table of what is added to scores [rows, N]."""
    if isinstance(model.initializer, settings.FanInConfig):
        return initializers.variance_scaling(1.0, "fan_avg", "uniform")
    return normal(model, model.initializer.std)
