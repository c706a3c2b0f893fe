"""From settings to modules and parameters, whatever the model."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.models.protocol import ModelConfig, Module


def build(model: ModelConfig, dtype: Any = jnp.float32) -> Module:
    """The module of a model's settings; `dtype` is its activations'."""
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
