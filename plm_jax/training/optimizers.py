"""Optimizers: their settings, and the optax transformations that the settings describe.

Parameters under `blocks` hold all layers of a stack on their first axis (models/stack.py). If an optimizer computes
something per tensor, such as a norm, it does so separately for each layer. An attention kernel is stored and treated as
a matrix [embed, heads × head_dim].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_type_hints

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.common.roles import Role
from plm_jax.models.protocol import ModelConfig
from plm_jax.models.stack import is_stacked
from plm_jax.training import layer_decay
from plm_jax.training.trainable import Trainable, compiled, named, unmatched

# Pattern of the names of the matrices within layers, such as `stack/blocks/attention/query/kernel`.
HIDDEN_MATRICES = r".*/blocks/.*/kernel"
# Axis of the parameter that a field `rows` or `columns` of a state lacks. Shapes are ambiguous for square matrices.
_ABSENT = {"rows": (-1,), "columns": (-2,)}


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Role):
    """The base of optimizers: gradients are clipped, turned into a direction and scaled by the learning rate.

    Attributes:
      recipe: names of the fields that a resumed run may change, because the optimizer's state does not depend on them;
        changes of other fields are rejected.
      clip_norm: maximum global norm of the gradients, which are scaled down if their norm is larger; 0: no clipping.
      layer_decay: ratio of a layer's learning rate to the learning rate of the layer above it, for fine-tuning
        (ELECTRA: google-research/electra, model/optimization.py); 1: the same rate for all layers. In a stack of n
        layers, parameters at depth d have the rate `rate · layer_decay ** (n + 2 - d)`: d is 0 for embeddings, i + 1
        for layer i (from 0), n + 1 for a final norm and n + 2 for heads. A convolution has the rate of the first layer.
        The positions of a mask decoder have the rate of heads. Layers that share parameters have the rate of the last
        of them. If a model has several stacks, such as an encoder and a decoder, n and d refer to the stack of the
        parameter; for embeddings, n is the number of layers of the deepest stack.
      groups: other optimizers for some of the parameters, as (pattern, optimizer, factor on the learning rate); the
        pattern is a regular expression that must match the complete name of a parameter, such as
        `config.HIDDEN_MATRICES` (".*/blocks/.*/kernel", the matrices of the layers). The first pattern that matches a
        parameter decides; this optimizer updates the parameters that no pattern matches. Clipping and `layer_decay`
        apply to all parameters.
    """

    recipe: ClassVar[tuple[str, ...]] = ("clip_norm", "layer_decay")
    clip_norm: Annotated[float, ranges.Range(0, 1e12)] = 1.0
    layer_decay: ranges.ShareAboveZero = 1.0
    groups: "tuple[tuple[str, OptimizerConfig, ranges.Positive], ...]" = ()

    def __post_init__(self):
        for pattern, optimizer, _ in self.groups:
            compiled(pattern)
            defaults = {name: getattr(type(optimizer), name) for name in ("clip_norm", "layer_decay", "groups")}
            for name, default in defaults.items():
                if getattr(optimizer, name) != default:
                    raise UserError(f"config.optimizer.groups sets {name} of '{pattern}': set config.optimizer.{name}")

    def transformations(self) -> Sequence[optax.GradientTransformation]:
        """Returns the transformations that turn clipped gradients into a direction, in order."""
        raise NotImplementedError


# The class does not exist yet when its own annotations are evaluated.
OptimizerConfig.__dataclass_fields__["groups"].type = get_type_hints(OptimizerConfig, include_extras=True)["groups"]


def build(
    optimizer: OptimizerConfig, part: Trainable | None = None, model: ModelConfig | None = None
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimizer as an optax transformation.

    The transformation's `update(grads, state, params, learning_rate=…, grad_norm=None)` needs the learning rate of this
    update, and accepts the global norm of the gradients, if the caller has computed it. Both are passed on to the
    optimizer's transformations that accept extra arguments.

    Args:
      part: selection of the parameters that are trained; None: all of them. `params` contains all parameters.
        Gradients, updates and the state are trees of the selected parameters only.
      model: settings of the model that has the parameters. Without them, `update` raises a ValueError if
        `optimizer.layer_decay` is not 1.
    """
    whole = optax.chain(
        _clip(optimizer.clip_norm) if optimizer.clip_norm else optax.identity(),
        *_grouped(optimizer),
        _scale_by_learning_rate(),
    )

    def update(updates, state, params=None, **extra_args):
        trained = part.of(params) if part else params
        updates, state = whole.update(updates, state, trained, **extra_args)
        if optimizer.layer_decay != 1.0:
            if model is None:
                raise ValueError("layer_decay needs a model, whose layers it counts")
            factors = layer_decay.factors(model, optimizer.layer_decay, params)
            updates = jax.tree.map(jnp.multiply, updates, part.of(factors) if part else factors)
        return updates, state

    def init(params):
        params = part.of(params) if part else params
        return _boxed(whole.init(jax.tree.map(_array, params, is_leaf=_is_boxed)), params)

    return optax.GradientTransformationExtraArgs(init, update)


