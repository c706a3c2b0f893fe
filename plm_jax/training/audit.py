"""Checks for silent data corruption: results of devices that compute wrongly without an error.

A spike does not reveal such a device: a relative error of 1e-3 on one of eight devices changes the gradient norm by
5e-4, and after the all-reduce all replicas agree on the wrong sum. Three comparisons of bits reveal it:

- the gradients of a batch, computed twice by the same program: a difference is a transient error;
- a fixed block of a transformer, which each device computes alone: a device that differs from the majority is faulty;
- the replicas of the parameters, which are equal unless a device has corrupted its own replica.

All three compare checksums. The checksum of an array is the sum, modulo 2^32, of its elements, whose bits are read as
unsigned integers. A sum of integers does not depend on the order of its terms.
"""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plm_jax.losses import Loss, means
from plm_jax.models import layers
from plm_jax.models.stack import is_stacked
from plm_jax.training import mesh as meshes
from plm_jax.training import optimizers, trainable

_UNSIGNED = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}
# Width and number of tokens of the fixed block: on accelerators enough to use all of a matrix unit, and a small part of
# a step.
_WIDTH, _TOKENS = 1024, 512
_CPU_WIDTH, _CPU_TOKENS = 128, 64
_HEAD_DIM = 64


def checksum(array: jax.Array, axes: Sequence[int] | None = None) -> jax.Array:
    """Returns checksums, uint32: sums of an array's elements, whose bits are read as unsigned integers.

    Args:
      array: array of numbers of one, two or four bytes.
      axes: axes over which the elements are summed; the result has the other axes. None: all axes.
    """
    bits = array
    if not jnp.issubdtype(array.dtype, jnp.unsignedinteger):
        bits = jax.lax.bitcast_convert_type(array, _UNSIGNED[array.dtype.itemsize])
    return bits.astype(jnp.uint32).sum(None if axes is None else tuple(axes), dtype=jnp.uint32)


def tensor_checksums(tree: Any) -> jax.Array:
    """Returns one checksum per tensor, uint32 [tensors], in the order of JAX's leaves.

    Each layer of a stacked leaf counts as a tensor.
    """

    def of_leaf(path, leaf):
        if is_stacked(path):
            return checksum(leaf, range(1, leaf.ndim))
        return checksum(leaf)[None]

    return jnp.concatenate(jax.tree.leaves(jax.tree.map_with_path(of_leaf, tree)))


def summarize_gradients(
    updates: Sequence[tuple[Loss, Callable]],
    params: Any,
    step: jax.Array,
    carry: Any,
    batch: Mapping[str, jax.Array],
    *arguments: Any,
) -> dict[str, jax.Array]:
    """Returns the losses of a step's updates, and checksums and norms of their gradients, all at the same parameters.

    Args:
      updates: a pair (loss, function that `step.batch_gradients` returned) for each update, in order.
      arguments: further arguments of the functions that `step.batch_gradients` returned.

    Returns:
      A dict: `checksums`, uint32 [tensors]; `loss` and `grad_norm`, each with one value per update.
    """
    batch = {key: array for key, array in batch.items() if key != "digest"}
    checksums, losses, norms = [], [], []
    for loss, differentiate in updates:
        grads, sums, after = differentiate(params, step, carry, batch, *arguments)
        batch |= {key: array for key, array in after.items() if key not in carry}
        checksums.append(tensor_checksums(grads))
        losses.append(means.means(loss, sums)["loss"])
        norms.append(jnp.sqrt(optimizers.squared_norms(grads).sum()) / means.unit(sums.weights))
    return {"checksums": jnp.concatenate(checksums), "loss": jnp.stack(losses), "grad_norm": jnp.stack(norms)}


def block(inputs: Mapping[str, jax.Array]) -> jax.Array:
    """Computes a block of a transformer, forward and backward; returns the checksums of its results, uint32 [results].

    Args:
      inputs: result of `block_inputs`: `x` [tokens, width], the gradient `d_y` of the output, and the kernels.
    """
    kernels = {name: array for name, array in inputs.items() if name not in ("x", "d_y")}

    def forward(x, kernels):
        def heads(name):
            return _product(x, kernels[name]).reshape(len(x), -1, _HEAD_DIM)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = jnp.einsum("qnh,knh->nqk", query, key, preferred_element_type=jnp.float32) / _HEAD_DIM**0.5
        mixed = jnp.einsum("nqk,knh->qnh", jax.nn.softmax(scores).astype(x.dtype), value)
        x += _product(mixed.reshape(len(x), -1), kernels["out"])
        return x + _product(jax.nn.gelu(_product(x, kernels["up"])), kernels["down"])

    y, backward = jax.vjp(forward, inputs["x"], kernels)
    return jnp.stack([checksum(leaf) for leaf in jax.tree.leaves((y, backward(inputs["d_y"])))])


def _product(x: Any, kernel: Any) -> jax.Array:
    """Multiplies `x` by `kernel` as the dense layers of models do, on one device."""
    return jnp.asarray(layers.product(x, kernel, None))


