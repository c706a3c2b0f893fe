"""Attention kernels over the current mesh: each device computes some rows, heads and queries.

The compiler cannot partition a kernel by itself. Shapes are those of the package `kernels`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from plm_jax.models.kernels.context import RelativeScores, join_heads, split_heads
from plm_jax.models.partitioning import axes_of, current_rules, partition_spec

# Leading logical axes of a kernel's arguments other than queries, keys and values.
_RELATIVE_AXES: dict[str, Any] = {
    "key_vectors": PartitionSpec("heads"),
    "query_vectors": PartitionSpec("heads"),
    "key_bias": PartitionSpec("batch", "heads"),
    "segment_scores": PartitionSpec("batch", "heads"),
    "segments": PartitionSpec("batch"),
    "reverse_key_vectors": PartitionSpec("heads"),
    "reverse": PartitionSpec("batch"),
}
_AXES = {
    "visible": PartitionSpec("batch"),
    "query_ids": PartitionSpec("batch"),
    "key_ids": PartitionSpec("batch"),
    "query_order": PartitionSpec("batch"),
    "key_order": PartitionSpec("batch"),
    "prefix_lengths": PartitionSpec("batch"),
    "distance_bias": PartitionSpec("heads"),
    "relative": RelativeScores(**_RELATIVE_AXES),
    "window": PartitionSpec(),
    "seed": PartitionSpec(),
    "rows": PartitionSpec("batch"),
}


def over_mesh(
    kernel, query, key, value, *, length: str | None = None, causal: bool = False, start: int = 0, **arrays
) -> jax.Array:
    """Runs `kernel(query, key, value, **arrays)` on each device of the mesh, if any, for the device's rows and heads.

    Args:
      length: logical axis of positions over which queries are sharded, or None. If set, each device has all keys, and
        the kernel gets an argument `offsets`, int32 [4]: the indices of the device's first row, head, query and key.
      causal: whether later queries attend to more keys. If so, `_balanced` distributes sharded queries, provided that
        each device has an even number of queries.
      start: index of the first query, for `offsets`.
      **arrays: arguments with names in `_AXES`. If `length` is set, the kernel gets `offsets` instead of `rows`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    shape, rules = {} if mesh.empty else dict(mesh.shape), current_rules()
    # Sharded like the keys: if the number of their groups is not divisible, the heads of queries are not sharded
    # either.
    of_queries, of_keys = (
        partition_spec((*key.shape[:2], size), ("batch", "heads", length), rules, shape)
        for size in (query.shape[2], key.shape[2])
    )
    mesh_axes = dict(zip(("batch", "heads", "length"), of_queries, strict=True))
    query_axes, gathered = axes_of(of_queries[2]), axes_of(of_keys[2])
    parts = math.prod(shape[axis] for axis in query_axes)

    def run_local(arrays, local_query, key, value):
        if gathered:
            key, value = (jax.lax.all_gather(x, gathered, axis=2, tiled=True) for x in (key, value))
        if length is None:
            return kernel(local_query, key, value, **arrays)
        row, head = (_index(of_queries[axis], shape) * local_query.shape[axis] for axis in range(2))
        if (rows := arrays.pop("rows", None)) is not None:
            row = rows[0]

        def compute(queries, first):
            size = queries.shape[2]
            local = arrays | {"offsets": jnp.stack([jnp.int32(offset) for offset in (row, head, start + first, 0)])}
            if parts > 1:
                local |= _slice_queries(local, first, query.shape[2], size)
            return kernel(queries, key, value, **local)

        if causal and parts > 1 and local_query.shape[2] % 2 == 0:
            return _balanced(compute, local_query, query_axes, parts)
        return compute(local_query, _index(query_axes, shape) * local_query.shape[2])

    if mesh.empty:
        return run_local(arrays, query, key, value)
    logical = {name: None if array is None else _AXES[name] for name, array in arrays.items()}

    def run_joined(arrays, *joined):
        return join_heads(run_local(arrays, *(split_heads(x, x.shape[2] // query.shape[3]) for x in joined)))

    # With joined heads outside and inside, the transpositions of models and of kernels cancel. XLA would store separate
    # heads in other layouts and copy them before and after the kernel.
    joined_queries, joined_keys = (PartitionSpec(cut[0], cut[2], cut[1]) for cut in (of_queries, of_keys))
    of_arrays = jax.tree.map(lambda axes: PartitionSpec(*map(mesh_axes.get, axes)), logical)
    in_specs = of_arrays, joined_queries, joined_keys, joined_keys
    # Unchecked: Pallas kernels do not declare over which axes their results vary.
    run = jax.shard_map(run_joined, in_specs=in_specs, out_specs=joined_queries, check_vma=False)
    return split_heads(run(arrays, *map(join_heads, (query, key, value))), query.shape[1])


def shards_queries(groups: int, queries: int) -> bool:
    """Returns whether the current mesh shards the queries of a row if `over_mesh` is called with length="length"."""
    mesh = jax.sharding.get_abstract_mesh()
    # 0 rows: every axis divides them.
    shape, axes = (0, groups, queries), ("batch", "heads", "length")
    cuts = partition_spec(shape, axes, current_rules(), {} if mesh.empty else dict(mesh.shape))
    return cuts[2] is not None


def _balanced(compute, query, axes, parts):
    """Runs `compute` on queries [B, N, q, H]; devices exchange queries so that all devices have equal work.

    The queries of each device are split into two halves. All halves are numbered from 0 to 2 · parts - 1 in the order
    of their positions. Device d has halves 2 d and 2 d + 1, and computes halves d and 2 · parts - 1 - d. Each of these
    pairs contains one even and one odd number. One permutation of the devices therefore moves all even halves, and
    another permutation moves all odd halves. The results are moved back.
    """
    device, mixed = jax.lax.axis_index(axes), []
    for odd, half in enumerate(jnp.split(query, 2, axis=2)):
        moves = [(at, min(2 * at + odd, 2 * parts - 1 - (2 * at + odd))) for at in range(parts)]
        number = jnp.where(device % 2 == odd, device, 2 * parts - 1 - device)
        computed = compute(jax.lax.ppermute(half, axes, moves), number * half.shape[2])
        mixed.append(jax.lax.ppermute(computed, axes, [(to, at) for at, to in moves]))
    return jnp.concatenate(mixed, axis=2)


def _index(cut, shape):
    """Returns the index of this device along the mesh axes of `cut`, one dimension of a PartitionSpec."""
    index = 0
    for axis in axes_of(cut):
        index = index * shape[axis] + jax.lax.axis_index(axis)
    return index


def _slice_queries(arrays, first, queries, size):
    """Returns the kernel arguments that depend on queries, by name, cut to `size` queries from position `first`."""

    def by_query(x, axis):
        return None if x is None else jax.lax.dynamic_slice_in_dim(x, first, size, axis)

    def by_distance(x):
        if x is None:
            return None
        return jax.lax.dynamic_slice_in_dim(x, queries - size - first, x.shape[1] - queries + size, axis=1)

    sliced = {
        "query_ids": by_query(arrays["query_ids"], 1),
        "query_order": by_query(arrays["query_order"], 1),
        "distance_bias": by_distance(arrays["distance_bias"]),
    }
    if (relative := arrays.get("relative")) is not None:
        sliced["relative"] = relative.replace(
            key_vectors=by_distance(relative.key_vectors),
            query_vectors=by_distance(relative.query_vectors),
            reverse_key_vectors=by_distance(relative.reverse_key_vectors),
            segment_scores=by_query(relative.segment_scores, 2),
            segments=relative.segments and (by_query(relative.segments[0], 1), relative.segments[1]),
        )
    return sliced
