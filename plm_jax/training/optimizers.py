"""Optimizers as optax transformations: gradients clipped, a direction, weight decay, the learning rate.

Parameters under `blocks` hold all layers of a stack on their first axis (models/stack.py). What an optimizer asks
of a whole tensor, it asks of each layer; an attention kernel is a matrix [embed, heads × head_dim] as it is stored.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from plm_jax.config.optimizers import (
    AdafactorConfig,
    AdagradConfig,
    AdamWConfig,
    LambConfig,
    OptimizerConfig,
    SgdConfig,
)
from plm_jax.models.protocol import ModelConfig
from plm_jax.training import layer_decay, trainable

# Axes that the fields of `_Factored` lack; the shapes of a square matrix would be ambiguous.
_ABSENT = {"rows": (-1,), "columns": (-2,)}


def build(
    optimizer: OptimizerConfig, part: trainable.Trainable = trainable.ALL, model: ModelConfig | None = None
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer as an optax transformation.

    Its `update(grads, state, params, learning_rate=…, grad_norm=None)` needs the learning rate of this update, and
    accepts the global norm of the gradients if the caller has it. Both are passed to those of the optimizer's own
    transformations that accept extra arguments.

    Args:
      part: the trained part of the parameters; gradients, updates and the state are trees of this part.
      model: model of the parameters, whose stacks `layer_decay` needs.
    """
    whole = optax.chain(
        _clip(optimizer.clip_norm) if optimizer.clip_norm else optax.identity(),
        *optimizer.transformations(),
        _scale_by_learning_rate(),
    )

    def update(grads, state, params, **extra):
        updates, state = whole.update(grads, state, part.of(params), **extra)
        if optimizer.layer_decay != 1.0:
            factors = part.of(layer_decay.factors(model, optimizer.layer_decay, params))
            updates = jax.tree.map(jnp.multiply, updates, factors)
        return updates, state

    def init(params):
        params = part.of(params)
        return _boxed(whole.init(jax.tree.map(_array, params, is_leaf=_is_boxed)), params)

    return optax.GradientTransformationExtraArgs(init, update)


def _is_boxed(leaf) -> bool:
    return isinstance(leaf, nn.Partitioned)


def _array(leaf):
    return leaf.value if _is_boxed(leaf) else leaf


def _boxed(state, params):
    """Returns an optimizer's state, boxed with the logical axes of the parameters if the parameters are boxed.

    A leaf belongs to the parameter whose path is a suffix of the leaf's path (dict keys only). A leaf with the shape of
    the parameter gets its axes, and one whose shape lacks one axis gets the other axes. Any other leaf has no axes and
    is replicated on every device.
    """
    boxes = {tuple(entry.key for entry in path): leaf for path, leaf in _leaves_with_path(params) if _is_boxed(leaf)}

    def box(path, leaf):
        keys = tuple(entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey))
        owner = next((boxes[keys[i:]] for i in range(len(keys)) if keys[i:] in boxes), None)
        if owner is None:
            return leaf
        if leaf.shape == owner.value.shape:
            return owner.replace(value=leaf)
        axes = _ABSENT.get(getattr(path[-1], "name", ""), range(-1, -owner.value.ndim - 1, -1))
        fitting = (axis for axis in axes if leaf.shape == _without(owner.value.shape, axis))
        axis = next(fitting, None)
        return leaf if axis is None else owner.replace(value=leaf, names=_without(owner.names, axis))

    return jax.tree.map_with_path(box, state)


def _leaves_with_path(params):
    return jax.tree_util.tree_leaves_with_path(params, is_leaf=_is_boxed)


def _without(items: tuple, axis: int) -> tuple:
    """Returns the items without the one at a negative index."""
    return (*items[:axis], *items[axis:][1:])


