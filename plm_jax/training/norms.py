"""Norms of gradients, parameters and updates by layer: one for each tensor, and each layer of a stacked one."""

from collections.abc import Mapping, Sequence

import numpy as np

from plm_jax.training import trainable


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
