"""Adafactor: second moments of matrices as means of rows and columns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.models.stack import is_stacked
from plm_jax.training.optimizers import OptimizerConfig, map_tensors, root_mean_square, without


@dataclass(frozen=True)
class AdafactorConfig(OptimizerConfig):
    """Adafactor (Shazeer & Stern 2018); the defaults are those of t5x, without momentum.

    Attributes:
      decay_exponent: exponent of the decay rate of second moments, which is 1 - t ** -decay_exponent at update t.
      clipping_threshold: maximum root mean square of a tensor's update, before it is scaled by the parameter and the
        learning rate.
      min_dim_size_to_factor: minimum size of both dimensions of a matrix whose second moments are stored as row and
        column means only.
      epsilon: constant added to squared gradients.
      multiply_by_parameter_scale: whether updates are multiplied by the root mean square of the parameter tensor, at
        least `parameter_epsilon`.
      parameter_epsilon: minimum scale of a parameter tensor in `multiply_by_parameter_scale`.
      b1: decay rate of a running mean of the updates, which is applied instead of them (PaLM: 0.9); 0: none.
      squared_rate_decay: coefficient of weight decay, which is multiplied by the square of the learning rate (PaLM: 1).
    """

    kind: ClassVar[str] = "adafactor"
    recipe: ClassVar[tuple[str, ...]] = (
        *("decay_exponent", "clipping_threshold", "epsilon", "multiply_by_parameter_scale", "parameter_epsilon"),
        *OptimizerConfig.recipe,
    )
    decay_exponent: Annotated[float, ranges.Range(0, 10, above=True)] = 0.8
    clipping_threshold: ranges.Positive = 1.0
    min_dim_size_to_factor: ranges.Count = 128
    epsilon: ranges.Epsilon = 1e-30
    multiply_by_parameter_scale: bool = True
    parameter_epsilon: ranges.Share = 1e-3
    b1: ranges.ShareBelowOne = 0.0
    squared_rate_decay: ranges.Scale = 0.0
    clip_norm: Annotated[float, ranges.Range(0, 1e12)] = field(default=0.0, kw_only=True)

    @override
    def transformations(self) -> Sequence[optax.GradientTransformation]:
        def init(params):
            def zeros(path, leaf):
                tensor = leaf.shape[1:] if is_stacked(path) else leaf.shape
                if len(tensor) == 2 and min(tensor) >= self.min_dim_size_to_factor:
                    return _Factored(*(jnp.zeros(without(leaf.shape, axis), leaf.dtype) for axis in (-1, -2)))
                return jnp.zeros_like(leaf)

            return _AdafactorState(jnp.zeros((), jnp.int32), jax.tree.map_with_path(zeros, params))

        def update(updates, state, params=None):
            count = jnp.asarray(optax.safe_increment(state.count))
            decay = 1.0 - count.astype(jnp.float32) ** -self.decay_exponent

            def moment(grad, previous):
                square = grad**2 + self.epsilon
                if isinstance(previous, _Factored):
                    square = _Factored(rows=square.mean(1), columns=square.mean(0))
                return jax.tree.map(lambda old, new: decay * old + (1.0 - decay) * new, previous, square)

            def direction(grad, moment, param):
                if isinstance(moment, _Factored):
                    of_rows = jax.lax.rsqrt(moment.rows / moment.rows.mean())
                    updated = grad * of_rows[:, None] * jax.lax.rsqrt(moment.columns)
                else:
                    updated = grad * jax.lax.rsqrt(moment)
                scale = 1.0 / jnp.maximum(1.0, root_mean_square(updated) / self.clipping_threshold)
                if self.multiply_by_parameter_scale:
                    scale = scale * jnp.maximum(root_mean_square(param), self.parameter_epsilon)
                return updated * scale

            moments = map_tensors(moment, updates, state.second_moments)
            return map_tensors(direction, updates, moments, params), _AdafactorState(count, moments)

        momentum = (_mean_of_scaled_updates(self.b1),) if self.b1 else ()
        decay = (_decay_by_squared_rate(self.squared_rate_decay),) if self.squared_rate_decay else ()
        return optax.GradientTransformation(init, update), *momentum, *decay


def _mean_of_scaled_updates(decay: float) -> optax.GradientTransformationExtraArgs:
    """Replaces updates by their running mean, of updates that are scaled by the learning rate (Shazeer & Stern 2018).

    The rate by which the result is scaled cancels that of the step; where it is 0, so is the update.
    """

    def update(updates, state, params=None, **extra_args):
        rate = jnp.asarray(extra_args["learning_rate"], jnp.float32)
        means = jax.tree.map(lambda mean, new: decay * mean + (1 - decay) * rate * new, state.trace, updates)
        updates = jax.tree.map(lambda mean: mean / jnp.where(rate > 0, rate, 1.0), means)
        return updates, optax.TraceState(means)

    def init(params):
        return optax.TraceState(jax.tree.map(jnp.zeros_like, params))

    return optax.GradientTransformationExtraArgs(init, update)


def _decay_by_squared_rate(coefficient: float) -> optax.GradientTransformationExtraArgs:
    """Adds parameters times the learning rate, by which the result is scaled once more (Chowdhery et al. 2022 §5)."""

    def update(updates, state, params=None, **extra_args):
        factor = coefficient * jnp.asarray(extra_args["learning_rate"], jnp.float32)
        return jax.tree.map(lambda new, param: new + factor * param, updates, params), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


class _Factored(NamedTuple):
    """The second moments of a matrix's rows and columns."""

    rows: Any
    columns: Any


class _AdafactorState(NamedTuple):
    """Finished updates, and a `_Factored` or an array for each parameter."""

    count: jax.Array
    second_moments: Any
