"""Masks and biases of an attention.

Shapes: B batch, Q queries, K keys, N heads.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Integer, Shaped, UInt32

# Arguments of an attention; each group of keys and values serves several heads of queries.
Queries = Float[Array, "batch heads queries head_dim"]
Keys = Float[Array, "batch groups keys head_dim"]
Window = Integer[Array, ""]
Seed = UInt32[Array, "2"]
# Name in `jax.checkpoint` policies of the output of a flash kernel and the sums of its softmax.
RESIDUALS = "attention"
# Rank in the order of prediction below that of any token.
FIRST = jnp.iinfo(jnp.int32).min
# Score of keys that are not visible in flash kernels: finite, so that differences are not NaN; its exponential is 0
# relative to any other.
UNSEEN = -1e30


def split_heads(x_BLD: Shaped[Array, "batch length dim"], heads: int) -> Shaped[Array, "batch heads length head_dim"]:
    """Returns the heads of vectors in which they are concatenated."""
    return x_BLD.reshape(*x_BLD.shape[:-1], heads, -1).swapaxes(1, 2)


def join_heads(x_BNLH: Shaped[Array, "batch heads length head_dim"]) -> Shaped[Array, "batch length dim"]:
    """Concatenates the heads of each position."""
    return x_BNLH.swapaxes(1, 2).reshape(len(x_BNLH), x_BNLH.shape[2], -1)


class RelativeScores(struct.PyTreeNode):
    """Terms of the scores of one layer that depend on its queries and keys; each is optional.

    Entry j of vectors is for pairs whose key position minus query position is j - (Q - 1), as in
    `Context.distance_bias`.

    Attributes:
      key_vectors: [N, Q + K - 1, H], vectors that each query is multiplied with.
      query_vectors: [N, Q + K - 1, H], vectors that each key is multiplied with.
      key_bias: float32 [B, N, K].
      segment_scores: float32 [B, N, Q, 2], scores of keys in the segment of the query, and in others.
      segments: segments of the queries, int32 [B, Q], and of the keys, int32 [B, K], for `segment_scores`.
      reverse_key_vectors: [N, Q + K - 1, H], in place of `key_vectors` in rows whose text runs backwards.
      reverse: 1 for these rows, otherwise 0, int32 [B]; required with `reverse_key_vectors`.
    """

    key_vectors: jax.Array | None = None
    query_vectors: jax.Array | None = None
    key_bias: jax.Array | None = None
    segment_scores: jax.Array | None = None
    segments: tuple[jax.Array, jax.Array] | None = None
    reverse_key_vectors: jax.Array | None = None
    reverse: jax.Array | None = None

    def expand(self, query_BNQH: Queries, key_BGKH: Keys, bias: jax.Array | None) -> jax.Array:
        """Adds the terms to a bias, float32 [B, N, Q, K]; queries are scaled."""
        queries, keys = query_BNQH.shape[2], key_BGKH.shape[2]
        entry_QK = jnp.arange(keys) - jnp.arange(queries)[:, None] + queries - 1
        product, terms = functools.partial(jnp.einsum, preferred_element_type=jnp.float32), [bias]
        if self.key_vectors is not None:
            by_entry = product("bnqh,nrh->bnqr", query_BNQH, self.key_vectors)
            if self.reverse is not None:
                reverse = product("bnqh,nrh->bnqr", query_BNQH, self.reverse_key_vectors)
                by_entry = jnp.where(self.reverse[:, None, None, None] > 0, reverse, by_entry)
            terms.append(jnp.take_along_axis(by_entry, entry_QK[None, None], axis=3))
        if self.query_vectors is not None:
            groups = key_BGKH.shape[1]
            vectors = self.query_vectors.reshape(groups, -1, *self.query_vectors.shape[1:])
            by_entry = product("bgkh,gnrh->bgnrk", key_BGKH, vectors)
            by_entry = by_entry.reshape(len(key_BGKH), -1, *by_entry.shape[3:])
            terms.append(jnp.take_along_axis(by_entry, entry_QK[None, None], axis=2))
        if self.key_bias is not None:
            terms.append(self.key_bias[:, :, None])
        if self.segment_scores is not None and self.segments is not None:
            of_queries, of_keys = self.segments
            is_same = (of_queries[:, :, None] == of_keys[:, None])[:, None]
            terms.append(jnp.where(is_same, self.segment_scores[..., :1], self.segment_scores[..., 1:]))
        return functools.reduce(jnp.add, [term for term in terms if term is not None])


class Context(struct.PyTreeNode):
    """The masks, biases and other settings of an attention.

    A stack overwrites `rotations`, `distance_bias`, `bias`, `tables`, `windows`, `rows`, `dropout`, `broadcast`,
    `kernel` and `visible`.

    Attributes:
      causal: whether queries attend only to keys up to their own position.
      mask: [B, K], or [B, Q, K] for a mask per query, 0 for padding; None: no padding. Required with a cache, where
        K are the slots.
      segment_ids: nonnegative ids of the queries [B, Q] and of the keys [B, K]; queries attend to their own segment
        only. None: a single segment.
      order: ranks in the order of prediction of the queries [B, Q] and of the keys [B, K]; queries attend only to keys
        of a lower rank. None: no order.
      positions: positions of the queries, int32 [B or 1, Q]; without `source_positions` also those of the new keys.
      source_positions: positions of the keys if these come from another source than the queries, int32 [B or 1, K].
      contiguous: whether the keys are any number of earlier tokens followed by the tokens of the queries (without the
        additional ones of `targets`), with positions that count up or down by one.
      targets: int32 [B, T]: the last T queries are additional ones, each with the position of the query of this index;
        None: there are none.
      block_positions: positions of queries and keys within blanks, int32 [B, Q]; None: 0 everywhere.
      rotations: rotations of queries and of keys by their positions, as returned by `Position.rotation`, or None.
      distance_bias: bias of scores, float32 [N, Q + K - 1]: entry j is for pairs whose key position minus query
        position is j - (Q - 1), where the first query and the first key of this call have position 0; None: no bias.
      bias: bias of scores, float32 [B or 1, N, Q, K]; None: no bias.
      relative: further terms of the scores of a layer; None: no terms.
      tables: tables that the layers of a stack share, for `Position.layer_bias`.
      arrays: arrays of the rows that the model passes to `Position.layer_bias`, [B, ...] by name.
      windows: in layer i queries attend to keys at distances less than windows[i % len(windows)]; 0 means all keys.
        Empty: all keys in all layers.
      cache_index: slot of the cache for the first key of this call; None without a cache.
      slot_positions: int32 [K], position in the text of each slot of a cache; None: they are in order.
      prefix_lengths: [B], number of leading keys that all queries of a causal stack attend to; None: no prefix.
      rows: numbers of the rows in the batch, int32 [B], for their dropout masks; consecutive on each device. None: from
        0.
      dropout: rate of dropout of attention weights in a call with a seed.
      broadcast: whether all queries share a dropout mask.
      kernel: the kernel that computes the attention; see `with_kernel`.
      visible: dense mask of causality, mask, segments and order, as far as the kernel needs one, bool
        [B or 1, 1, Q or 1, K].
    """

    causal: bool = struct.field(pytree_node=False, default=False)
    mask: jax.Array | None = None
    segment_ids: tuple[jax.Array, jax.Array] | None = None
    order: tuple[jax.Array, jax.Array] | None = None
    positions: jax.Array | None = None
    source_positions: jax.Array | None = None
    contiguous: bool = struct.field(pytree_node=False, default=False)
    targets: jax.Array | None = None
    block_positions: jax.Array | None = None
    rotations: tuple[Callable | None, Callable | None] = struct.field(pytree_node=False, default=(None, None))
    distance_bias: jax.Array | None = None
    bias: jax.Array | None = None
    relative: RelativeScores | None = None
    tables: dict[str, jax.Array] = struct.field(default_factory=dict)
    arrays: dict[str, jax.Array] = struct.field(default_factory=dict)
    windows: tuple[int, ...] = struct.field(pytree_node=False, default=())
    cache_index: jax.Array | int | None = None
    slot_positions: jax.Array | None = None
    prefix_lengths: jax.Array | None = None
    rows: jax.Array | None = None
    dropout: float = struct.field(pytree_node=False, default=0.0)
    broadcast: bool = struct.field(pytree_node=False, default=False)
    kernel: Literal["xla", "flash", "cudnn"] = struct.field(pytree_node=False, default="xla")
    visible: jax.Array | None = None

    def by_row(self, rows: int) -> dict[str, Any]:
        """Returns the fields that have an entry for each of `rows` rows."""
        names = ("mask", "segment_ids", "order", "positions", "source_positions", "block_positions", "prefix_lengths")
        fields = {name: getattr(self, name) for name in (*names, "arrays", "rows")}
        leaves = {name: jax.tree.leaves(field) for name, field in fields.items()}
        return {name: field for name, field in fields.items() if leaves[name] and len(leaves[name][0]) == rows}

    def with_kernel(self, kernel: str, queries: int, keys: int) -> "Context":
        """Returns this context for a kernel, with the dense mask and bias that it needs, once for all layers."""
        if kernel == "flash":
            return self.replace(kernel=kernel)
        dense = self._dense_masks()
        if self.causal and (kernel == "xla" or self.prefix_lengths is not None):
            visible_keys = (self.distances_back(queries, keys) >= 0)[None, None]
            if self.prefix_lengths is not None:
                visible_keys = visible_keys | (jnp.arange(keys) < self.prefix_lengths[:, None, None, None])
            dense.append(visible_keys)
        visible = functools.reduce(jnp.logical_and, dense) if dense else None
        if visible is not None and kernel == "cudnn":
            visible = jnp.broadcast_to(visible, (visible.shape[0], 1, queries, keys))
        bias = self.bias if self.distance_bias is None else expand_distance_bias(self.distance_bias, queries)[None]
        return self.replace(kernel=kernel, visible=visible, distance_bias=None, bias=bias)

    def token_positions(self, queries: int, keys: int) -> tuple[jax.Array, jax.Array]:
        """Returns the positions of the queries, int32 [Q], and of the keys, int32 [K], or of the slots of a cache."""
        first = 0 if self.cache_index is None else self.cache_index
        if self.slot_positions is None:
            return first + jnp.arange(queries), jnp.arange(keys)
        return jax.lax.dynamic_slice_in_dim(self.slot_positions, first, queries), self.slot_positions

    def positions_by_row(self, queries: int, keys: int) -> tuple[jax.Array, jax.Array]:
        """Returns the positions of the queries, int32 [B or 1, Q], and of the keys, int32 [B or 1, K]."""
        of_queries, of_keys = (positions[None] for positions in self.token_positions(queries, keys))
        if self.cache_index is not None or self.positions is None:
            return of_queries, of_keys
        return self.positions, self.positions if self.source_positions is None else self.source_positions

    def distances_back(self, queries: int, keys: int) -> jax.Array:
        """Returns the distance of each key before each query, int32 [Q, K]."""
        of_queries, of_keys = self.token_positions(queries, keys)
        return of_queries[:, None] - of_keys

    def numbers(self, query: jax.Array) -> jax.Array:
        """Returns the numbers of queries for their dropout masks, [1, 1, Q, 1] → [B, 1, Q, 1].

        Those of targets, which follow the others, depend on the positions of the targets.
        """
        assert self.targets is not None
        length = query.shape[2] - self.targets.shape[1]
        tokens = jnp.broadcast_to(jnp.arange(length), (len(self.targets), length))
        return jnp.concatenate([tokens, length + self.targets], axis=1)[:, None, :, None]

    def window(self, depth: jax.Array | int) -> jax.Array | None:
        """Returns the window of a layer, numbered from 0, int32 []; None if no layer has a window."""
        return jnp.array(self.windows, jnp.int32)[depth % len(self.windows)] if self.windows else None

    def ids(self, batch: int, queries: int, keys: int) -> tuple[jax.Array, jax.Array] | tuple[None, None]:
        """Combines segments and padding into ids of queries [B, Q] and keys [B, K], int32; None if all are visible.

        Queries attend to keys with their own id; keys with id -1 are never visible.
        """
        if self.mask is None and self.segment_ids is None:
            return None, None
        one_segment = jnp.zeros((batch, queries), jnp.int32), jnp.zeros((batch, keys), jnp.int32)
        of_queries, of_keys = one_segment if self.segment_ids is None else self.segment_ids
        return of_queries, of_keys if self.mask is None else jnp.where(self.mask != 0, of_keys, -1)

    def _dense_masks(self) -> list[jax.Array]:
        dense = []
        if self.mask is not None:
            mask = self.mask if self.mask.ndim == 3 else self.mask[:, None, :]
            dense.append(mask[:, None] != 0)
        if self.segment_ids is not None:
            of_queries, of_keys = self.segment_ids
            dense.append(of_queries[:, None, :, None] == of_keys[:, None, None, :])
        if self.order is not None:
            of_queries, of_keys = self.order
            dense.append(of_queries[:, None, :, None] > of_keys[:, None, None, :])
        return dense


def expand_distance_bias(distance_bias: jax.Array, queries: int) -> jax.Array:
    """Expands a `Context.distance_bias` [N, Q + K - 1] to [N, Q, K]: row q is the K entries from Q - 1 - q.

    No indices are used, so that the gradient is a sum and not a scatter: a repeated vector, reshaped to rows one
    shorter than its period, shifts by one in each row.
    """
    heads, distances = distance_bias.shape
    period = jnp.pad(distance_bias, ((0, 0), (0, 1)))
    repeated = jnp.broadcast_to(period[:, None], (heads, queries, distances + 1)).reshape(heads, -1)
    # Row r starts at entry -r: that of the last query at entry 0, that of the first at Q - 1.
    rows = repeated[:, : queries * distances].reshape(heads, queries, distances)
    return rows[:, :, queries - 1 :]