def check_groups(optimizer: OptimizerConfig, shapes: Any, field: str = "config.optimizer") -> None:
    """Checks the groups of an optimizer.

    Args:
      shapes: the parameters, or their shapes.
      field: name of the optimizer in messages.

    Raises:
      UserError: a group has no parameters.
    """
    names = [name for name, _ in named(shapes)]
    numbers = [_group(optimizer, name) for name in names]
    for number, (pattern, _, _) in enumerate(optimizer.groups):
        if number not in numbers:
            reason = unmatched([pattern], names) or f"'{pattern}', whose parameters all belong to earlier groups"
            raise UserError(f"{field}.groups has {reason}")


def _grouped(optimizer: OptimizerConfig) -> Sequence[optax.GradientTransformation]:
    """Returns the transformations of an optimizer and its groups, without clipping."""
    if not optimizer.groups:
        return optimizer.transformations()

    def mask(number: int) -> Callable:
        def of_group(tree):
            return jax.tree.map_with_path(lambda path, _: _group(optimizer, path_name(path)) == number, tree)

        return of_group

    masked = [
        optax.masked(_at_factor(optax.chain(optax.identity(), *group.transformations()), factor), mask(number))
        for number, (_, group, factor) in enumerate(optimizer.groups)
    ]
    return *masked, optax.masked(optax.chain(optax.identity(), *optimizer.transformations()), mask(len(masked)))


def _at_factor(transformation: optax.GradientTransformation, factor: float) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation that runs at `factor` times the learning rate, and scales its updates by `factor`.

    The updates are multiplied by the unscaled learning rate later.
    """
    inner = optax.with_extra_args_support(transformation)

    def update(updates, state, params=None, **extra_args):
        extra_args |= {"learning_rate": factor * extra_args["learning_rate"]}
        updates, state = inner.update(updates, state, params, **extra_args)
        return jax.tree.map(lambda update: factor * update, updates), state

    return optax.GradientTransformationExtraArgs(inner.init, update)


def _group(optimizer: OptimizerConfig, name: str) -> int:
    """Returns the index of the group of a parameter, or `len(optimizer.groups)` if it is in no group."""
    matching = (number for number, group in enumerate(optimizer.groups) if compiled(group[0]).fullmatch(name))
    return next(matching, len(optimizer.groups))


def path_name(path: Sequence[Any]) -> str:
    """Returns the name of a parameter, such as `stack/blocks/attention/query/kernel`, from its path in a tree."""
    return "/".join(str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey))


def _is_boxed(leaf) -> bool:
    return isinstance(leaf, nn.Partitioned)


def _array(leaf):
    return leaf.value if _is_boxed(leaf) else leaf


def _boxed(state, params):
    """Returns an optimizer's state, boxed with the logical axes of the parameters if the parameters are boxed.

    A leaf belongs to the parameter whose path is a suffix of the leaf's path (dict keys only). A leaf with the shape of
    the parameter has the axes of the parameter. A leaf whose shape lacks one axis of the parameter has the remaining
    axes. Any other leaf has no axes and is replicated on every device.
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
    """Returns the items without the item at `axis`, a negative index."""
    return (*items[:axis], *items[axis:][1:])


def _scale_by_learning_rate() -> optax.GradientTransformationExtraArgs:
    """Returns a variant of `optax.scale_by_learning_rate` whose `update` receives the rate; its state counts steps."""

    def update(updates, state, params=None, **extra_args):
        rate = extra_args["learning_rate"]
        updates = jax.tree.map(lambda update: jnp.asarray(-rate, update.dtype) * update, updates)
        return updates, optax.ScaleByScheduleState(optax.safe_increment(state.count))

    def init(params):
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    return optax.GradientTransformationExtraArgs(init, update)


def later(state, steps: jax.Array | int):
    """Returns an optimizer state of `build` whose count of steps is increased by `steps`.

    Other counts, such as the number of updates in Adam's state, do not change.
    """

    def counts_steps(leaf):
        return isinstance(leaf, optax.ScaleByScheduleState)

    def advance(leaf):
        # The sum is a new buffer, which is needed because train steps donate the buffers of their state.
        return leaf._replace(count=leaf.count + steps) if counts_steps(leaf) else leaf

    return jax.tree.map(advance, state, is_leaf=counts_steps)


