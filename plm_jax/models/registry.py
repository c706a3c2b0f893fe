"""Functions that create modules and parameters from settings."""

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
      dtype: dtype of activations.
      device: device for which an `attention_kernel` of "auto" is chosen; None: the kernel is chosen when the module is
        traced.
    """
    setting = getattr(model, "attention_kernel", None)
    if device is not None and setting == "auto":
        model = model.with_speed(attention_kernel=kernels.resolve(setting, kernels.platform(device)))
    return model.module(dtype)


def init_params(module: Module, key: jax.Array) -> Any:
    """Returns initial parameters, boxed with the logical names of their axes."""
    return module.init(key, **module.model.init_inputs())["params"]


def new_carry(module: Module, rows: int) -> Any:
    """Returns the initial recurrent state of a batch, a tree of boxed arrays [rows, …]; empty for most models."""
    return module.model.new_carry(rows)


@functools.cache
def boxed_shapes(model: ModelConfig) -> Any:
    """Returns the shapes and dtypes of the parameters as `jax.ShapeDtypeStruct`s, boxed as in `init_params`."""
    return jax.eval_shape(lambda: init_params(build(model), jax.random.key(0)))


def shapes(model: ModelConfig) -> Any:
    """Returns the shapes and dtypes of the parameters as `jax.ShapeDtypeStruct`s."""
    return nn.unbox(boxed_shapes(model))
