"""`optimizer.layer_decay`: learning rates that fall from the heads down to the embeddings, layer by layer."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from plm_jax.common.errors import UserError
from plm_jax.models import StackConfig
from plm_jax.models.protocol import ModelConfig
from plm_jax.models.stack import STACKED
from plm_jax.training.trainable import layer_numbers


def factors(model: ModelConfig, decay: float, params: Any) -> Any:
    """Returns the factors by which the learning rates are multiplied, as a tree like `params`.

    The factor of a stacked leaf is an array [rows, 1, …], with one entry for each row of the leaf. A factor is `decay`
    to the power of `n + 2 - d`; the docstring of `OptimizerConfig` defines n and the depth d.
    """
    stacks = dict(zip(model.stack_paths, model.stacks, strict=True))

    def factor(path, leaf):
        names = [entry.key for entry in path]
        above = _layers_above(names, leaf, stacks)
        return np.float32(decay**above)

    return jax.tree.map_with_path(factor, params)


def _layers_above(names: list[str], leaf: Any, stacks: Mapping[str, StackConfig]) -> Any:
    """Returns the exponent n + 2 - d of a leaf; for a stacked leaf, an array [rows, 1, …] with an exponent per row."""
    name = "/".join(names)
    for at, stack in stacks.items():
        if not name.startswith(f"{at}/"):
            continue
        inside = name.removeprefix(f"{at}/").split("/")
        if inside[0] == STACKED:
            # Layers that share parameters have the rate of the last of them.
            group = np.array(layer_numbers(name, leaf)) // stack.inner + 1
            depth = group * (stack.layers // (stack.stored_blocks // stack.inner))
            return (stack.layers + 2.0 - depth).reshape(-1, *[1] * (leaf.ndim - 1))
        if inside[0] == "convolve":  # It follows the first layer.
            return stack.layers + 1.0
        # The only positions inside a stack are those of a mask decoder. Tables of scores count as embeddings.
        return {"final_norm": 1.0, "position_embedding": 0.0}.get(inside[0], stack.layers + 2.0)
    of_embeddings = "embedding" in names[0] or (len(names) > 2 and "embedding" in names[1])
    return max(stack.layers for stack in stacks.values()) + 2.0 if of_embeddings else 0.0


def check(model: ModelConfig, decay: float) -> None:
    """Checks that the model has a stack of layers.

    Raises:
      UserError: `decay` is not 1 and the model has no stack.
    """
    if decay != 1.0 and not model.stacks:
        raise UserError(
            f"a model of kind '{model.kind}' has no stack of layers, which config.optimizer.layer_decay needs: leave "
            "it out"
        )


def notes(model: ModelConfig, decay: float) -> list[str]:
    """Returns lines that report layers that share parameters, and so a learning rate; empty if `decay` is 1."""
    shared = [stack for stack in model.stacks if stack.stored_blocks < stack.blocks]
    if decay == 1.0 or not shared:
        return []
    sizes = " and ".join(str(stack.layers // stack.groups) for stack in shared)
    return [f"config.optimizer.layer_decay: {sizes} layers share parameters, and so one rate, that of the last of them"]
