"""How layers are gone through: in a compiled loop or one after another, and what the backward pass recomputes."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from plm_jax.models import kernels, layers
from plm_jax.models.transformer import StackConfig, TransformerConfig

# What a flash kernel leaves is no larger than a product of weights, and costs more.
_PRODUCTS = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    jax.checkpoint_policies.save_only_these_names(kernels.RESIDUALS, layers.PRODUCTS),
)
LAYER_INPUT = "layer_input"
# By `TransformerConfig.remat` what is kept. Modules' products go by the modules' names.
REMAT_POLICIES = {
    "dots": _PRODUCTS,
    # All stages' products at once have a batch axis, that of the stages, and go by their names.
    "dots of stages": jax.checkpoint_policies.save_only_these_names(
        kernels.RESIDUALS, "query", "key", "value", "out", "gate", "up", "down"
    ),
    "minimal": jax.checkpoint_policies.save_only_these_names(kernels.RESIDUALS, "out", "down"),
    "attention": jax.checkpoint_policies.save_only_these_names(kernels.RESIDUALS),
    "full": None,
    "offload": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[LAYER_INPUT],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}


def recomputed(layer: Callable, remat: str, scan_layers: bool, staged: bool = False) -> Callable:
    """Returns a layer whose backward pass recomputes what `remat` says.

    Args:
      layer: a function of a carry and one layer's parameters.
      remat: as in `TransformerConfig`.
      scan_layers: whether it is called in a compiled loop.
      staged: whether it is part of a pipeline stage.
    """
    if remat == "none":
        return layer
    if remat == "offload":
        inner = layer

        def layer(x, one):
            return inner(checkpoint_name(x, LAYER_INPUT), one)

    # Inside a compiled loop XLA cannot merge the two computations, so the costly barrier is not needed there.
    name = "dots of stages" if staged and remat == "dots" else remat
    return jax.checkpoint(layer, policy=REMAT_POLICIES[name], prevent_cse=not scan_layers)


def loop(scan_layers: bool) -> Callable:
    """Returns `jax.lax.scan`, or the same written out."""
    return jax.lax.scan if scan_layers else unrolled


def unrolled(function, carry, stacked):
    """As `jax.lax.scan(function, carry, stacked)`, written out."""
    results = []
    for layer in apart(stacked):
        carry, result = function(carry, layer)
        results.append(result)
    return carry, jax.tree.map(lambda *parts: jnp.stack(parts), *results)


def apart(stacked):
    """The layers of a tree of arrays with a leading axis of them, each a tree of its own."""
    leaves, structure = jax.tree.flatten(stacked)
    # Split, not indexed: the transpose of one split is one concatenation of all layers' gradients.
    columns = [leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else _split(leaf) for leaf in leaves]
    return tuple(jax.tree.unflatten(structure, layer) for layer in zip(*columns, strict=True))


def _split(leaf):
    """The slices of the leading axis."""
    return [part[0] for part in jax.lax.split(leaf, [1] * leaf.shape[0])]


def written_out(stack: StackConfig, layer: Callable, x, layers):
    """As `through_layers` one after another, but that each layer's cache is apart from those of the others.

    In a loop over tokens such a cache is changed in place; of a stack of them each token would make a copy. So it would
    of slices of the parameters, which may be as `apart` gives them.
    """
    params, (_, caches, keys) = layers
    params = params if isinstance(params, tuple) else apart(params)
    in_group = stack.blocks // stack.stored_blocks * stack.inner
    results = []
    for depth in range(stack.blocks):
        group, place = divmod(depth, in_group)
        stored = group * stack.inner + place % stack.inner
        others = depth, None if caches is None else caches[depth], None if keys is None else keys[depth]
        x, result = layer(x, (params[stored], others))
        results.append(result)
    caches, hidden = zip(*results, strict=True)
    return x, (caches, None if hidden[0] is None else jnp.stack(hidden))


def through_layers(model: TransformerConfig, stack: StackConfig, layer: Callable, x, layers):
    """x through layers, as `jax.lax.scan(layer, x, layers)`, `layers` being (params, others).

    Parameters are those of the stored blocks, the others of all. Within a group, its parameters are constants to the
    loop: nothing keeps them once for each layer.
    """
    go = loop(model.scan_layers)
    layer = recomputed(layer, model.remat, model.scan_layers, staged=stack.layers < model.stack.layers)
    if stack.stored_blocks == stack.blocks:
        return go(layer, x, layers)

    def of_group(x, group):
        params, others = group
        return go(lambda x, others: unrolled(layer, x, (params, others)), x, others)

    def cut(tree, *shape):
        return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), tree)

    params, others = layers
    repeats = stack.layers // stack.groups
    groups = cut(params, stack.groups, stack.inner), cut(others, stack.groups, repeats, stack.inner)
    x, results = go(of_group, x, groups)
    return x, jax.tree.map(lambda leaf: leaf.reshape(stack.blocks, *leaf.shape[3:]), results)
