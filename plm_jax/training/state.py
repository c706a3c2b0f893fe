"""The train state and its making."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from plm_jax.common.keys import named_key
from plm_jax.models import registry
from plm_jax.models.protocol import Module
from plm_jax.training import spikes


class TrainState(struct.PyTreeNode):
    """The state of training: everything that a step changes.

    Attributes:
      step: int32, finished steps.
      params: parameters, float32.
      optimizer: the optimizer's state.
      carry: what a loss carries from batch to batch, [B, ...] (an ELMo's LSTM state); empty for most.
      recent: losses and gradient norms of the last steps, see `spikes.window`; empty where none are watched.
    """

    step: jax.Array
    params: Any
    optimizer: Any
    carry: Any
    recent: Any = ()


def init_params(model: Module, root: jax.Array) -> Any:
    """Returns fresh parameters, boxed with their logical axes; the same for every mesh."""
    return registry.init_params(model, named_key(root, "params"))


def new_state(params: Any, optimizer: optax.GradientTransformation, carry: Any = None, window: int = 0) -> TrainState:
    """Returns the state before the first step; `carry` is empty by default, `window` steps are watched for spikes."""
    zero = jnp.zeros((), jnp.int32)
    recent = spikes.window(window) if window else ()
    return TrainState(step=zero, params=params, optimizer=optimizer.init(params), carry=carry or {}, recent=recent)
