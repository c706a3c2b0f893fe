"""Logical axes of arrays and their PartitionSpecs, with the same rules for parameters and activations.

Model code names logical axes, such as `batch`, `length`, `embed`, `heads`, `mlp`, `vocab` and `layers`. Rules assign
them to the axes of a mesh of devices.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import PartitionSpec

Rules = Sequence[tuple[str, str]]

# Logical axis that a mesh axis may shard unevenly: stored arrays are padded explicitly, others by XLA.
PADDED = ("vocab", "tensor")


def partition_spec(
    shape: Sequence[int], axes: Sequence[str | None], rules: Rules, mesh_shape: Mapping[str, int]
) -> PartitionSpec:
    """Returns the sharding of an array according to rules, which are pairs (logical axis, mesh axis).

    The rules are applied in order. A rule shards the first dimension with its logical axis over its mesh axis. Several
    mesh axes may shard one dimension, but each mesh axis shards at most one dimension of an array.

    A rule is skipped if the size of the dimension is not divisible by the number of devices along all mesh axes that
    would shard the dimension. The rule ("vocab", "tensor") is applied nevertheless; some shards are then smaller than
    others.

    Args:
      shape: shape of the array.
      axes: logical axis of each dimension; None: no name.
      rules: pairs (logical axis, mesh axis).
      mesh_shape: size of each mesh axis.
    """
    assigned: list[list[str]] = [[] for _ in shape]
    used: set[str] = set()
    for logical, mesh_axis in rules:
        if logical not in axes or mesh_axis in used or mesh_shape.get(mesh_axis, 1) == 1:
            continue
        dimension = axes.index(logical)
        parts = mesh_shape[mesh_axis]
        for taken in assigned[dimension]:
            parts *= mesh_shape[taken]
        if shape[dimension] % parts == 0 or (logical, mesh_axis) == PADDED:
            assigned[dimension].append(mesh_axis)
            used.add(mesh_axis)
    return PartitionSpec(*(tuple(names) if len(names) > 1 else names[0] if names else None for names in assigned))


def partitioned(init: Callable[..., Any], axes: Sequence[str | None]) -> Callable[..., Any]:
    """Returns an initializer whose parameters are boxed with the logical names of their axes."""
    return nn.with_logical_partitioning(init, tuple(axes))


def current_rules() -> Rules:
    """Returns the current sharding rules as pairs (logical axis, mesh axis)."""
    return [(logical, axis) for logical, axis in nn.get_logical_axis_rules() if isinstance(axis, str)]


def axes_of(cut: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the mesh axes in one entry of a PartitionSpec."""
    return (cut,) if isinstance(cut, str) else tuple(cut or ())


def local_shape(shape: Sequence[int], *axes: str | None) -> tuple[int, ...]:
    """Returns the shape of one device's shard of an array under the current sharding rules.

    Without a mesh, the result is `shape`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return tuple(shape)
    spec = partition_spec(shape, axes, current_rules(), dict(mesh.shape))
    return jax.sharding.NamedSharding(mesh, spec).shard_shape(tuple(shape))


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Constrains the sharding of an activation by the current sharding rules.

    Returns `x` unchanged without a mesh of several devices.
    """
    spec = current_spec(x.shape, *axes)
    return x if spec is None else jax.lax.with_sharding_constraint(x, spec)


def current_spec(shape: Sequence[int], *axes: str | None) -> PartitionSpec | None:
    """Returns the PartitionSpec of an array under the current sharding rules.

    Returns None without a mesh of several devices.
    """
    if not is_spread():
        return None
    return partition_spec(shape, axes, current_rules(), dict(jax.sharding.get_abstract_mesh().shape))


def is_spread() -> bool:
    """Returns whether there is a current mesh with several devices."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and mesh.size > 1


def mesh_axes(axis: str) -> dict[str, int]:
    """Returns the sizes, by name, of the mesh axes that the current rules assign to a logical axis.

    Axes of size 1 are left out. The result is empty without a mesh.
    """
    mesh = jax.sharding.get_abstract_mesh()
    sizes = {} if mesh.empty else dict(mesh.shape)
    named = dict.fromkeys(name for logical, name in current_rules() if logical == axis)
    return {name: sizes[name] for name in named if sizes.get(name, 1) > 1}


# Fewest rows of a shard of a weight matrix that XLA's rings multiply efficiently, by substrings of jax's device_kind: a
# ring multiplies one shard after the other, and a matrix unit has 128 rows on v5e and 256 on v6e. XLA uses no rings on
# other devices unless it is told to.
_RING_ROWS = {"v5 lite": 128, "v5e": 128, "v6": 256}


def least_ring_rows(device_kind: str) -> int:
    """Returns the minimum number of rows of a shard of a weight matrix at which XLA's rings multiply it efficiently.

    Returns 0 for a device on which XLA does not use rings by default.
    """
    return next((rows for part, rows in _RING_ROWS.items() if part in device_kind), 0)


def device() -> Any:
    """Returns the `AbstractDevice` of the current mesh or, without a mesh, the first JAX device.

    The result has the attributes `platform` and `device_kind`. A mesh may have devices that this host lacks, because a
    host can compile for other hosts.
    """
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def without(axes: Collection[str]) -> contextlib.AbstractContextManager[None]:
    """Returns a context manager under which the sharding rules do not use these mesh axes."""
    return nn.logical_axis_rules([rule for rule in current_rules() if rule[1] not in axes])
