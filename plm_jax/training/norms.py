"""Norms of gradients, parameters and updates by layer."""

from collections.abc import Mapping, Sequence

import numpy as np

from plm_jax.training import trainable


def by_layer(names: Sequence[str], values: np.ndarray) -> dict[str, float]:
    """Returns the norm of each layer, by a name such as `stack/blocks/3`, computed from the norms of its tensors.

    If the run has several updates, there is a norm for each update that trains the layer.

    A tensor outside of all layers is reported by its own name.

    Args:
      names: names of the tensors.
      values: norm of each tensor, [tensors].
    """
    squares: dict[str, float] = {}
    for name, value in zip(names, values.tolist(), strict=True):
        tensor, *update = name.partition(" (")
        layer = trainable.layer_of(tensor) + "".join(update)
        squares[layer] = squares.get(layer, 0.0) + value**2
    return {name: float(np.sqrt(square)) for name, square in squares.items()}


def rows(names: Sequence[str], values: np.ndarray) -> Mapping[str, float]:
    """Returns metrics by layer, with names such as `train/norms/gradients/stack/blocks/3`.

    Args:
      names: names of the tensors.
      values: norms of the gradients, the parameters and the updates, [3, tensors].
    """
    return {
        f"train/norms/{kind}/{layer}": value
        for kind, kind_values in zip(("gradients", "parameters", "updates"), values, strict=True)
        for layer, value in by_layer(names, kind_values).items()
    }
