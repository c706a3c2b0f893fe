"""Embedding and unembedding tables [V, E] that a train step gathers once for all its microbatches.

By default, XLA gathers such a matrix and reduces its gradient over all devices at each use. In a model with a large
vocabulary, this is most of the communication. With a `GatheredTable`, a step gathers the matrix once. Each device sums
the gradient over its own tokens in float32. The sums are reduced over devices once, after the last microbatch.

Shapes: B batch, L length, V vocabulary, E columns, S shards of the tokens.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import PartitionSpec

from plm_jax.models.partitioning import axes_of, constrain, current_rules, partition_spec


@struct.dataclass
class GatheredTable:
    """A matrix that is sharded by rows over the mesh axes that shard the vocabulary, and replicated over other axes.

    Attributes:
      matrix: [V, E], in the dtype of activations; has no gradient of its own.
      gradient: zeros, float32 [S, V, E]. The gradient with respect to these zeros is the gradient of the matrix,
        separately for each of the S shards of the tokens.
      rows: number of rows V without padding. Both arrays are padded with rows of zeros to a multiple of the number of
        vocabulary shards.
      axis: logical axis of V. Mesh axes that shard the batch do not shard this axis.
    """

    matrix: jax.Array | Any
    gradient: jax.Array
    rows: int = struct.field(pytree_node=False)
    axis: str | None = struct.field(pytree_node=False, default="vocab")

    @property
    def layout(self) -> "TableSharding":
        """Sharding of the table and its gradient on the current mesh."""
        return layout(self.rows, self.axis)

    def look_up(self, ids: jax.Array, rows: int) -> jax.Array:
        """Returns the rows of the matrix [B, L, E] for ids [B, L].

        `rows` is B. Ids [1, L] are repeated B times.
        """
        return _rows(self, ids, rows)

    def __jax_array__(self) -> jax.Array:
        """Returns `array(self)`, for code that does not handle a `GatheredTable`."""
        return array(self)

    def __getitem__(self, ids):
        return array(self)[ids]

    def astype(self, dtype: Any) -> jax.Array:
        """Returns `array(self)` in another dtype."""
        return array(self).astype(dtype)


class TableSharding(NamedTuple):
    """The mesh axes that shard a table and the tokens that read it.

    Attributes:
      tokens: axes of the current mesh that shard tokens.
      vocab: axes of the current mesh that shard the rows of the table.
    """

    tokens: tuple[str, ...]
    vocab: tuple[str, ...]

    def spec(self, shape: tuple[int, ...]) -> PartitionSpec:
        """Returns the PartitionSpec of an array of tokens with the shape [B, L]."""
        rules = [rule for rule in current_rules() if rule[1] in self.tokens]
        return partition_spec(shape, ("batch", "length"), rules, _sizes())

    def repeats(self, shape: tuple[int, ...]) -> int:
        """Returns the number of equal copies of each shard of tokens [B, L] along the axes in `tokens`.

        The number is 1 if all of these axes shard the tokens.
        """
        return math.prod(_sizes()[axis] for axis in self.tokens if axis not in axes(self.spec(shape)))

    def padding(self, rows: int) -> int:
        """Returns the number of padding rows that make the shards of a vocabulary of `rows` equally large."""
        return -rows % math.prod(_sizes()[axis] for axis in self.vocab)

    def on_each_device(self, function, in_specs, out_specs):
        """Wraps a function in a `shard_map` over the current mesh; without a mesh, returns it unchanged."""
        if not _sizes():
            return function
        return jax.shard_map(function, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def local_ids(self, ids: jax.Array | int, rows: int) -> jax.Array | int:
        """Returns ids relative to this device's first row. An id whose row is on another device is out of range.

        `rows` is the number of rows per device.
        """
        return ids - rows * jax.lax.axis_index(self.vocab) if self.vocab else ids

    def without_padding(self, logits: jax.Array, rows: int) -> jax.Array:
        """Returns the logits with -inf for padding rows.

        Args:
          logits: [..., v], for this device's shard of the vocabulary.
          rows: size of the whole vocabulary.
        """
        if not self.padding(rows):
            return logits
        size = logits.shape[-1]
        return jnp.where(self.local_ids(rows, size) > jnp.arange(size), logits, -jnp.inf)


def layout(size: int, axis: str | None = "vocab") -> TableSharding:
    """Returns the sharding of a table with this number of rows under the current sharding rules.

    `axis` is the logical axis of the rows. Mesh axes that shard the batch do not shard this axis.
    """
    sizes, rules = _sizes(), current_rules()
    of_rows = {axis for logical, axis in rules if logical == "batch"}
    (vocab,) = partition_spec((size,), (axis,), [rule for rule in rules if rule[1] not in of_rows], sizes)
    vocab = axes([vocab])
    tokens = (axis for logical, axis in rules if logical in ("batch", "length") and axis not in vocab)
    return TableSharding(tuple(axis for axis in dict.fromkeys(tokens) if sizes.get(axis, 1) > 1), vocab)


def gathered(table: jax.Array, dtype: Any, axis: str | None = "vocab") -> jax.Array:
    """Returns a table [V, E] in the form of `GatheredTable.matrix`: in this dtype, padded and sharded."""
    if not _sizes():
        return table.astype(dtype)
    of = layout(len(table), axis)
    padded = jnp.pad(table.astype(dtype), ((0, of.padding(len(table))), (0, 0)))
    return jax.lax.with_sharding_constraint(padded, PartitionSpec(of.vocab, None))


def no_gradient(shape: tuple[int, ...], axis: str | None = "vocab") -> jax.Array:
    """Returns zeros in the form of `GatheredTable.gradient`; `shape` is the shape of the matrix without padding."""
    if not _sizes():
        return jnp.zeros((1, *shape))
    of, (rows, columns) = layout(shape[0], axis), shape
    zeros = jnp.zeros((math.prod(_sizes()[cut] for cut in of.tokens), rows + of.padding(rows), columns))
    return jax.lax.with_sharding_constraint(zeros, PartitionSpec(of.tokens, of.vocab, None))


def reduced(gradient: jax.Array, rows: int, axis: str | None = "vocab") -> jax.Array:
    """Sums a gradient [S, V, E] over the shards of the tokens; returns [rows, E], sharded like the parameter."""
    if not _sizes():
        return gradient[0]
    of = layout(rows, axis)
    parameter = partition_spec((rows, gradient.shape[2]), (axis, "embed"), current_rules(), _sizes())
    cuts = [tuple(axis for axis in axes([cut]) if axis in of.tokens) for cut in parameter]
    other_axes = tuple(axis for axis in of.tokens if axis not in (*cuts[0], *cuts[1]))

    def reduce(local):
        local = local[0]
        for dimension, cut in enumerate(cuts):
            if cut:
                # Shards on the leading axis: along the last one, XLA would reduce the whole table and slice it.
                number = math.prod(_sizes()[axis] for axis in cut)
                parts = jnp.stack(jnp.split(local, number, axis=dimension))
                local = jax.lax.psum_scatter(parts, cut)
        return jax.lax.psum(local, other_axes)

    out = PartitionSpec((*of.vocab, *cuts[0]), cuts[1])
    total = of.on_each_device(reduce, PartitionSpec(of.tokens, of.vocab, None), out)(gradient)
    return constrain(total[:rows], axis, "embed")


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def whole(table: jax.Array, dtype: Any) -> GatheredTable:
    """Returns the `GatheredTable` of a parameter [V, E]; the backward pass reduces the gradient over devices."""
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
            local = of.local_ids(ids, len(matrix))
            is_local = (local >= 0) & (local < len(matrix))
            result = jax.lax.psum(jnp.where(is_local[..., None], matrix[local], 0), of.vocab)
        else:
            result = matrix[ids]
        return jnp.broadcast_to(result, (*like.shape, result.shape[-1]))

    in_specs = PartitionSpec(of.vocab, None), of.spec(ids.shape), spec
    like = jnp.zeros((rows, ids.shape[1]), jnp.bool)  # Tells each device its number of rows.
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
        local = of.local_ids(ids, len(matrix))
        # Negative ids would count from the end.
        local = jnp.where(local < 0, len(matrix), local)
        return jnp.zeros(matrix.shape).at[local].add(d_rows, mode="drop")[None]

    in_specs = PartitionSpec(of.vocab, None), of.spec(ids.shape), PartitionSpec(*spec, None)
    run = of.on_each_device(add_up, in_specs, PartitionSpec(of.tokens, of.vocab, None))
    return table.replace(matrix=None, gradient=run(table.matrix, ids, d_rows)), None


_rows.defvjp(lambda table, ids, rows: (_rows(table, ids, rows), (table, ids)), _rows_backward)


def array(table: jax.Array | GatheredTable) -> jax.Array:
    """Returns a table as an array [V, E], without padding.

    If the table is a `GatheredTable`, every use of the array reduces the gradient over devices.
    """
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
    """Returns the sizes of the axes of the current mesh; empty without a mesh."""
    return dict(jax.sharding.get_abstract_mesh().shape)


def axes(spec) -> tuple[str, ...]:
    """Returns the mesh axes in all entries of a PartitionSpec."""
    return tuple(axis for cut in spec for axis in axes_of(cut))
