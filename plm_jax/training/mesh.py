"""The device mesh, and the shardings of the train state and the batch."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plm_jax.common import ranges
from plm_jax.common.errors import UserError
from plm_jax.models.partitioning import Rules, axes_of, partition_spec
from plm_jax.training import compiler

# Stages come first: they send least, and only to the next stage, so they may be farthest apart.
AXES: tuple[str, ...] = ("stage", "data", "fsdp", "tensor", "context")
# Outside of the stack, stages split the rows; otherwise each of them would repeat the same work.
BATCH_AXES: tuple[str, ...] = ("stage", "data", "fsdp")


@dataclass(frozen=True)
class MeshConfig:
    """The device mesh and its sharding rules; one axis may have size -1, which means all remaining devices.

    Attributes:
      data: number of devices that split the rows of a batch and replicate the parameters.
      fsdp: number of devices that split both the rows of a batch and the parameters.
      tensor: number of devices that split attention heads, feed-forward layers and the vocabulary.
      context: number of devices that split the positions of a row, and the parameters.
      stage: number of pipeline stages that the layers are split into; `model.pipeline_microbatches` sets their
        microbatches.
      rules: sharding rules (logical axis, mesh axis), in order of priority; a rule shards a dimension with its logical
        axis over its mesh axis, if the dimension then splits into equal shards. A vocabulary is sharded over `tensor`
        in any case. An array uses each mesh axis at most once.
      gather: when sharded weights are gathered; `layer`: one layer at a time, in the forward and the backward pass of
        every microbatch; `step`: all weight matrices at once, before the first microbatch. A full copy of the matrices
        in the dtype `precision.gradients` must then fit in memory.
      compiler_preset: preset of XLA options: `none`, `tpu`, `tpu_without_rings`, `tpu_overlap` or `cuda`; `auto`
        chooses a preset for the devices and the shards of the weights. `training/compiler.py` lists the options and
        their effects.
      compiler_options: further XLA options by name, which override those of the preset.
    """

    data: Annotated[int, ranges.Range(1, 2**20, also=-1)] = -1
    fsdp: Annotated[int, ranges.Range(1, 2**20, also=-1)] = 1
    tensor: Annotated[int, ranges.Range(1, 2**20, also=-1)] = 1
    context: Annotated[int, ranges.Range(1, 2**20, also=-1)] = 1
    stage: Annotated[int, ranges.Range(1, 2**20, also=-1)] = 1
    rules: tuple[tuple[str, str], ...] = (
        ("layers", "stage"),
        ("batch", "stage"),
        ("batch", "data"),
        ("batch", "fsdp"),
        ("length", "context"),
        ("vocab", "tensor"),
        ("heads", "tensor"),
        ("mlp", "tensor"),
        ("cell", "tensor"),
        ("length", "tensor"),
        ("embed", "fsdp"),
        ("embed", "context"),
        ("mlp", "fsdp"),
        ("heads", "fsdp"),
        ("head_dim", "fsdp"),
        ("vocab", "fsdp"),
    )
    gather: Literal["layer", "step"] = "layer"
    compiler_preset: str = "auto"
    compiler_options: dict[str, str] = field(default_factory=dict)


def sizes(mesh: MeshConfig) -> tuple[int, ...]:
    """Returns the sizes of the axes of a `MeshConfig`, in the order of `AXES`."""
    return tuple(getattr(mesh, axis) for axis in AXES)


def build(mesh: MeshConfig, devices=None) -> Mesh:
    """Returns the device mesh of a `MeshConfig`.

    Over several TPU slices, only the axes `stage` and `data` cross from one slice to another.

    Args:
      devices: devices of the mesh; None: all devices of JAX.

    Raises:
      UserError: a size is invalid, or the sizes do not multiply to the number of devices, or they cannot be divided
        among the slices.
    """
    devices = jax.devices() if devices is None else devices
    return Mesh(_arranged(list(resolved(mesh, len(devices)).values()), devices), AXES)


def resolved(mesh: MeshConfig, num_devices: int) -> dict[str, int]:
    """Returns the sizes of the axes of a `MeshConfig` over `num_devices` devices, by axis; a size of -1 is replaced.

    Raises:
      UserError: a size is 0 or below -1, or several sizes are -1, or the sizes do not multiply to the number of
        devices.
    """
    asked = dict(zip(AXES, sizes(mesh), strict=True))
    resolved_sizes = list(asked.values())
    if resolved_sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in resolved_sizes):
        raise UserError(f"config.mesh is {asked}: sizes must be at least 1, except that one may be -1")
    fixed = math.prod(size for size in resolved_sizes if size != -1)
    if -1 in resolved_sizes and num_devices % fixed == 0:
        resolved_sizes[resolved_sizes.index(-1)] = num_devices // fixed
    if math.prod(resolved_sizes) != num_devices:
        raise UserError(
            f"config.mesh {describe(asked)} does not fit {num_devices} devices: the nearest that does is "
            f"{describe(nearest(asked, num_devices) or {})}"
        )
    return dict(zip(AXES, resolved_sizes, strict=True))


def _arranged(sizes: list[int], devices) -> np.ndarray:
    """Arranges devices in an array of these sizes; neighbors in the mesh are neighbors in the torus of a TPU slice."""
    slices = num_slices(devices)
    if slices == 1:
        return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    across, left = dict.fromkeys(AXES, 1), slices
    for axis in ("stage", "data"):
        across[axis] = math.gcd(sizes[AXES.index(axis)], left)
        left //= across[axis]
    if left > 1:
        raise UserError(
            f"config.mesh {describe(dict(zip(AXES, sizes, strict=True)))} does not fit {slices} slices: only stage and "
            f"data may span slices, so make mesh.data a multiple of {slices}"
        )
    within = [size // parts for size, parts in zip(sizes, across.values(), strict=True)]
    return mesh_utils.create_hybrid_device_mesh(within, list(across.values()), devices, allow_split_physical_axes=True)


def num_slices(devices) -> int:
    """Returns the number of TPU slices of the devices; 1 for devices that are not TPUs.

    The network is slower between slices than within a slice.
    """
    if devices[0].platform != "tpu":  # A slice of GPUs is a host, and meshes may cross hosts.
        return 1
    # Devices of one slice that are described without hardware have no `slice_index`.
    return len({getattr(device, "slice_index", 0) for device in devices})


def describe(sizes: Mapping[str, int]) -> str:
    """Returns the sizes of a mesh's axes as settings, such as `mesh.fsdp=8 mesh.tensor=2`.

    Axes of size 1 are left out. If all sizes are 1, the result is `mesh.data=1`.
    """
    return " ".join(f"mesh.{axis}={size}" for axis, size in sizes.items() if size != 1) or "mesh.data=1"


def nearest(
    sizes: Mapping[str, int], num_devices: int, fits: Callable[[Mapping[str, int]], bool] = lambda sizes: True
) -> dict[str, int] | None:
    """Returns the sizes of a mesh of `num_devices` devices: the nearest to `sizes` that `fits` accepts, or None.

    The nearest mesh is reached with the fewest doublings and halvings of sizes. If there are several, one that changes
    the fewest axes is chosen. A size of -1 matches any size.
    """

    def distance(candidate):
        ratios = {axis: candidate[axis] / max(size, 1) for axis, size in sizes.items() if size != -1}
        steps = [abs(math.log2(ratio)) for ratio in ratios.values()]
        return round(sum(steps), 6), sum(step > 0 for step in steps)

    # Stages wait for one another, so they are the last resort.
    axes = sorted(sizes, key=lambda axis: axis == "stage")
    return min(filter(fits, _factored(axes, num_devices)), key=distance, default=None)


def _factored(axes: Sequence[str], number: int) -> Iterator[dict[str, int]]:
    """Yields all dicts from axes to sizes whose product is `number`, in decreasing order of the first axis's size."""
    if len(axes) == 1:
        yield {axes[0]: number}
        return
    for size in (size for size in range(number, 0, -1) if number % size == 0):
        yield from ({axes[0]: size} | rest for rest in _factored(axes[1:], number // size))


def batch_shards(mesh: Mesh) -> int:
    """Returns the number of shards that the rows of a batch are split into."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def batch_sharding(mesh: Mesh, row: Sequence[int] = ()) -> NamedSharding:
    """Returns the sharding of an array of the batch [B, *row].

    Rows are split over `BATCH_AXES`. Positions are split over `context` if its size divides the row length.
    """
    is_cut = mesh.shape["context"] > 1 and row and row[0] % mesh.shape["context"] == 0
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES, *(["context"] if is_cut else [])))


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def place(values: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Returns an array of `values` with a sharding; the values must be the same in every process.

    `jax.device_put` would compare the values between processes, and NaN differs from itself.
    """
    return jax.make_array_from_callback(values.shape, sharding, lambda index: np.array(values[index]))


def whole_over_tokens(rules: Rules) -> list[tuple[str, str]]:
    """Returns the sharding rules, except the rules for mesh axes that split the tokens of a batch.

    Rules for `tensor` stay, because this axis also splits matrix products, and so do rules for the logical axis
    `layers`.
    """
    return [rule for rule in rules if rule[1] not in (*BATCH_AXES, "context") or rule[0] == "layers"]


def stored(boxed, mesh: Mesh, rules: Rules, *, padded: bool = True):
    """Returns the shapes, types and shardings of a boxed tree as a run stores it.

    Vectors (biases, scales of norms) are not split over the axes that split tokens, because gathering a vector takes
    longer than its sharding saves.

    Args:
      boxed: tree of shapes. Leaves that are boxed in `nn.Partitioned` have logical axes; all other leaves are
        replicated.
      padded: whether a vocabulary that the mesh does not divide is padded. Otherwise, arrays have their published
        shapes, as in checkpoints, and every device holds such a vocabulary whole.
    """

    for_vectors = whole_over_tokens(rules)

    def to_stored(leaf):
        if not isinstance(leaf, nn.Partitioned):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated(mesh))
        shape = leaf.value.shape
        is_vector = len(shape) - leaf.names.count("layers") < 2 and "batch" not in leaf.names
        spec = partition_spec(shape, leaf.names, for_vectors if is_vector else rules, dict(mesh.shape))
        parts = [math.prod(mesh.shape[axis] for axis in axes_of(cut)) for cut in spec]
        if padded:
            shape = tuple(size + -size % count for size, count in zip(shape, parts, strict=True))
        divided = (cut if size % count == 0 else None for size, cut, count in zip(shape, spec, parts, strict=True))
        sharding = NamedSharding(mesh, PartitionSpec(*divided))
        return jax.ShapeDtypeStruct(shape, leaf.value.dtype, sharding=sharding)

    return jax.tree.map(to_stored, boxed, is_leaf=lambda leaf: isinstance(leaf, nn.Partitioned))


def fitted(tree, like):
    """Returns the arrays of `tree` in the shapes of `like`: the end of each axis is padded with zeros or truncated."""

    def fit(leaf, shape):
        if leaf.shape == shape:
            return leaf
        leaf = leaf[tuple(slice(size) for size in shape)]
        return jnp.pad(leaf, [(0, after - before) for after, before in zip(shape, leaf.shape, strict=True)])

    return jax.tree.map(lambda leaf, other: fit(leaf, other.shape), tree, like)


def refitted(tree, like):
    """Pads or truncates sharded arrays to the shapes of `like`, as `fitted` does.

    Arrays whose shape changes get the sharding of `like`; other arrays are returned unchanged.
    """

    def fit(leaf, other):
        if leaf.shape == other.shape:
            return leaf
        return _refit(other)(leaf)

    return jax.tree.map(fit, tree, like)


@functools.cache
def _refit(like: jax.ShapeDtypeStruct) -> Callable:
    return jax.jit(lambda leaf: fitted(leaf, like), out_shardings=like.sharding)


def local_rows(sharding: NamedSharding, batch_size: int) -> np.ndarray:
    """Returns the sorted indices of the rows of the global batch that the devices of this process hold."""
    indices = sharding.addressable_devices_indices_map((batch_size,)).values()
    return np.unique(np.concatenate([np.arange(batch_size)[index] for index in indices]))


def to_global(batch: dict[str, np.ndarray], rows: np.ndarray, batch_size: int, mesh: Mesh):
    """Returns a dict of global arrays with `batch_sharding`, from the rows of this process.

    Args:
      batch: arrays of this process's rows, by name.
      rows: sorted indices of these rows in the global batch.
      batch_size: number of rows in the global batch.
    """

    def to_array(local):
        def shard(index):
            shard_rows = np.arange(batch_size)[index[0]]
            return local[(np.searchsorted(rows, shard_rows), *index[1:])]

        sharding = batch_sharding(mesh, local.shape[1:])
        return jax.make_array_from_callback((batch_size, *local.shape[1:]), sharding, shard)

    return {key: to_array(value) for key, value in batch.items()}


def jit(
    function: Callable, mesh: Mesh, rules: Rules, options: Mapping[str, str] | None = None, **arguments: Any
) -> Callable:
    """Returns a function of positional arguments that is compiled for a mesh with sharding rules.

    If `options` are set, the returned function raises a `UserError` if XLA rejects one of them.

    Args:
      rules: sharding rules: (logical axis, mesh axis).
      options: options of XLA.
      arguments: further arguments of `jax.jit`.
    """

    def with_rules(*args):
        with nn.logical_axis_rules(rules):
            return function(*args)

    jitted = jax.jit(with_rules, compiler_options=dict(options or {}) or None, **arguments)

    def under_mesh(call: Callable) -> Callable:
        @functools.wraps(call)
        def called(*args):
            with jax.set_mesh(mesh), compiler.option_errors() if options else contextlib.nullcontext():
                return call(*args)

        return called

    call = under_mesh(jitted)
    call.lower, call.trace = under_mesh(jitted.lower), under_mesh(jitted.trace)
    return call
