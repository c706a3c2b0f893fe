"""Matrices [V, E] of the vocabulary as a train step hands them to its microbatches.

Left alone, XLA gathers such a matrix and reduces its gradient over all devices each time that tokens meet it, which is
most of what a model with a large vocabulary sends. So a step gathers it once, each device sums the gradient of its own
tokens in float32, and these sums are reduced once, after the last microbatch.

Shapes: B batch, L length, V vocabulary, E columns, S the devices that tokens are spread over.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import PartitionSpec

from plm_jax.models.partitioning import axes_of, constrain, partition_spec, rules_in_force


@struct.dataclass
class GatheredTable:
    """A matrix of which each device has all rows, or its part of them where a mesh axis cuts the vocabulary.

    Attributes:
      matrix: [V, E], in the type of activations; no gradient goes to it.
      gradient: float32 [S, V, E], zeros: what it is the gradient of is the matrix as each device has it.
      rows: V, as published; where they do not divide over the devices, the arrays have some of zeros after them.
      axis: the logical one of V, by which a mesh axis that tokens are not spread over may cut it.
    """

    matrix: jax.Array | Any
    gradient: jax.Array
    rows: int = struct.field(pytree_node=False)
    axis: str | None = struct.field(pytree_node=False, default="vocab")

    @property
    def layout(self) -> "TableSharding":
        """How it and what is made of it lie on the mesh in force."""
        return layout(self.rows, self.axis)

    def look_up(self, ids: jax.Array, rows: int) -> jax.Array:
        """Returns the matrix's rows for ids [B, L]: [B, L, E]; ids [1, L] serve B `rows`."""
        return _rows(self, ids, rows)

    def __jax_array__(self) -> jax.Array:
        """`array`, which any use that is not written for a `GatheredTable` makes of it."""
        return array(self)

    def __getitem__(self, ids):
        return array(self)[ids]

    def astype(self, dtype: Any) -> jax.Array:
        """`array` in another type."""
        return array(self).astype(dtype)


