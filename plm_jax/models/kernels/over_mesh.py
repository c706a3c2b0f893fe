"""A kernel of attention over the mesh in force: each device computes some rows, heads and queries.

The compiler cannot cut a kernel up by itself. Shapes as in the package.
"""

import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from plm_jax.models.partitioning import axes_of, partition_spec, rules_in_force

# The leading logical axes of what a kernel takes besides queries, keys and values.
_AXES = {
    "visible": ("batch",),
    "query_ids": ("batch",),
    "key_ids": ("batch",),
    "prefix_lengths": ("batch",),
    "distance_bias": ("heads",),
    "window": (),
    "seed": (),
    "rows": ("batch",),
}


def over_mesh(kernel, query, key, value, *, length: str | None = None, causal: bool = False, **arrays) -> jax.Array:
    """`kernel(query, key, value, **arrays)`, each device on its own rows and heads.

    Args:
      length: the logical axis of the queries' places, which cuts these too: each device has some queries, and all keys.
        The kernel is then told `offsets`, int32 [4]: the numbers of its first row, head, query and key among all.
      causal: late queries see most keys, so that each device then computes two parts of a row, one as far from its
        beginning as the other is from its end.
    """
    mesh = jax.sharding.get_abstract_mesh()
    shape, rules = {} if mesh.empty else dict(mesh.shape), rules_in_force()
    # Of the keys: where their groups do not divide, the queries' heads are left whole too.
    of_queries, of_keys = (
        partition_spec((*key.shape[:2], places), ("batch", "heads", length), rules, shape)
        for places in (query.shape[2], key.shape[2])
    )
    placed = dict(zip(("batch", "heads", "length"), of_queries, strict=True))
    places, gathered = axes_of(of_queries[2]), axes_of(of_keys[2])
    parts = math.prod(shape[axis] for axis in places)

    def local(arrays, own, key, value):
        if gathered:
            key, value = (jax.lax.all_gather(x, gathered, axis=2, tiled=True) for x in (key, value))
        if length is None:
            return kernel(own, key, value, **arrays)
        row, head = (_index(of_queries[axis], shape) * own.shape[axis] for axis in range(2))
        if (rows := arrays.pop("rows", None)) is not None:
            row = rows[0]

        def compute(own, place):
            """Of queries [B, N, q, H] of which the first has this place in its row."""
            at = arrays | {"offsets": jnp.stack([jnp.int32(first) for first in (row, head, place, 0)])}
            if parts > 1 and at["query_ids"] is not None:
                at["query_ids"] = jax.lax.dynamic_slice_in_dim(at["query_ids"], place, own.shape[2], axis=1)
            if parts > 1 and at["distance_bias"] is not None:
                at["distance_bias"] = _of_places(at["distance_bias"], place, query.shape[2], own.shape[2])
            return kernel(own, key, value, **at)

        if causal and parts > 1 and own.shape[2] % 2 == 0:
            return _balanced(compute, own, places, parts)
        return compute(own, _index(places, shape) * own.shape[2])

    if mesh.empty:
        return local(arrays, query, key, value)
    run = jax.shard_map(
        local,
        in_specs=(
            {name: PartitionSpec(*map(placed.get, _AXES[name])) for name in arrays},
            of_queries,
            of_keys,
            of_keys,
        ),
        out_specs=of_queries,
        check_vma=False,  # Pallas kernels do not say over which axes their results vary.
    )
    return run(arrays, query, key, value)


def cuts_queries(groups: int, queries: int) -> bool:
    """Whether the mesh in force cuts the queries of a row where a kernel's `length` is "length"."""
    mesh = jax.sharding.get_abstract_mesh()
    # As of no rows, which every axis divides.
    shape, axes = (0, groups, queries), ("batch", "heads", "length")
    cuts = partition_spec(shape, axes, rules_in_force(), {} if mesh.empty else dict(mesh.shape))
    return cuts[2] is not None


def _balanced(compute, own, axes, parts):
    """`compute` of the devices' queries [B, N, q, H], exchanged so that all have as many keys to see, and given back.

    Of the 2 · parts halves of what devices have, in the order of their places, the device d computes the halves d and
    2 · parts - 1 - d. One of these is even and one is odd, as of its own two, so each kind is a permutation.
    """
    device, mixed = jax.lax.axis_index(axes), []
    for odd, half in enumerate(jnp.split(own, 2, axis=2)):
        moves = [(at, min(2 * at + odd, 2 * parts - 1 - (2 * at + odd))) for at in range(parts)]
        number = jnp.where(device % 2 == odd, device, 2 * parts - 1 - device)
        computed = compute(jax.lax.ppermute(half, axes, moves), number * half.shape[2])
        mixed.append(jax.lax.ppermute(computed, axes, [(to, at) for at, to in moves]))
    return jnp.concatenate(mixed, axis=2)


def _index(cut, shape):
    """The number of this device along the axes of one dimension of a PartitionSpec."""
    index = 0
    for axis in axes_of(cut):
        index = index * shape[axis] + jax.lax.axis_index(axis)
    return index


def _of_places(distance_bias, first, queries, own):
    """Of [N, Q + K - 1] the part [N, own + K - 1] that belongs to `own` queries from the place `first` on."""
    size = distance_bias.shape[1] - queries + own
    return jax.lax.dynamic_slice_in_dim(distance_bias, queries - own - first, size, axis=1)
