"""Variants of Adam: LAMB, StableAdamW and Lion."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, cast

import jax
import jax.numpy as jnp
import optax
from typing_extensions import override

from plm_jax.common import ranges
from plm_jax.training.optimizers import (
    OF_MOMENTS,
    OptimizerConfig,
    decays,
    global_norm,
    map_tensors,
    root_mean_square,
    scale_by_adam,
)


@dataclass(frozen=True)
class LambConfig(OptimizerConfig):
    """AdamW that scales updates to the L2 norms of their tensors, except biases and scales of norms (You et al. 2020).

    The defaults are ALBERT's (google-research/albert, lamb_optimizer.py). You et al. use bias correction.

    Attributes:
      b1: decay rate of the first moment.
      b2: decay rate of the second moment.
      epsilon: constant added to the square root of the second moment.
      weight_decay: coefficient of weight decay, which is multiplied by the learning rate; norms and biases do not
        decay.
      bias_correction: whether the moments are corrected for their initialization with zeros.
      first_moment: dtype in which the first moment is stored, as in `AdamWConfig`.
    """

    kind: ClassVar[str] = "lamb"
    recipe: ClassVar[tuple[str, ...]] = OF_MOMENTS
    b1: ranges.ShareBelowOne = 0.9
    b2: ranges.ShareBelowOne = 0.999
    epsilon: ranges.Epsilon = 1e-6
    weight_decay: ranges.Scale = 0.01
    bias_correction: bool = False
    first_moment: Literal["float32", "bfloat16"] = "float32"

    @override
    def transformations(self) -> Sequence[optax.GradientTransformation]:
        decay = optax.add_decayed_weights(self.weight_decay, mask=decays)
        adam = scale_by_adam(self.b1, self.b2, self.epsilon, self.bias_correction, self.first_moment)
        return adam, decay, optax.masked(_scale_by_trust_ratio(), decays)


@dataclass(frozen=True)
class StableAdamWConfig(OptimizerConfig):
    """AdamW with smaller updates for tensors whose gradients are unusually large (Wortsman et al. 2023).

    The learning rate of each tensor is divided by max(1, RMS), where RMS is the root of the mean of `g² / max(v,
    epsilon²)` over the tensor, g is the gradient, and v is the second moment. Gradients therefore need no clipping. The
    defaults are ModernBERT's (Warner et al. 2024), whose weight decay of 1e-5 per step at a peak rate of 8e-4
    corresponds to a `weight_decay` of 0.0125.

    Attributes:
      b1: decay rate of the first moment.
      b2: decay rate of the second moment.
      epsilon: constant added to the square root of the second moment.
      weight_decay: coefficient of weight decay, which is multiplied by the reduced learning rate of the tensor; norms
        and biases do not decay.
    """

    kind: ClassVar[str] = "stable_adamw"
    recipe: ClassVar[tuple[str, ...]] = ("b1", "b2", "epsilon", "weight_decay", *OptimizerConfig.recipe)
    b1: ranges.ShareBelowOne = 0.9
    b2: ranges.ShareBelowOne = 0.98
    epsilon: ranges.Epsilon = 1e-6
    weight_decay: ranges.Scale = 0.0
    clip_norm: Annotated[float, ranges.Range(0, 1e12)] = field(default=0.0, kw_only=True)

    @override
    def transformations(self) -> Sequence[optax.GradientTransformation]:
        adam = optax.scale_by_adam(self.b1, self.b2, self.epsilon)

        def decayed(update, param, decays):
            return update + self.weight_decay * param if decays else update

        def update(updates, state, params=None):
            directions, state = adam.update(updates, state, params)
            directions = jax.tree.map(decayed, directions, params, decays(params))
            adam_state = cast(optax.ScaleByAdamState, state)
            moments = optax.tree.bias_correction(adam_state.nu, self.b2, adam_state.count)

            def divided(update, gradient, moment):
                ratio = gradient * jax.lax.rsqrt(jnp.maximum(moment, max(self.epsilon**2, 1e-30)))
                return update / jnp.maximum(1.0, root_mean_square(ratio))

            return map_tensors(divided, directions, updates, moments), adam_state

        return (optax.GradientTransformation(adam.init, update),)


@dataclass(frozen=True)
class LionConfig(OptimizerConfig):
    """Lion, whose update is the sign of an interpolation between gradient and momentum (Chen et al. 2023).

    Attributes:
      b1: weight of the momentum in the interpolation whose sign is the update.
      b2: decay rate of the momentum.
      weight_decay: coefficient of weight decay, which is multiplied by the learning rate; norms and biases do not
        decay. Use a learning rate 3 to 10 times smaller than for AdamW, and a weight decay larger by this factor.
    """

    kind: ClassVar[str] = "lion"
    recipe: ClassVar[tuple[str, ...]] = ("b1", "b2", "weight_decay", *OptimizerConfig.recipe)
    b1: ranges.ShareBelowOne = 0.9
    b2: ranges.ShareBelowOne = 0.99
    weight_decay: ranges.Scale = 0.0

    @override
    def transformations(self) -> Sequence[optax.GradientTransformation]:
        return optax.scale_by_lion(self.b1, self.b2), optax.add_decayed_weights(self.weight_decay, mask=decays)


def _scale_by_trust_ratio() -> optax.GradientTransformation:
    """Returns a transformation that scales the update of each tensor to the norm of the tensor.

    If the norm of the update or of the tensor is 0, the update is unchanged. Source: You et al. 2020, algorithm 2.
    """

    def scaled(update, param):
        update_norm, param_norm = global_norm(update), global_norm(param)
        both = (update_norm > 0) & (param_norm > 0)
        return update * jnp.where(both, param_norm / jnp.where(both, update_norm, 1.0), 1.0)

    return optax.stateless(lambda updates, params: map_tensors(scaled, updates, params))