def _scale_by_learning_rate() -> optax.GradientTransformationExtraArgs:
    """Like `optax.scale_by_learning_rate`, but with the rate as an argument of `update`; counts steps."""

    def update(updates, state, params=None, *, learning_rate, **_):
        del params
        updates = jax.tree.map(lambda update: jnp.asarray(-learning_rate, update.dtype) * update, updates)
        return updates, optax.ScaleByScheduleState(optax.safe_increment(state.count))

    def init(params):
        del params
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    return optax.GradientTransformationExtraArgs(init, update)


def later(state, steps: jax.Array | int):
    """Returns a state of `build` with `steps` further finished steps."""
    *others, schedule = state
    return (*others, schedule._replace(count=schedule.count + steps))  # A buffer of its own: steps give theirs up.


def unless_skipped(taken: jax.Array, new, old):
    """Returns the new state of `build` if an update is `taken`, else the old one with the new number of steps."""

    def choose(new, old):
        return new if isinstance(new, optax.ScaleByScheduleState) else jnp.where(taken, new, old)

    return jax.tree.map(choose, new, old, is_leaf=lambda x: isinstance(x, optax.ScaleByScheduleState))


def global_norm(tree) -> jax.Array:
    """The Euclidean norm of all leaves together.

    By products of whole arrays: XLA's CPU backend writes the squares of `optax.global_norm` to memory.
    """
    return jnp.sqrt(sum(jnp.tensordot(x, x, x.ndim, precision="highest") for x in jax.tree.leaves(tree)))


def decays(params):
    """True for the leaves that are neither a bias nor a norm's scale: what LAMB scales and, mostly, all that decays."""

    def decides(path, _):
        return not any(getattr(entry, "key", None) in ("bias", "head_bias", "scale") for entry in path)

    return jax.tree.map_with_path(decides, params)


def _map_tensors(function: Callable, tree, *rest):
    """`jax.tree.map` with each layer of a stacked leaf on its own."""

    def of_leaf(path, *leaves):
        return (jax.vmap(function) if trainable.is_stacked(path) else function)(*leaves)

    return jax.tree.map_with_path(of_leaf, tree, *rest)


def _clip(largest: float) -> optax.GradientTransformationExtraArgs:
    """Gradients scaled down to a global norm of `largest` where it is above."""

    def clip(updates, state, params=None, *, grad_norm=None, **_):
        del params
        norm = global_norm(updates) if grad_norm is None else grad_norm
        scale = jnp.minimum(1.0, largest / jnp.maximum(norm, jnp.finfo(jnp.float32).tiny))
        return jax.tree.map(lambda update: update * scale, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, clip)


def adamw(optimizer: AdamWConfig) -> tuple[optax.GradientTransformation, ...]:
    """The direction of Adam and a decay of the weights."""
    decaying = None if optimizer.decay_norms_and_biases else decays
    return _scale_by_adam(optimizer), optax.add_decayed_weights(optimizer.weight_decay, mask=decaying)


def lamb(optimizer: LambConfig) -> tuple[optax.GradientTransformation, ...]:
    """As `adamw`, scaled to each tensor's norm."""
    decay = optax.add_decayed_weights(optimizer.weight_decay, mask=decays)
    return _scale_by_adam(optimizer), decay, optax.masked(_scale_by_trust_ratio(), decays)


def adagrad(optimizer: AdagradConfig) -> tuple[optax.GradientTransformation, ...]:
    """The gradient over the root of the sum of all its squares; TensorFlow's has no epsilon."""
    return (optax.scale_by_rss(optimizer.initial_accumulator, eps=0.0),)


def sgd(optimizer: SgdConfig) -> tuple[optax.GradientTransformation, ...]:
    """The gradient, or a sum of it and those before."""
    return (optax.trace(optimizer.momentum),) if optimizer.momentum else ()


