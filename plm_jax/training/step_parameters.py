"""Prepares parameters for the microbatches of a step, and reduces the gradients of the prepared parameters."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.models import tables
from plm_jax.models.partitioning import is_spread
from plm_jax.training.trainable import Trainable


class StepParameters(NamedTuple):
    """Parameters in the form that the microbatches of a step use.

    Attributes:
      trained: trained parameters, with respect to which the loss is differentiated.
      zeros: initial value of the sum of the gradients, float32.
      whole: function from a tree like `trained` to the parameters that the loss reads.
      reduced: function from the gradients of `trained`, summed over microbatches, to the gradients of the parameters of
        the state, float32.
    """

    trained: Any
    zeros: Any
    whole: Callable[[Any], Any]
    reduced: Callable[[Any], Any]


def build(
    model: Any, params: Any, gradients: Any = jnp.float32, layouts: Any = None, part: Trainable | None = None
) -> StepParameters:
    """Prepares parameters for a step: casts kernels to `gradients` and, on several devices, gathers embedding tables.

    Args:
      model: the module; `model.tables` names the parameters that are gathered on a mesh of several devices.
      params: parameters of the module.
      gradients: dtype to which kernels are cast, and in which their gradients are computed and reduced.
      layouts: shardings of all parameters; only those of kernels are applied; None: kernels keep their shardings.
      part: selection of the parameters that are trained; None for all of them.
    """
    gathered = getattr(model, "tables", {}) if is_spread() else {}
    if not gathered and layouts is None and part is None and gradients == jnp.float32:
        return StepParameters(params, jax.tree.map(jnp.zeros_like, params), lambda params: params, lambda grads: grads)
    return _gather(model, params, gradients, layouts, part, gathered)


def _gather(model, params, gradients, layouts, part, gathered) -> StepParameters:
    """Implements `build` if parameters must be gathered, cast or resharded, or if only some of them are trained.

    Args:
      gathered: logical axis of the rows of each table that must be gathered, by the table's name. All other arguments
        are those of `build`.
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
    table_zeros = {name: tables.no_gradient(params[name].shape, axis) for name, axis in axes.items()}

    step_params = kernels | table_zeros

    def whole(trained):
        trained = part.put(step_params, trained) if part else trained
        gathered_tables = {
            name: tables.GatheredTable(matrices[name], trained[name], rows[name], axis) for name, axis in axes.items()
        }
        return trained | gathered_tables

    def reduced(grads):
        grads = jax.tree.map(lambda grad: grad.astype(jnp.float32), grads)
        reduced_tables = {
            name: tables.reduced(grads[name], rows[name], axis) for name, axis in axes.items() if name in grads
        }
        return grads | reduced_tables

    zeros |= table_zeros
    if part:
        return StepParameters(part.of(step_params), part.of(zeros), whole, reduced)
    return StepParameters(step_params, zeros, whole, reduced)