def block_inputs(dtype: Any, platform: str) -> dict[str, np.ndarray]:
    """Returns the fixed inputs of `block`, the same in every process; on a CPU, the arrays are smaller."""
    width, tokens = (_CPU_WIDTH, _CPU_TOKENS) if platform == "cpu" else (_WIDTH, _TOKENS)
    hidden = 4 * width
    rng = np.random.default_rng(0)
    shapes = dict.fromkeys(("query", "key", "value", "out"), (width, width))
    shapes |= {"up": (width, hidden), "down": (hidden, width)}
    kernels = {name: rng.standard_normal(shape) / shape[0] ** 0.5 for name, shape in shapes.items()}
    rows = {name: rng.standard_normal((tokens, width)) for name in ("x", "d_y")}
    return {name: array.astype(jnp.dtype(dtype)) for name, array in (rows | kernels).items()}


class DeviceCheck:
    """Check of the devices of a mesh, each of which computes the fixed block alone."""

    def __init__(
        self, mesh: Mesh, dtype: Any = jnp.float32, compute: Callable[[Mapping[str, jax.Array]], jax.Array] = block
    ):
        """Prepares to check the devices of a mesh.

        Args:
          dtype: dtype of the block.
          compute: function from the inputs of one device to checksums; it must not communicate with other devices.
        """
        self._inputs = block_inputs(dtype, mesh.devices.flat[0].platform)
        self._mesh, self._compute = mesh, compute
        self._compiled = functools.cache(self._compile)

    def __call__(self, **per_device: jax.Array) -> np.ndarray:
        """Returns the checksums of each device in the order of `mesh.devices.flat`, uint32 [devices, results].

        Args:
          per_device: further inputs of `compute`, [devices, ...]; each device receives only its own row, [1, ...].
        """
        sharding = meshes.replicated(self._mesh)
        inputs = {name: meshes.place(array, sharding) for name, array in self._inputs.items()}
        return np.asarray(self._compiled(*per_device)(inputs, per_device))

    def _compile(self, *names: str) -> Callable:
        of_devices = _of_devices(self._mesh)

        def each(inputs, per_device):
            return self._compute({**inputs, **per_device})[None]

        specs = dict.fromkeys(self._inputs, PartitionSpec()), dict.fromkeys(names, of_devices)
        run = jax.shard_map(each, mesh=self._mesh, in_specs=specs, out_specs=of_devices, check_vma=False)
        return jax.jit(run, out_shardings=meshes.replicated(self._mesh))


class ReplicaCheck:
    """Comparison of the replicas of a tree of arrays over a mesh.

    Attributes:
      names: names of the leaves of the tree.
      has_replicas: whether several devices have the same part of a leaf.
    """

    def __init__(self, mesh: Mesh, tree: Any):
        """Prepares to check trees with the structure, shapes and shardings of `tree`."""
        self.names = [name for name, _ in trainable.named(tree)]
        leaves = jax.tree.leaves(tree)
        self._shards = [_shards(leaf.sharding, leaf.shape, mesh) for leaf in leaves]
        self.has_replicas = any(len(set(shards)) < len(shards) for shards in self._shards)

        def each(leaves):
            return jnp.stack([checksum(leaf) for leaf in leaves])[None]

        specs = ([leaf.sharding.spec for leaf in leaves],)
        run = jax.shard_map(each, mesh=mesh, in_specs=specs, out_specs=_of_devices(mesh), check_vma=False)
        self._run = jax.jit(run, out_shardings=meshes.replicated(mesh))

    def __call__(self, tree: Any) -> "dict[str, Vote]":
        """Returns the votes on the leaves whose replicas differ, by the name of the leaf.

        The devices that have the same part of a leaf vote on it. The `Vote` of a leaf combines these votes.
        """
        checksums = np.asarray(self._run(jax.tree.leaves(tree)))
        votes = {}
        for name, shards, values in zip(self.names, self._shards, checksums.T, strict=True):
            differing, undecided = [], []
            for shard in dict.fromkeys(shards):
                devices = [device for device, other in enumerate(shards) if other == shard]
                vote = count_votes(values[devices, None])
                differing += [devices[index] for index in vote.differing]
                undecided += [devices[index] for index in vote.undecided]
            if differing or undecided:
                votes[name] = Vote(tuple(differing), tuple(undecided))
        return votes


class Vote(NamedTuple):
    """Result of a comparison of devices.

    Attributes:
      differing: indices of the devices whose results differ from a result that more than half of the compared devices
        share.
      undecided: indices of all compared devices if no result is shared by more than half of them.
    """

    differing: tuple[int, ...] = ()
    undecided: tuple[int, ...] = ()


def count_votes(results: np.ndarray) -> Vote:
    """Returns the vote on the results of devices, [devices, results]."""
    rows = [row.tobytes() for row in np.ascontiguousarray(results)]
    ((most_common, count),) = Counter(rows).most_common(1)
    if count == len(rows):
        return Vote()
    if 2 * count <= len(rows):
        return Vote(undecided=tuple(range(len(rows))))
    return Vote(differing=tuple(index for index, row in enumerate(rows) if row != most_common))


def _shards(sharding: NamedSharding, shape: tuple[int, ...], mesh: Mesh) -> list[str]:
    """Returns a description of the part of an array that each device holds, in the order of `mesh.devices.flat`."""
    indices = sharding.devices_indices_map(shape)
    return [str(indices[device]) for device in mesh.devices.flat]


def _of_devices(mesh: Mesh) -> PartitionSpec:
    """Returns the sharding of an array [devices, ...] with one row per device, in the order of `mesh.devices.flat`."""
    return PartitionSpec(tuple(mesh.axis_names))