def unless_skipped(taken: jax.Array, new, old):
    """Returns the state `new` if `taken` is True, otherwise the state `old` with the step counts of `new`.

    As in `later`, other counts are not step counts.
    """

    def choose(new, old):
        return new if isinstance(new, optax.ScaleByScheduleState) else jnp.where(taken, new, old)

    return jax.tree.map(choose, new, old, is_leaf=lambda x: isinstance(x, optax.ScaleByScheduleState))


def global_norm(tree: Any) -> Float[Array, ""]:
    """Returns the Euclidean norm of all leaves together.

    The norm is computed with dot products, because XLA's CPU backend would write the squares of `optax.global_norm` to
    memory.
    """
    return jnp.sqrt(sum(jnp.tensordot(x, x, x.ndim, precision="highest") for x in jax.tree.leaves(tree)))


def squared_norms(tree: Any) -> Float[Array, " tensors"]:
    """Returns the squared Euclidean norm of each tensor, in the order of JAX's leaves.

    Each layer of a stacked leaf counts as a tensor. Like `global_norm`, the norms are computed with dot products.
    """

    def square(path, leaf):
        if not is_stacked(path):
            return jnp.tensordot(leaf, leaf, leaf.ndim, precision="highest")[None]
        return jnp.einsum("l...,l...->l", leaf, leaf, precision="highest")

    return jnp.concatenate(jax.tree.leaves(jax.tree.map_with_path(square, tree)))


# Names of biases, and of scales of norms; the names on the second line are tables of `positions.Disentangled`.
_NOT_DECAYED = {"bias", "head_bias", "scale", "relative_norm_bias", "relative_norm_scale"}
_NOT_DECAYED |= {"distance_key_bias", "distance_query_bias"}


def decays(params):
    """Returns a tree of booleans: False for biases and for the scales of norms, otherwise True."""

    def decides(path, _):
        return not any(getattr(entry, "key", None) in _NOT_DECAYED for entry in path)

    return jax.tree.map_with_path(decides, params)


def map_tensors(function: Callable, tree: Any, *rest: Any) -> Any:
    """Maps a function over trees like `jax.tree.map`, but calls it separately for each layer of a stacked leaf."""

    def of_leaf(path, *leaves):
        return (jax.vmap(function) if is_stacked(path) else function)(*leaves)

    return jax.tree.map_with_path(of_leaf, tree, *rest)


def _clip(largest: float) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation that scales gradients down to a global norm of at most `largest`."""

    def clip(updates, state, params=None, *, grad_norm=None, **_):
        norm = global_norm(updates) if grad_norm is None else grad_norm
        scale = jnp.minimum(1.0, largest / jnp.maximum(norm, jnp.finfo(jnp.float32).tiny))
        return jax.tree.map(lambda update: update * scale, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, clip)


# Fields of AdamW and LAMB that a resumed run may change.
OF_MOMENTS = ("b1", "b2", "epsilon", "weight_decay", "bias_correction", "first_moment", *OptimizerConfig.recipe)


@dataclass(frozen=True)
class AdamWConfig(OptimizerConfig):
    """Adam with decoupled weight decay.

    Attributes:
      b1: decay rate of the first moment.
      b2: decay rate of the second moment.
      epsilon: constant added to the square root of the second moment.
      weight_decay: coefficient of weight decay, which is multiplied by the learning rate.
      decay_norms_and_biases: whether weight decay also applies to the scales of norms and to biases, as in fairseq.
      bias_correction: whether the moments are corrected for their initialization with zeros.
      first_moment: dtype in which the first moment is stored; bfloat16 saves two bytes per parameter. The second moment
        is always float32: with a b2 of 0.999, the change of a step is smaller than the resolution of bfloat16.
    """

    kind: ClassVar[str] = "adamw"
    recipe: ClassVar[tuple[str, ...]] = OF_MOMENTS
    b1: ranges.ShareBelowOne = 0.9
    b2: ranges.ShareBelowOne = 0.999
    epsilon: ranges.Epsilon = 1e-8
    weight_decay: ranges.Scale = 0.0
    decay_norms_and_biases: bool = False
    bias_correction: bool = True
    first_moment: Literal["float32", "bfloat16"] = "float32"

    @override
    def transformations(self) -> Sequence[optax.GradientTransformation]:
        decaying = None if self.decay_norms_and_biases else decays
        adam = scale_by_adam(self.b1, self.b2, self.epsilon, self.bias_correction, self.first_moment)
        return adam, optax.add_decayed_weights(self.weight_decay, mask=decaying)


@dataclass(frozen=True)
class AdafactorConfig(OptimizerConfig):
    """Adafactor (Shazeer & Stern 2018); the defaults are those of t5x and include no momentum.

    Attributes:
      decay_exponent: exponent in the decay rate of second moments; the rate is 1 - t ** -decay_exponent at update t.
      clipping_threshold: maximum root mean square of a tensor's update, before it is scaled by the parameter and the
        learning rate.
      min_dim_size_to_factor: minimum size of both dimensions of a matrix whose second moments are stored as row and
        column means only.
      epsilon: constant added to squared gradients.
      multiply_by_parameter_scale: whether updates are multiplied by the root mean square of the parameter tensor, but
        at least by `parameter_epsilon`.
      parameter_epsilon: minimum factor of `multiply_by_parameter_scale`.
      b1: decay rate of the momentum, a running mean of the updates (PaLM: 0.9); 0: no momentum.
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
                    return _Factored(*(jnp.zeros(_without(leaf.shape, axis), leaf.dtype) for axis in (-1, -2)))
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


