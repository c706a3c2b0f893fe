"""The parameters as the microbatches of a step take them, and the way back of their gradients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.models import tables
from plm_jax.models.partitioning import is_spread
from plm_jax.training.trainable import Trainable


class StepParameters(NamedTuple):
    """What a step holds of its parameters while it goes through its microbatches.

    Attributes:
      trained: the tree that gradients are of, of the part that is trained.
      zeros: float32, to which microbatches' gradients are added.
      whole: makes of such a tree the parameters that the loss is given.
      reduced: makes of the gradients' sums over microbatches those of the parameters, float32.
    """

    trained: Any
    zeros: Any
    whole: Callable[[Any], Any]
    reduced: Callable[[Any], Any]


def build(
    model: Any,
    params: Any,
    gradients: Any = jnp.float32,
    layouts: Any = None,
    part: Trainable | None = None,
) -> StepParameters:
    """Returns what a step holds: whole copies of tables that are spread, and kernels in the type of their gradients.

    Args:
      model: the module; what its `tables` does not say it takes, it gets as it is.
      params: its parameters.
      gradients: the type that kernels are held in, and their gradients made and reduced in.
      layouts: of all parameters' shardings, to lay kernels out by; None: they stay as they are.
      part: of the parameters, what is trained; None: all of them.
    """
    gathered = getattr(model, "tables", {}) if is_spread() else {}
    if not gathered and layouts is None and part is None and gradients == jnp.float32:
        return StepParameters(params, jax.tree.map(jnp.zeros_like, params), lambda params: params, lambda grads: grads)
    return _gather(model, params, gradients, layouts, part, gathered)


def _gather(model, params, gradients, layouts, part, gathered) -> StepParameters:
    """Builds what a step holds if that is not the parameters themselves; arguments as `build`.

    Args:
      gathered: logical axis of the rows of each parameter that is taken as a gathered table.
    """
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), params)
    axes = {name: axis for name, axis in gathered.items() if name in params}
    matrices = {name: tables.gathered(params[name], model.dtype, axis) for name, axis in axes.items()}
    rows = {name: len(params[name]) for name in axes}

    def kernel(path, leaf, *layout):
        if path[-1].key != "kernel":
            return leaf
        leaf = leaf.astype(gradients)
        return jax.lax.with_sharding_constraint(leaf, *layout) if layout else leaf

    kernels = jax.tree.map_with_path(kernel, params, *([] if layouts is None else [layouts]))
    own_zeros = {name: tables.no_gradient(params[name].shape, axis) for name, axis in axes.items()}

    held_params = kernels | own_zeros

    def whole(trained):
        trained = part.put(held_params, trained) if part else trained
        own = {
            name: tables.GatheredTable(matrices[name], trained[name], rows[name], axis) for name, axis in axes.items()
        }
        return trained | own

    def reduced(grads):
        grads = jax.tree.map(lambda grad: grad.astype(jnp.float32), grads)
        own = {name: axis for name, axis in axes.items() if name in grads}
        return grads | {name: tables.reduced(grads[name], rows[name], axis) for name, axis in own.items()}

    zeros |= own_zeros
    if part:
        return StepParameters(part.of(held_params), part.of(zeros), whole, reduced)
    return StepParameters(held_params, zeros, whole, reduced)
