"""The train state and its initialization."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from plm_jax.common import ranges
from plm_jax.common.keys import named_key
from plm_jax.models import registry
from plm_jax.models.protocol import Module
from plm_jax.training import spikes


@dataclass(frozen=True)
class AverageConfig:
    """Exponential moving average of the parameters, in float32; each step that is not skipped updates it.

    Attributes:
      decay: decay rate; each update sets average = decay · average + (1 - decay) · parameters.
      warmup_steps: number of steps at the beginning during which the average equals the parameters.
    """

    decay: ranges.ShareBelowOne = 0.9999
    warmup_steps: ranges.StepsOrZero = 0

    def update(self, average: Any, params: Any, step: jax.Array) -> Any:
        """Returns the average after a step.

        Args:
          average: average before the step.
          params: parameters after the step.
          step: number of finished steps before the step.
        """
        # In this form the average of a constant is exactly that constant.
        after_warmup = step >= self.warmup_steps
        return jax.tree.map(
            lambda mean, new: jnp.where(after_warmup, mean + (1 - self.decay) * (new - mean), new), average, params
        )


class TrainState(struct.PyTreeNode):
    """The state of training: everything that a step changes.

    Attributes:
      step: number of finished steps, int32.
      params: parameters, float32.
      optimizer: the optimizer's state.
      carry: state that a loss passes from batch to batch, [B, ...], such as ELMo's LSTM state; empty for most losses.
      average: moving average of the parameters, float32; empty if there is none.
      recent: window of the losses and gradient norms of the last steps (`spikes.window`); empty if no spikes are
        detected.
    """

    step: jax.Array
    params: Any
    optimizer: Any
    carry: Any
    average: Any = ()
    recent: Any = ()


def init_params(model: Module, root: jax.Array) -> Any:
    """Returns fresh parameters, boxed with their logical axes; the same for every mesh."""
    return registry.init_params(model, named_key(root, "params"))


def new_state(params: Any, optimizer: optax.GradientTransformation, carry: Any = None, window: int = 0) -> TrainState:
    """Returns the state before the first step, without an average.

    Args:
      optimizer: optimizer that initializes its state from `params`.
      carry: initial carry; None: empty.
      window: number of steps in the window for detecting spikes; 0: no window.
    """
    step, recent = jnp.zeros((), jnp.int32), spikes.window(window) if window else ()
    return TrainState(step=step, params=params, optimizer=optimizer.init(params), carry=carry or {}, recent=recent)
