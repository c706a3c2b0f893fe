"""Devices as a mesh, and where the train state and the batch lie on it."""

import math

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plm_jax.common.errors import UserError
from plm_jax.models.partitioning import Rules, partition_spec

AXES = ("data", "fsdp", "tensor", "context")


def build(mesh, devices=None) -> Mesh:
    """The device mesh of a `config.Mesh`, over all devices unless some are given.

    Raises:
      UserError: the axes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [getattr(mesh, axis) for axis in AXES]
    if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
        raise UserError(
            f"config.mesh is {dict(zip(AXES, sizes, strict=True))}: give sizes of at least 1, one may be -1"
        )
    if mesh.context != 1:
        raise UserError("config.mesh.context is reserved: leave it at 1")
    fixed = math.prod(size for size in sizes if size != -1)
    if -1 in sizes and len(devices) % fixed == 0:
        sizes[sizes.index(-1)] = len(devices) // fixed
    if math.prod(sizes) != len(devices):
        raise UserError(
            f"config.mesh {dict(zip(AXES, sizes, strict=True))} does not fit {len(devices)} devices: "
            "change mesh.data, mesh.fsdp or mesh.tensor"
        )
    # On a TPU slice neighbours in the mesh are neighbours in the torus.
    return Mesh(mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True), AXES)


def batch_shards(mesh: Mesh) -> int:
    """Into how many parts the rows of a batch are cut."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over `data` and `fsdp`; the rest whole."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same on every device."""
    return NamedSharding(mesh, PartitionSpec())


def shardings(boxed, mesh: Mesh, rules: Rules):
    """The NamedShardings of a tree of shapes in which parameters carry their logical axes (`nn.Partitioned`)."""

    def place(leaf):
        if isinstance(leaf, nn.Partitioned):
            return NamedSharding(mesh, partition_spec(leaf.value.shape, leaf.names, rules, dict(mesh.shape)))
        return replicated(mesh)

    return jax.tree.map(place, boxed, is_leaf=lambda leaf: isinstance(leaf, nn.Partitioned))


def local_rows(sharding: NamedSharding, batch_size: int) -> np.ndarray:
    """The rows of the global batch that this process's devices hold, ascending."""
    indices = sharding.addressable_devices_indices_map((batch_size,)).values()
    return np.unique(np.concatenate([np.arange(batch_size)[index] for index in indices]))


def to_global(batch: dict[str, np.ndarray], rows: np.ndarray, batch_size: int, sharding: NamedSharding):
    """One global array a key from this process's `rows`."""

    def place(local):
        def part(index):
            wanted = np.arange(batch_size)[index[0]]
            return local[np.searchsorted(rows, wanted)]

        return jax.make_array_from_callback((batch_size, *local.shape[1:]), sharding, part)

    return {key: place(value) for key, value in batch.items()}
