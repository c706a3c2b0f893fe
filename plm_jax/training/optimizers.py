"""Optimizers as optax transformations."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax


def build(optimizer, rate: Callable) -> optax.GradientTransformation:
    """The transformation of a `config.AdamW` with the learning rate `rate(step)`."""
    return optax.chain(
        _clip(optimizer.clip_norm) if optimizer.clip_norm else optax.identity(),
        _scale_by_adam(optimizer),
        optax.add_decayed_weights(optimizer.weight_decay, mask=decays),
        optax.scale_by_learning_rate(rate),
    )


def global_norm(tree) -> jax.Array:
    """The Euclidean norm of all leaves together.

    By products of whole arrays: XLA's CPU backend writes the squares of `optax.global_norm` to memory.
    """
    return jnp.sqrt(sum(jnp.tensordot(x, x, x.ndim, precision="highest") for x in jax.tree.leaves(tree)))


def _clip(largest: float) -> optax.GradientTransformation:
    """Gradients scaled down to a global norm of `largest` where it is above."""

    def clip(updates, params):
        del params
        scale = jnp.minimum(1.0, largest / jnp.maximum(global_norm(updates), jnp.finfo(jnp.float32).tiny))
        return jax.tree.map(lambda update: update * scale, updates)

    return optax.stateless(clip)


def decays(params):
    """True for the leaves that weight decay acts on: all but norms' scales and biases."""

    def decides(path, _):
        return not any(getattr(entry, "key", None) in ("bias", "scale") for entry in path)

    return jax.tree.map_with_path(decides, params)


def _scale_by_adam(optimizer) -> optax.GradientTransformation:
    """Adam's direction; without bias correction as in BERT's optimizer (google-research/bert, optimization.py)."""
    adam = optax.scale_by_adam(optimizer.b1, optimizer.b2, optimizer.epsilon)
    if optimizer.bias_correction:
        return adam

    def update(grads, state, params=None):
        mu = optax.update_moment(grads, state.mu, optimizer.b1, 1)
        nu = optax.update_moment(grads, state.nu, optimizer.b2, 2)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + optimizer.epsilon), mu, nu)
        return updates, optax.ScaleByAdamState(optax.safe_increment(state.count), mu, nu)

    return optax.GradientTransformation(adam.init, update)