def _scale_by_adam(optimizer: AdamWConfig | LambConfig) -> optax.GradientTransformation:
    """Adam's direction; without bias correction as in BERT's optimizer (google-research/bert, optimization.py)."""
    adam = optax.scale_by_adam(optimizer.b1, optimizer.b2, optimizer.epsilon)

    def uncorrected(grads, state, params=None):
        del params
        mu = optax.update_moment(grads, state.mu, optimizer.b1, 1)
        nu = optax.update_moment(grads, state.nu, optimizer.b2, 2)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + optimizer.epsilon), mu, nu)
        return updates, optax.ScaleByAdamState(optax.safe_increment(state.count), mu, nu)

    def with_first_moment(state, dtype):
        return state._replace(mu=jax.tree.map(lambda m: m.astype(dtype), state.mu))

    def init(params):
        return with_first_moment(adam.init(params), optimizer.first_moment)

    def update(grads, state, params=None):
        direction = adam.update if optimizer.bias_correction else uncorrected
        updates, state = direction(grads, with_first_moment(state, jnp.float32), params)
        return updates, with_first_moment(state, optimizer.first_moment)

    return optax.GradientTransformation(init, update)


def _scale_by_trust_ratio() -> optax.GradientTransformation:
    """Each tensor's update scaled to the tensor's norm, unless one of the two is 0 (You et al. 2020, algorithm 2)."""

    def scaled(update, param):
        update_norm, param_norm = global_norm(update), global_norm(param)
        both = (update_norm > 0) & (param_norm > 0)
        return update * jnp.where(both, param_norm / jnp.where(both, update_norm, 1.0), 1.0)

    return optax.stateless(lambda updates, params: _map_tensors(scaled, updates, params))


class _Factored(NamedTuple):
    """The second moments of a matrix's rows and columns."""

    rows: Any
    columns: Any


class _AdafactorState(NamedTuple):
    """Finished updates, and a `_Factored` or an array for each parameter."""

    count: jax.Array
    second_moments: Any


def adafactor(optimizer: AdafactorConfig) -> tuple[optax.GradientTransformation, ...]:
    """Adafactor's direction (Shazeer & Stern 2018, algorithms 4 to 6)."""

    def init(params):
        def zeros(path, leaf):
            tensor = leaf.shape[1:] if trainable.is_stacked(path) else leaf.shape
            if len(tensor) == 2 and min(tensor) >= optimizer.min_dim_size_to_factor:
                return _Factored(*(jnp.zeros(_without(leaf.shape, axis), leaf.dtype) for axis in (-1, -2)))
            return jnp.zeros_like(leaf)

        return _AdafactorState(jnp.zeros((), jnp.int32), jax.tree.map_with_path(zeros, params))

    def update(grads, state, params):
        count = optax.safe_increment(state.count)
        decay = 1.0 - count.astype(jnp.float32) ** -optimizer.decay_exponent

        def moment(grad, previous):
            square = grad**2 + optimizer.epsilon
            if isinstance(previous, _Factored):
                square = _Factored(rows=square.mean(1), columns=square.mean(0))
            return jax.tree.map(lambda old, new: decay * old + (1.0 - decay) * new, previous, square)

        def direction(grad, moment, param):
            if isinstance(moment, _Factored):
                of_rows = jax.lax.rsqrt(moment.rows / moment.rows.mean())
                updated = grad * of_rows[:, None] * jax.lax.rsqrt(moment.columns)
            else:
                updated = grad * jax.lax.rsqrt(moment)
            scale = 1.0 / jnp.maximum(1.0, _root_mean_square(updated) / optimizer.clipping_threshold)
            if optimizer.multiply_by_parameter_scale:
                scale = scale * jnp.maximum(_root_mean_square(param), optimizer.parameter_epsilon)
            return updated * scale

        moments = _map_tensors(moment, grads, state.second_moments)
        return _map_tensors(direction, grads, moments, params), _AdafactorState(count, moments)

    return (optax.GradientTransformation(init, update),)


def _root_mean_square(x) -> jax.Array:
    return global_norm(x) / np.sqrt(x.size)