class TableSharding(NamedTuple):
    """Over which axes of the mesh in force tokens are spread, and over which a vocabulary is cut."""

    tokens: tuple[str, ...]
    vocab: tuple[str, ...]

    def spec(self, shape: tuple[int, ...]) -> PartitionSpec:
        """Of an array of tokens [B, L]."""
        rules = [rule for rule in rules_in_force() if rule[1] in self.tokens]
        return partition_spec(shape, ("batch", "length"), rules, _sizes())

    def repeats(self, shape: tuple[int, ...]) -> int:
        """How many devices have the same part of an array of tokens [B, L], which not all axes may divide."""
        return math.prod(_sizes()[axis] for axis in self.tokens if axis not in axes(self.spec(shape)))

    def padding(self, rows: int) -> int:
        """How many rows more than those of the vocabulary its parts have together."""
        return -rows % math.prod(_sizes()[axis] for axis in self.vocab)

    def on_each_device(self, function, in_specs, out_specs):
        """The function as each device runs it on its own parts; outside of a mesh as it is."""
        if not _sizes():
            return function
        return jax.shard_map(function, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def own_ids(self, ids: jax.Array | int, rows: int) -> jax.Array | int:
        """Ids as numbers of this device's rows of the matrix; below 0 or above where they are another's."""
        return ids - rows * jax.lax.axis_index(self.vocab) if self.vocab else ids

    def without_padding(self, logits: jax.Array, rows: int) -> jax.Array:
        """Logits [..., v] of this device's part of a vocabulary of so many rows, -inf for the rows of padding."""
        if not self.padding(rows):
            return logits
        size = logits.shape[-1]
        return jnp.where(self.own_ids(rows, size) > jnp.arange(size), logits, -jnp.inf)


def layout(size: int, axis: str | None = "vocab") -> TableSharding:
    """That of a vocabulary, or what else the logical axis is one of, of this size, by the rules in force."""
    sizes, rules = _sizes(), rules_in_force()
    of_rows = {axis for logical, axis in rules if logical == "batch"}
    (vocab,) = partition_spec((size,), (axis,), [rule for rule in rules if rule[1] not in of_rows], sizes)
    vocab = axes([vocab])
    tokens = (axis for logical, axis in rules if logical in ("batch", "length") and axis not in vocab)
    return TableSharding(tuple(axis for axis in dict.fromkeys(tokens) if sizes.get(axis, 1) > 1), vocab)


def gathered(table: jax.Array, dtype: Any, axis: str | None = "vocab") -> jax.Array:
    """[V, E] as `GatheredTable.matrix`."""
    if not _sizes():
        return table.astype(dtype)
    of = layout(len(table), axis)
    padded = jnp.pad(table.astype(dtype), ((0, of.padding(len(table))), (0, 0)))
    return jax.lax.with_sharding_constraint(padded, PartitionSpec(of.vocab, None))


def no_gradient(shape: tuple[int, ...], axis: str | None = "vocab") -> jax.Array:
    """Zeros as `GatheredTable.gradient`, of a matrix of this shape."""
    if not _sizes():
        return jnp.zeros((1, *shape))
    of, (rows, columns) = layout(shape[0], axis), shape
    zeros = jnp.zeros((math.prod(_sizes()[cut] for cut in of.tokens), rows + of.padding(rows), columns))
    return jax.lax.with_sharding_constraint(zeros, PartitionSpec(of.tokens, of.vocab, None))


def reduced(gradient: jax.Array, rows: int, axis: str | None = "vocab") -> jax.Array:
    """The gradient [V, E] of all devices' [S, V, E], of which so many rows count, laid out as the parameter is."""
    if not _sizes():
        return gradient[0]
    of = layout(rows, axis)
    parameter = partition_spec((rows, gradient.shape[2]), (axis, "embed"), rules_in_force(), _sizes())
    cuts = [tuple(axis for axis in axes([cut]) if axis in of.tokens) for cut in parameter]
    others = tuple(axis for axis in of.tokens if axis not in (*cuts[0], *cuts[1]))

    def reduce(own):
        own = own[0]
        for dimension, cut in enumerate(cuts):
            if cut:
                # The parts in front: scattered along its last axis, a whole table would be reduced, and then cut.
                number = math.prod(_sizes()[axis] for axis in cut)
                parts = jnp.stack(jnp.split(own, number, axis=dimension))
                own = jax.lax.psum_scatter(parts, cut)
        return jax.lax.psum(own, others)

    out = PartitionSpec((*of.vocab, *cuts[0]), cuts[1])
    own = of.on_each_device(reduce, PartitionSpec(of.tokens, of.vocab, None), out)(gradient)
    return constrain(own[:rows], axis, "embed")


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def whole(table: jax.Array, dtype: Any) -> GatheredTable:
    """A parameter [V, E] gathered here; its gradient is reduced here too."""
    return GatheredTable(gathered(table, dtype), no_gradient(table.shape), len(table))


whole.defvjp(
    lambda table, dtype: (whole(table, dtype), None),
    lambda dtype, _, cotangent: (reduced(cotangent.gradient, cotangent.rows),),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _rows(table, ids, rows):
    of = table.layout
    spec = of.spec((rows, ids.shape[1]))

    def look_up(matrix, ids, like):
        if of.vocab:
            own = of.own_ids(ids, len(matrix))
            is_own = (own >= 0) & (own < len(matrix))
            found = jax.lax.psum(jnp.where(is_own[..., None], matrix[own], 0), of.vocab)
        else:
            found = matrix[ids]
        return jnp.broadcast_to(found, (*like.shape, found.shape[-1]))

    in_specs = PartitionSpec(of.vocab, None), of.spec(ids.shape), spec
    like = jnp.zeros((rows, ids.shape[1]), jnp.bool)  # Its part has as many rows as a device is to give.
    return of.on_each_device(look_up, in_specs, PartitionSpec(*spec, None))(table.matrix, ids, like)


def _rows_backward(rows, residuals, d_rows):
    table, ids = residuals
    of = table.layout
    shape = rows, ids.shape[1]
    spec, repeats = of.spec(shape), of.repeats(shape)

    def add_up(matrix, ids, d_rows):
        d_rows = d_rows.astype(jnp.float32) / repeats
        if len(ids) < len(d_rows):
            d_rows = d_rows.sum(0, keepdims=True)
        own = of.own_ids(ids, len(matrix))
        # Counted from the end, ids below 0 would name rows that are there.
        own = jnp.where(own < 0, len(matrix), own)
        return jnp.zeros(matrix.shape).at[own].add(d_rows, mode="drop")[None]

    in_specs = PartitionSpec(of.vocab, None), of.spec(ids.shape), PartitionSpec(*spec, None)
    run = of.on_each_device(add_up, in_specs, PartitionSpec(of.tokens, of.vocab, None))
    return table.replace(matrix=None, gradient=run(table.matrix, ids, d_rows)), None


_rows.defvjp(lambda table, ids, rows: (_rows(table, ids, rows), (table, ids)), _rows_backward)


def array(table: jax.Array | GatheredTable) -> jax.Array:
    """Returns [V, E] as an array, for uses without a `GatheredTable`; its gradient is right, but reduced there."""
    return _matrix(table) if isinstance(table, GatheredTable) else table


@jax.custom_vjp
def _matrix(table):
    return table.matrix[: table.rows]


def _matrix_backward(table, d_matrix):
    devices, padded, _ = table.gradient.shape
    share = jnp.pad(d_matrix.astype(jnp.float32) / devices, ((0, padded - table.rows), (0, 0)))
    return (table.replace(matrix=None, gradient=jnp.broadcast_to(share, table.gradient.shape)),)


_matrix.defvjp(lambda table: (_matrix(table), table), _matrix_backward)


def _sizes() -> dict[str, int]:
    """How many devices there are along each axis of the mesh in force; empty outside of one."""
    return dict(jax.sharding.get_abstract_mesh().shape)


def axes(spec) -> tuple[str, ...]:
    """The mesh axes of all dimensions of a PartitionSpec."""
    return tuple(axis for cut in spec for axis in axes_of(cut))
