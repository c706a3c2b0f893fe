"""From the logical axes of an array to a PartitionSpec: one rule for parameters and activations.

Model code names axes (`batch`, `length`, `embed`, `heads`, `mlp`, `vocab`, `layers`) and knows no devices.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import PartitionSpec

Rules = Sequence[tuple[str, str]]

# A logical axis that a mesh axis cuts though it does not divide it: what is stored is padded, the rest XLA pads.
PADDED = ("vocab", "tensor")


def partition_spec(
    shape: Sequence[int], axes: Sequence[str | None], rules: Rules, mesh_shape: Mapping[str, int]
) -> PartitionSpec:
    """Gives each mesh axis, in the order of the rules, to the first dimension that asks for it and that it divides.

    A dimension may collect several mesh axes; a mesh axis serves an array once; what does not divide stays whole, but
    for a vocabulary, which `tensor` cuts with a last part that is smaller.
    """
    given: list[list[str]] = [[] for _ in shape]
    used: set[str] = set()
    for logical, mesh_axis in rules:
        if logical not in axes or mesh_axis in used or mesh_shape.get(mesh_axis, 1) == 1:
            continue
        dimension = axes.index(logical)
        parts = mesh_shape[mesh_axis]
        for taken in given[dimension]:
            parts *= mesh_shape[taken]
        if shape[dimension] % parts == 0 or (logical, mesh_axis) == PADDED:
            given[dimension].append(mesh_axis)
            used.add(mesh_axis)
    return PartitionSpec(*(tuple(names) if len(names) > 1 else names[0] if names else None for names in given))


def partitioned(init: Callable[..., Any], axes: Sequence[str | None]) -> Callable[..., Any]:
    """Returns an initializer of parameters that carry the logical names of their axes."""
    return nn.with_logical_partitioning(init, tuple(axes))


def rules_in_force() -> Rules:
    """Returns the sharding rules in force: (logical axis, mesh axis)."""
    return [(logical, axis) for logical, axis in nn.get_logical_axis_rules() if isinstance(axis, str)]


def axes_of(cut: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes of one dimension of a PartitionSpec."""
    return (cut,) if isinstance(cut, str) else tuple(cut or ())


def local_shape(shape: Sequence[int], *axes: str | None) -> tuple[int, ...]:
    """Of an array laid out as the rules in force say, the shape of each device's part."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return tuple(shape)
    spec = partition_spec(shape, axes, rules_in_force(), dict(mesh.shape))
    return jax.sharding.NamedSharding(mesh, spec).shard_shape(tuple(shape))


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Lays an activation out as the rules in force say; on one device it does nothing."""
    spec = spec_in_force(x.shape, *axes)
    return x if spec is None else jax.lax.with_sharding_constraint(x, spec)


def spec_in_force(shape: Sequence[int], *axes: str | None) -> PartitionSpec | None:
    """Returns the PartitionSpec of an array under the rules in force; None if there is one device."""
    if not is_spread():
        return None
    return partition_spec(shape, axes, rules_in_force(), dict(jax.sharding.get_abstract_mesh().shape))


def is_spread() -> bool:
    """Whether the mesh in force has several devices."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and mesh.size > 1


def mesh_axes(axis: str) -> dict[str, int]:
    """The axes of the mesh in force along which the rules cut a logical axis, and their sizes above 1."""
    mesh = jax.sharding.get_abstract_mesh()
    sizes = {} if mesh.empty else dict(mesh.shape)
    named = dict.fromkeys(name for logical, name in rules_in_force() if logical == axis)
    return {name: sizes[name] for name in named if sizes.get(name, 1) > 1}


def device() -> Any:
    """One of those of the mesh in force, which a host may compile for without having them; else the first there is.

    It has a `platform` and a `device_kind`.
    """
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def without(axes: Collection[str]) -> contextlib.AbstractContextManager[None]:
    """Within it the rules in force leave these axes of the mesh alone."""
    return nn.logical_axis_rules([rule for rule in rules_in_force() if rule[1] not in axes])
