"""Norms of gradients, parameters and updates by layer: one for each tensor, and each layer of a stacked one."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.training import trainable


def squares(tree: Any) -> jax.Array:
    """The squared Euclidean norms, float32 [tensors], in the order of `names`.

    By products of whole arrays: XLA's CPU backend writes the squares of a sum to memory.
    """

    def of(path, leaf):
        if not trainable.is_stacked(path):
            return jnp.tensordot(leaf, leaf, leaf.ndim, precision="highest")[None]
        return jnp.einsum("l...,l...->l", leaf, leaf, precision="highest")

    return jnp.concatenate(jax.tree.leaves(jax.tree.map_with_path(of, tree)))


def by_layer(names: Sequence[str], values: np.ndarray) -> dict[str, float]:
    """The norms of whole layers, `stack/blocks/3`, from those of their tensors; a tensor of none stands for itself."""
    found: dict[str, float] = {}
    for name, value in zip(names, values.tolist(), strict=True):
        layer = trainable.layer_of(name)
        found[layer] = found.get(layer, 0.0) + value**2
    return {name: float(np.sqrt(square)) for name, square in found.items()}


def rows(names: Sequence[str], values: np.ndarray) -> Mapping[str, float]:
    """What `metrics.jsonl` has of norms [3, tensors]: `train/norms/gradients/stack/blocks/3`, …"""
    return {
        f"train/norms/{what}/{layer}": value
        for what, of in zip(("gradients", "parameters", "updates"), values, strict=True)
        for layer, value in by_layer(names, of).items()
    }
