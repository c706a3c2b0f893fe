"""From a batch to a model's features."""

import jax.numpy as jnp


def dropout_keys(rngs):
    """The key `dropout` of `rngs` as Linen takes it; nothing where there is none."""
    return {name: key for name, key in (rngs or {}).items() if name == "dropout"}


def features_of(model, params, batch, rngs):
    """The model's features [B, L, D] of a batch; no key `dropout` among `rngs`: no dropout."""
    keys = dropout_keys(rngs)
    inputs = model.model.read(batch)
    return model.apply({"params": params}, **inputs, deterministic=not keys, rngs=keys, method="features")


def at_targets(features, batch):
    """Features [B, L, D] at `target_positions`: [B, T, D]."""
    return jnp.take_along_axis(features, batch["target_positions"][..., None], axis=1)
