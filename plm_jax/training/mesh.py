"""Devices as a mesh, and where the train state and the batch lie on it."""

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

# Stages first: they send least, and only to the next one, so theirs may be the farthest neighbours.
AXES: tuple[str, ...] = ("stage", "data", "fsdp", "tensor", "context")
# Outside of the stack stages share the rows, as all else would be done by each of them.
BATCH_AXES: tuple[str, ...] = ("stage", "data", "fsdp")


@dataclass(frozen=True)
class MeshConfig:
    """The device mesh: how many devices along each axis (one may be -1: the rest), and sharding rules for it.

    Attributes:
      stage: stages that the layers are cut into, see `model.pipeline_microbatches`.
      rules: (logical axis, mesh axis), in order: a mesh axis is given to the first logical axis of an array that names
        it and that it divides, once per array.
      gather: when devices that share weights get all of them: `layer`, each layer's as it is computed, forward and
        backward, for every microbatch; `step`, all weight matrices before the first microbatch, for which a device
        holds a copy of them in `precision.gradients`.
      compiler_preset: of XLA's options (`training/compiler.py` has them with what each does): none, tpu, tpu_overlap,
        cuda; auto: that of the devices.
      compiler_options: further ones by their names, which come after those of the preset.
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
    """Those of the axes of a `MeshConfig`, in the order of `AXES`."""
    return tuple(getattr(mesh, axis) for axis in AXES)


def build(mesh: MeshConfig, devices=None) -> Mesh:
    """The device mesh of a `MeshConfig`, over all devices unless some are given.

    Of several TPU slices only stages and copies of the model (`data`) are in more than one.

    Raises:
      UserError: the axes do not multiply to the number of devices, or do not divide over the slices.
    """
    devices = jax.devices() if devices is None else devices
    return Mesh(_arranged(list(resolved(mesh, len(devices)).values()), devices), AXES)


def resolved(mesh: MeshConfig, num_devices: int) -> dict[str, int]:
    """The sizes of the axes of a `MeshConfig` over so many devices.

    Raises:
      UserError: they do not multiply to the number of devices.
    """
    asked = dict(zip(AXES, sizes(mesh), strict=True))
    found = list(asked.values())
    if found.count(-1) > 1 or any(size < 1 and size != -1 for size in found):
        raise UserError(f"config.mesh is {asked}: give sizes of at least 1, one may be -1")
    fixed = math.prod(size for size in found if size != -1)
    if -1 in found and num_devices % fixed == 0:
        found[found.index(-1)] = num_devices // fixed
    if math.prod(found) != num_devices:
        raise UserError(
            f"config.mesh {told(asked)} does not fit {num_devices} devices: the nearest that does is "
            f"{told(nearest(asked, num_devices) or {})}"
        )
    return dict(zip(AXES, found, strict=True))


def _arranged(sizes: list[int], devices) -> np.ndarray:
    """The devices by the sizes of the axes: on a TPU slice neighbours in the mesh are neighbours in the torus."""
    slices = num_slices(devices)
    if slices == 1:
        return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    across, left = dict.fromkeys(AXES, 1), slices
    for axis in ("stage", "data"):
        across[axis] = math.gcd(sizes[AXES.index(axis)], left)
        left //= across[axis]
    if left > 1:
        raise UserError(
            f"config.mesh {told(dict(zip(AXES, sizes, strict=True)))} does not fit {slices} slices, over which only "
            f"stage and data may go: make mesh.data a multiple of {slices}"
        )
    within = [size // parts for size, parts in zip(sizes, across.values(), strict=True)]
    return mesh_utils.create_hybrid_device_mesh(within, list(across.values()), devices, allow_split_physical_axes=True)


def num_slices(devices) -> int:
    """Over how many TPU slices devices are spread; the network between them is slower than that within one."""
    if devices[0].platform != "tpu":  # To GPUs a slice is a host, and no mesh stops there.
        return 1
    # Devices that are not there, of one slice, do not say so.
    return len({getattr(device, "slice_index", 0) for device in devices})


def told(sizes: Mapping[str, int]) -> str:
    """The axes of a mesh as settings, but for those of size 1."""
    return " ".join(f"mesh.{axis}={size}" for axis, size in sizes.items() if size != 1) or "mesh.data=1"


def nearest(
    sizes: Mapping[str, int], num_devices: int, fits: Callable[[Mapping[str, int]], bool] = lambda sizes: True
) -> dict[str, int] | None:
    """Of the meshes of so many devices that `fits` takes the one nearest to `sizes`; None: it takes none.

    Nearest is where few doublings and halvings lie between them, and few axes differ; -1 is near to every size.
    """

    def distance(found):
        steps = [0.0 if sizes[axis] == -1 else abs(math.log2(found[axis] / max(sizes[axis], 1))) for axis in sizes]
        return round(sum(steps), 6), sum(step > 0 for step in steps)

    # Stages, which wait for one another, are the last resort.
    axes = sorted(sizes, key=lambda axis: axis == "stage")
    return min(filter(fits, _factored(axes, num_devices)), key=distance, default=None)


def _factored(axes: Sequence[str], number: int) -> Iterator[dict[str, int]]:
    """All sizes of the axes whose product is the number, those with large first ones first."""
    if len(axes) == 1:
        yield {axes[0]: number}
        return
    for size in (size for size in range(number, 0, -1) if number % size == 0):
        yield from ({axes[0]: size} | rest for rest in _factored(axes[1:], number // size))


def batch_shards(mesh: Mesh) -> int:
    """Into how many parts the rows of a batch are cut."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def batch_sharding(mesh: Mesh, row: Sequence[int] = ()) -> NamedSharding:
    """Of an array of the batch [B, *row]: rows over `BATCH_AXES`, their places over `context` where it divides."""
    is_cut = mesh.shape["context"] > 1 and row and row[0] % mesh.shape["context"] == 0
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES, *(["context"] if is_cut else [])))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same on every device."""
    return NamedSharding(mesh, PartitionSpec())


def place(values: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """An array that every process has, laid out; `jax.device_put` takes no NaN for the same in all of them."""
    return jax.make_array_from_callback(values.shape, sharding, lambda index: np.array(values[index]))


def whole_over_tokens(rules: Rules) -> list[tuple[str, str]]:
    """The rules by which parameters are cut over no axis that tokens alone are: `tensor` cuts the products, too."""
    return [rule for rule in rules if rule[1] not in (*BATCH_AXES, "context") or rule[0] == "layers"]


def stored(boxed, mesh: Mesh, rules: Rules, *, padded: bool = True):
    """Where a tree of shapes lies, in which parameters carry their logical axes (`nn.Partitioned`).

    Shapes, types and shardings as a run holds them: a vocabulary that the mesh does not divide is padded until it does.
    Not `padded`, they are the published ones, as in checkpoints, and such a vocabulary is whole everywhere. Vectors,
    biases and the scales of norms, are not cut over the axes that tokens are: to gather one takes longer than it saves.
    """

    for_vectors = whole_over_tokens(rules)

    def place(leaf):
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

    return jax.tree.map(place, boxed, is_leaf=lambda leaf: isinstance(leaf, nn.Partitioned))


def fitted(tree, like):
    """The arrays of a tree in the shapes of `like`: at the ends of axes zeros are added, or what is there left out."""

    def fit(leaf, shape):
        if leaf.shape == shape:
            return leaf
        leaf = leaf[tuple(slice(size) for size in shape)]
        return jnp.pad(leaf, [(0, size - own) for size, own in zip(shape, leaf.shape, strict=True)])

    return jax.tree.map(lambda leaf, other: fit(leaf, other.shape), tree, like)


def refitted(tree, like):
    """As `fitted`, of arrays that lie on the mesh, laid out as `like` (shapes with shardings) says."""

    def fit(leaf, other):
        if leaf.shape == other.shape:
            return leaf
        return _refit(other)(leaf)

    return jax.tree.map(fit, tree, like)


@functools.cache
def _refit(like: jax.ShapeDtypeStruct) -> Callable:
    return jax.jit(lambda leaf: fitted(leaf, like), out_shardings=like.sharding)


def local_rows(sharding: NamedSharding, batch_size: int) -> np.ndarray:
    """The rows of the global batch that this process's devices hold, ascending."""
    indices = sharding.addressable_devices_indices_map((batch_size,)).values()
    return np.unique(np.concatenate([np.arange(batch_size)[index] for index in indices]))


def to_global(batch: dict[str, np.ndarray], rows: np.ndarray, batch_size: int, mesh: Mesh):
    """One global array a key, laid out as `batch_sharding` says, from this process's `rows`."""

    def place(local):
        def part(index):
            wanted = np.arange(batch_size)[index[0]]
            return local[(np.searchsorted(rows, wanted), *index[1:])]

        sharding = batch_sharding(mesh, local.shape[1:])
        return jax.make_array_from_callback((batch_size, *local.shape[1:]), sharding, part)

    return {key: place(value) for key, value in batch.items()}


def jit(
    function: Callable, mesh: Mesh, rules: Rules, options: Mapping[str, str] | None = None, **arguments: Any
) -> Callable:
    """Returns a function that is compiled for a mesh, with the rules of logical axes in force.

    Args:
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
