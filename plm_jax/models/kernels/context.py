"""What an attention's queries see, and what is added to their scores.

Shapes: B batch, Q queries, K keys, N heads.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Integer, UInt32

# Arguments of an attention; each group of keys and values serves several heads of queries.
Queries = Float[Array, "batch heads queries head_dim"]
Keys = Float[Array, "batch groups keys head_dim"]
Window = Integer[Array, ""]
Seed = UInt32[Array, "2"]
# What `jax.checkpoint` policies call the output of a flash kernel and the sums of its softmax.
RESIDUALS = "attention"
# In flash kernels the score of what is not seen: finite, so that no difference of two is NaN; its exponential is 0
# beside any other.
UNSEEN = -1e30


class Context(struct.PyTreeNode):
    """What an attention is to know besides its inputs.

    Attributes:
      causal: a query sees no key after its own place.
      mask: [B, K], or [B, Q, K] where queries see others, 1 for real keys; None: all are. With a cache it is needed and
        K are the cache's slots.
      segment_ids: of the queries [B, Q] and of the keys [B, K], not negative; a query sees its own segment only. None:
        there is one.
      positions: of the queries and of the keys that this call makes, int32 [B or 1, Q], for rotary positions.
      block_positions: of the same, their places within blanks, int32 [B, Q]; None: 0 everywhere.
      rotation: what turns both by their positions, as `Position.rotation` gives it; None: nothing does.
      distance_bias: added to the scores, float32 [N, Q + K - 1]: entry j where the key's place less the query's is
        j - (Q - 1), both counted from the first of this call; None: nothing.
      bias: added to the scores, float32 [1, N, Q, K], or a function of queries and keys, as `Position.bias` gives it.
      windows: in layer i a query sees keys less than windows[i % len(windows)] places away, 0: all; empty: all layers
        do.
      cache_index: where in the cache's slots the keys of this call go; None: there is no cache.
      slot_places: int32 [K], of a cache: which place of the text a slot is for; None: they are in order.
      prefix_lengths: [B], of a causal stack: all queries see the keys in the first so many places. None: there is none.
      rows: the rows' numbers in the batch, by which they draw what is dropped, int32 [B]; on each device they follow on
        one another. None: they count from 0.
      dropout: the share of attention weights that a call with a seed drops.
      broadcast: what is dropped is the same for all queries.
      kernel: what computes the attention; see `with_kernel`.
      visible: what of causality, mask and segments this kernel takes as a dense mask, bool [B or 1, 1, Q or 1, K].
    """

    causal: bool = struct.field(pytree_node=False, default=False)
    mask: jax.Array | None = None
    segment_ids: tuple[jax.Array, jax.Array] | None = None
    positions: jax.Array | None = None
    block_positions: jax.Array | None = None
    rotation: Callable | None = struct.field(pytree_node=False, default=None)
    distance_bias: jax.Array | None = None
    bias: jax.Array | Callable | None = None
    windows: tuple[int, ...] = struct.field(pytree_node=False, default=())
    cache_index: jax.Array | int | None = None
    slot_places: jax.Array | None = None
    prefix_lengths: jax.Array | None = None
    rows: jax.Array | None = None
    dropout: float = struct.field(pytree_node=False, default=0.0)
    broadcast: bool = struct.field(pytree_node=False, default=False)
    kernel: Literal["xla", "flash", "cudnn"] = struct.field(pytree_node=False, default="xla")
    visible: jax.Array | None = None

    def by_row(self, rows: int) -> dict[str, Any]:
        """Of the fields that a caller gives those that tell something of each of so many rows."""
        names = ("mask", "segment_ids", "positions", "block_positions", "prefix_lengths", "rows")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {name: field for name, field in given.items() if len(jax.tree.leaves(field)[0]) == rows}

    def with_kernel(self, kernel: str, queries: int, keys: int) -> "Context":
        """This context for a kernel, with the dense mask and bias that it needs, made once for all layers."""
        if kernel == "flash":
            return self.replace(kernel=kernel)
        dense = self._padding_and_segments()
        if self.causal and (kernel == "xla" or self.prefix_lengths is not None):
            seen = (self.places_back(queries, keys) >= 0)[None, None]
            if self.prefix_lengths is not None:
                seen = seen | (jnp.arange(keys) < self.prefix_lengths[:, None, None, None])
            dense.append(seen)
        visible = functools.reduce(jnp.logical_and, dense) if dense else None
        if visible is not None and kernel == "cudnn":
            visible = jnp.broadcast_to(visible, (visible.shape[0], 1, queries, keys))
        bias = self.bias if self.distance_bias is None else by_places(self.distance_bias, queries)[None]
        return self.replace(kernel=kernel, visible=visible, distance_bias=None, bias=bias)

    def places(self, queries: int, keys: int) -> tuple[jax.Array, jax.Array]:
        """Those of the queries, int32 [Q], and of the keys, int32 [K]; with a cache they are its slots'."""
        first = 0 if self.cache_index is None else self.cache_index
        if self.slot_places is None:
            return first + jnp.arange(queries), jnp.arange(keys)
        return jax.lax.dynamic_slice_in_dim(self.slot_places, first, queries), self.slot_places

    def places_back(self, queries: int, keys: int) -> jax.Array:
        """How many places each key is before each query, int32 [Q, K]."""
        of_queries, of_keys = self.places(queries, keys)
        return of_queries[:, None] - of_keys

    def window(self, depth: jax.Array | int) -> jax.Array | None:
        """That of a layer by its number, from 0, int32 []; None: no layer has one."""
        return jnp.array(self.windows, jnp.int32)[depth % len(self.windows)] if self.windows else None

    def ids(self, batch: int, queries: int, keys: int) -> tuple[jax.Array, jax.Array] | tuple[None, None]:
        """Segments and padding in one, int32 of queries [B, Q] and keys [B, K]: equal ids see each other; -1: no one's.

        None: all see each other.
        """
        if self.mask is None and self.segment_ids is None:
            return None, None
        one_segment = jnp.zeros((batch, queries), jnp.int32), jnp.zeros((batch, keys), jnp.int32)
        of_queries, of_keys = one_segment if self.segment_ids is None else self.segment_ids
        return of_queries, of_keys if self.mask is None else jnp.where(self.mask != 0, of_keys, -1)

    def _padding_and_segments(self) -> list[jax.Array]:
        dense = []
        if self.mask is not None:
            seen = self.mask if self.mask.ndim == 3 else self.mask[:, None, :]
            dense.append(seen[:, None] != 0)
        if self.segment_ids is not None:
            of_queries, of_keys = self.segment_ids
            dense.append(of_queries[:, None, :, None] == of_keys[:, None, None, :])
        return dense


def by_places(distance_bias: jax.Array, queries: int) -> jax.Array:
    """[N, Q + K - 1], as `Context.distance_bias`, as [N, Q, K]: row q is the K entries from Q - 1 - q on.

    Written without indices, so that the gradient is sums and no scatter: laid out in rows one shorter than its period,
    a repeated vector moves on by one each row.
    """
    heads, distances = distance_bias.shape
    period = jnp.pad(distance_bias, ((0, 0), (0, 1)))
    repeated = jnp.broadcast_to(period[:, None], (heads, queries, distances + 1)).reshape(heads, -1)
    # Row r of these starts at entry -r: the last query's is entry 0, the first's Q - 1.
    rows = repeated[:, : queries * distances].reshape(heads, queries, distances)
    return rows[:, :, queries - 1 :]