@dataclass(frozen=True)
class AdagradConfig(OptimizerConfig):
    """Adagrad (Duchi et al. 2011); the defaults are those of ELMo's training (allenai/bilm-tf, train_elmo.py).

    Attributes:
      initial_accumulator: initial value of the sums of squared gradients; as in TensorFlow, a positive value keeps the
        first steps small.
    """

    kind: ClassVar[str] = "adagrad"
    recipe: ClassVar[tuple[str, ...]] = ("initial_accumulator", *OptimizerConfig.recipe)
    initial_accumulator: ranges.Scale = 1.0
    clip_norm: Annotated[float, ranges.Range(0, 1e12)] = field(default=10.0, kw_only=True)

    @override
    def transformations(self) -> Sequence[optax.GradientTransformation]:
        return (optax.scale_by_rss(self.initial_accumulator, eps=0.0),)


@dataclass(frozen=True)
class SgdConfig(OptimizerConfig):
    """Stochastic gradient descent, optionally with momentum.

    Attributes:
      momentum: factor by which the accumulated gradients decay in each step; 0: no momentum.
    """

    kind: ClassVar[str] = "sgd"
    momentum: ranges.ShareBelowOne = 0.0
    clip_norm: Annotated[float, ranges.Range(0, 1e12)] = field(default=0.0, kw_only=True)

    @override
    def transformations(self) -> Sequence[optax.GradientTransformation]:
        return (optax.trace(self.momentum),) if self.momentum else ()


def scale_by_adam(
    b1: float, b2: float, epsilon: float, bias_correction: bool, first_moment: str
) -> optax.GradientTransformation:
    """Returns Adam's transformation; BERT omits the bias correction (google-research/bert, optimization.py).

    Args:
      b1: decay rate of the first moment.
      b2: decay rate of the second moment.
      epsilon: constant added to the square root of the second moment.
      bias_correction: whether the moments are corrected for their initialization with zeros.
      first_moment: dtype in which the first moment is stored.
    """
    adam = optax.scale_by_adam(b1, b2, epsilon)

    def uncorrected(updates, state, params=None):
        mu = optax.update_moment(updates, state.mu, b1, 1)
        nu = optax.update_moment(updates, state.nu, b2, 2)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + epsilon), mu, nu)
        return updates, optax.ScaleByAdamState(optax.safe_increment(state.count), mu, nu)

    def with_first_moment(state, dtype):
        return state._replace(mu=jax.tree.map(lambda m: m.astype(dtype), state.mu))

    def init(params):
        return with_first_moment(adam.init(params), first_moment)

    def update(updates, state, params=None):
        direction = adam.update if bias_correction else uncorrected
        updates, state = direction(updates, with_first_moment(state, jnp.float32), params)
        return updates, with_first_moment(state, first_moment)

    return optax.GradientTransformation(init, update)


def _mean_of_scaled_updates(decay: float) -> optax.GradientTransformationExtraArgs:
    """Returns a transformation that replaces updates by a running mean (Shazeer & Stern 2018).

    The running mean is that of updates multiplied by their learning rates. It is divided by the current learning rate,
    because the result is later multiplied by this rate. If this rate is 0, the final update is 0, too.
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
    """Returns a transformation that adds `coefficient · learning_rate · parameters` to the updates.

    The sum is later multiplied by the learning rate. The decay is therefore proportional to the squared rate (Chowdhery
    et al. 2022 §5).
    """

    def update(updates, state, params=None, **extra_args):
        factor = coefficient * jnp.asarray(extra_args["learning_rate"], jnp.float32)
        return jax.tree.map(lambda new, param: new + factor * param, updates, params), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


class _Factored(NamedTuple):
    """Second moments of a matrix: the mean of each row, and the mean of each column."""

    rows: Any
    columns: Any


class _AdafactorState(NamedTuple):
    """Number of finished updates, and the second moments of each parameter: a `_Factored` or an array."""

    count: jax.Array
    second_moments: Any


def root_mean_square(x: jax.Array) -> jax.Array:
    """Returns the root of the mean of the squares of a tensor."""
    return global_norm(x) / np.sqrt(x.size)
