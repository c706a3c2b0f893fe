"""Several updates in one step, each of which minimizes a loss of its own (`train.updates`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from plm_jax.losses import Loss
from plm_jax.training import spikes
from plm_jax.training.state import AverageConfig, TrainState
from plm_jax.training.step import next_state
from plm_jax.training.trainable import ALL, Trainable

# Metrics of a step that its updates share.
_SHARED = ("learning_rate", "digest")
# Metrics that are computed from those of all updates.
_JOINED = ("incident", "limits", "norms")


@dataclass(frozen=True, eq=False)
class Update:
    """One of the updates of a step.

    Attributes:
      loss: function that the update minimizes.
      optimizer: transformation of the gradients into updates of the trained parameters.
      trained: selection of the parameters that the update trains.
      name: name in metrics and messages; empty for the only update of a step.
    """

    loss: Loss
    optimizer: optax.GradientTransformationExtraArgs
    trained: Trainable = ALL
    name: str = ""

    def tensor_names(self, shapes: Any) -> list[str]:
        """Returns the names from `Trainable.names`, each followed by the name of the update in parentheses, if any."""
        ending = f" ({self.name})" if self.name else ""
        return [f"{name}{ending}" for name in self.trained.names(shapes)]


def joined(optimizers: Mapping[str, optax.GradientTransformationExtraArgs]) -> optax.GradientTransformationExtraArgs:
    """Joins the optimizers of a step's updates into one whose state is the tuple of their states, in order.

    The `update` of the joined optimizer raises a TypeError, because each update of a step calls its own optimizer. If a
    step makes a single update, whose name is empty, the optimizer of this update is returned unchanged.

    Args:
      optimizers: optimizer of each update, by the name of the update.
    """
    if "" in optimizers:
        return optimizers[""]

    def init(params):
        return tuple(each.init(params) for each in optimizers.values())

    def update(updates, state, params=None, **extra_args):
        raise TypeError("each update of a step has its own optimizer")

    return optax.GradientTransformationExtraArgs(init, update)


def in_sequence(
    steps: Mapping[str, Callable], watch: spikes.Watch | None, average: AverageConfig | None
) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
    """Returns a step like that of `step.train_step`, which makes several updates one after another.

    Each update starts from the parameters that the previous update returns, and from the carry before the step. The
    carry of the last update is kept. If a loss adds arrays to the carry, these arrays become entries of the batch of
    later updates, and are not kept after the step.

    If a loss or a gradient of any update is not finite, no update is applied. If `watch` skips spikes, a spike of the
    sum of the losses or of the norm of all gradients also prevents all updates.

    Args:
      steps: `step.train_step` of each update by name, without watch and average.
      watch: definition of spikes of the sum of the losses and of the gradient norm over all updates.
      average: moving average of the parameters after the last update.

    Returns:
      The step; its metrics are `loss`, the sum of the losses; `grad_norm`, the norm of all gradients together;
      `learning_rate`, `digest`, `incident`, `limits` and `norms` as in `step.train_step`, where `norms` has the tensors
      of all updates in order; and every metric of an update except these five, with the name of the update, such as
      `loss/discriminator`.
    """

    def step(state: TrainState, batch: Mapping[str, jax.Array], *arguments):
        current, optimizer_states, by_update, batch = state, [], {}, dict(batch)
        for (name, update), optimizer_state in zip(steps.items(), state.optimizer, strict=True):
            before = current.replace(step=state.step, optimizer=optimizer_state, carry=state.carry)
            current, by_update[name] = update(before, batch, *arguments)
            optimizer_states.append(current.optimizer)
            batch |= {key: array for key, array in current.carry.items() if key not in state.carry}
        metrics = _join_metrics(by_update)
        values = jnp.stack([metrics["loss"], metrics["grad_norm"]])
        verdict = spikes.judge(watch, state.recent, state.step, values)
        metrics |= {"incident": verdict.incident, "limits": verdict.limits}
        carry = {key: current.carry[key] for key in state.carry}
        return next_state(state, current.params, tuple(optimizer_states), carry, verdict, average), metrics

    return step


def _join_metrics(by_update: Mapping[str, Mapping[str, jax.Array]]) -> dict[str, jax.Array]:
    """Returns the metrics of a step, except `incident` and `limits`, from the metrics of its updates."""
    each = list(by_update.values())
    named = {
        f"{key}/{name}": value
        for name, metrics in by_update.items()
        for key, value in metrics.items()
        if key not in (*_SHARED, *_JOINED)
    }
    return named | {
        **{key: each[0][key] for key in _SHARED},
        "loss": jnp.stack([metrics["loss"] for metrics in each]).sum(),
        "grad_norm": jnp.linalg.norm(jnp.stack([metrics["grad_norm"] for metrics in each])),
        "norms": jnp.concatenate([metrics["norms"] for metrics in each], axis=1),
    }
