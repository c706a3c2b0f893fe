"""From settings to modules and parameters, whatever the model."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.models import kernels
from plm_jax.models.protocol import ModelConfig, Module


def build(model: ModelConfig, dtype: Any = jnp.float32, device: Any = None) -> Module:
    """Returns the module of a model's settings.

    Args:
      model: settings.
      dtype: of activations.
      device: one that it will run on, by which an `attention_kernel` of `auto` is chosen now; None: when it is traced.
    """
    setting = getattr(model, "attention_kernel", None)
    if device is not None and setting == "auto":
        model = model.with_speed(attention_kernel=kernels.resolve(setting, kernels.platform(device)))
    return model.module(dtype)


def init_params(module: Module, key: jax.Array) -> Any:
    """Fresh parameters, boxed with their logical axes."""
    return module.init(key, **module.model.init_inputs())["params"]


def new_carry(module: Module, rows: int) -> Any:
    """What the loss carries from batch to batch before the first: a tree of arrays [rows, ...], boxed; mostly empty."""
    return module.model.new_carry(rows)


@functools.cache
def boxed_shapes(model: ModelConfig) -> Any:
    """The parameters' shapes and types, as a tree of `jax.ShapeDtypeStruct` in the boxes of `init_params`."""
    return jax.eval_shape(lambda: init_params(build(model), jax.random.key(0)))


def shapes(model: ModelConfig) -> Any:
    """The parameters' shapes and types, as a tree of `jax.ShapeDtypeStruct`, without making them."""
    return nn.unbox(boxed_shapes(model))
