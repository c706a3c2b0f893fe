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
# Rank in the order of prediction that is below the ranks of all tokens.
FIRST = jnp.iinfo(jnp.int32).min
# Score of keys that are not visible in flash kernels: finite, so that differences are not NaN; its exponential is 0
# relative to every other score.
UNSEEN = -1e30


def split_heads(x_BLD: Shaped[Array, "batch length dim"], heads: int) -> Shaped[Array, "batch heads length head_dim"]:
    """Splits vectors of concatenated heads into heads."""
    return x_BLD.reshape(*x_BLD.shape[:-1], heads, -1).swapaxes(1, 2)


def join_heads(x_BNLH: Shaped[Array, "batch heads length head_dim"]) -> Shaped[Array, "batch length dim"]:
    """Concatenates the heads of each position."""
    return x_BNLH.swapaxes(1, 2).reshape(len(x_BNLH), x_BNLH.shape[2], -1)


class RelativeScores(struct.PyTreeNode):
    """Terms that are added to the scores of one layer and depend on the layer's queries and keys; each is optional.

    In arrays of vectors by distance, entry j of axis 1 is for pairs whose key index minus query index is j - (Q - 1),
    as in `Context.distance_bias`.

    Attributes:
      key_vectors: [N, Q + K - 1, H], vectors by distance that act as keys. The term is query · vector.
      query_vectors: [N, Q + K - 1, H], vectors by distance that act as queries. The term is key · vector.
      key_bias: float32 [B, N, K], the term of each key.
      segment_scores: float32 [B, N, Q, 2]: for each query, the term of keys in the query's segment, and the term of
        keys in other segments.
      segments: pair of arrays for `segment_scores`: the segments of the queries, int32 [B, Q], and the segments of the
        keys, int32 [B, K].
      reverse_key_vectors: [N, Q + K - 1, H], vectors that replace `key_vectors` in rows whose text runs backwards.
      reverse: int32 [B], 1 for rows whose text runs backwards, otherwise 0. Set if and only if `reverse_key_vectors` is
        set.
    """

    key_vectors: jax.Array | None = None
    query_vectors: jax.Array | None = None
    key_bias: jax.Array | None = None
    segment_scores: jax.Array | None = None
    segments: tuple[jax.Array, jax.Array] | None = None
    reverse_key_vectors: jax.Array | None = None
    reverse: jax.Array | None = None

    def expand(self, query_BNQH: Queries, key_BGKH: Keys, bias: jax.Array | None) -> jax.Array:
        """Returns the sum of the terms and `bias`, float32, in a shape that broadcasts to [B, N, Q, K].

        Args:
          query_BNQH: scaled queries.
          bias: a further term, float32 [B or 1, N, Q, K], or None.
        """
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
      mask: [B, K], or [B, Q, K] if each query has its own mask; 0 for keys that are not visible, such as padding. None:
        no mask. Required with a cache; K is then the number of slots.
      segment_ids: pair of arrays with nonnegative ids: the segments of the queries, [B, Q], and the segments of the
        keys, [B, K]. Queries attend only to keys of their own segment. None: a single segment.
      order: pair of arrays with ranks in the order of prediction: the ranks of the queries, [B, Q], and the ranks of
        the keys, [B, K]. Queries attend only to keys of a lower rank. None: no order.
      positions: int32 [B or 1, Q], positions of the queries. Without `source_positions`, keys that are computed in this
        call have the same positions.
      source_positions: int32 [B or 1, K], positions of the keys if the keys come from another source than the queries.
      contiguous: whether the positions of the keys increase by one, or decrease by one, from key to key, and the last
        keys belong to the same tokens as the queries. The additional queries of `targets` do not count.
      targets: int32 [B, T], indices of tokens. The queries of the tokens are followed by T additional queries, which
        have the positions of these tokens. None: no additional queries.
      block_positions: int32 [B, Q], positions of queries and keys within their blanks. None: 0 everywhere.
      rotations: pair of functions from `Position.rotation`: the first rotates the queries by their positions, and the
        second rotates the keys. None instead of a function: no rotation.
      distance_bias: float32 [N, Q + K - 1], bias of scores by distance: entry j is for pairs whose key index minus
        query index is j - (Q - 1). Both indices count from 0 in this call. None: no bias by distance.
      bias: float32 [B or 1, N, Q, K], any other bias of scores. None: no other bias.
      relative: further terms of the scores of one layer. None: no further terms.
      tables: tables by name that the layers of a stack share, for `Position.layer_bias`.
      arrays: arrays [B, ...] by name that the model passes to `Position.layer_bias`.
      windows: windows by layer: in layer i, queries attend to keys at distances less than windows[i % len(windows)]. A
        window of 0 contains all keys. An empty tuple means all keys in all layers.
      cache_index: slot of the cache for the first key of this call. None: no cache.
      slot_positions: int32 [K], position in the text of each slot of a cache. None: slot i has position i.
      prefix_lengths: [B], number of leading keys of each row that all queries of a causal stack attend to. None: no
        prefix.
      rows: int32 [B], indices of the rows in the batch, which select dropout masks. The indices are consecutive on each
        device. None: the indices count from 0.
      dropout: dropout rate of attention weights; used in calls with a seed.
      broadcast: whether all queries share a dropout mask.
      kernel: name of the kernel that computes the attention.
      visible: bool [B or 1, 1, Q or 1, K], dense mask that combines causality, `prefix_lengths`, `mask`, `segment_ids`
        and `order`, without the parts that the kernel computes by itself; set by `with_kernel`. None: no dense mask.
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
        """Returns a dict of the fields whose arrays have an entry for each of `rows` rows.

        Biases, `relative`, `targets` and `visible` are never included.
        """
        names = ("mask", "segment_ids", "order", "positions", "source_positions", "block_positions", "prefix_lengths")
        fields = {name: getattr(self, name) for name in (*names, "arrays", "rows")}
        leaves = {name: jax.tree.leaves(field) for name, field in fields.items()}
        return {name: field for name, field in fields.items() if leaves[name] and len(leaves[name][0]) == rows}

    def with_kernel(self, kernel: str, queries: int, keys: int) -> "Context":
        """Returns this context with a kernel, and with the dense mask and the bias that the kernel needs.

        `flash` needs neither a dense mask nor a change of the bias. For `xla` and `cudnn`, `distance_bias` is expanded
        and added to `bias`.

        Args:
          kernel: `xla`, `flash` or `cudnn`.
          queries: number of queries.
          keys: number of keys.
        """
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
        expanded = None if self.distance_bias is None else expand_distance_bias(self.distance_bias, queries)[None]
        return self.replace(kernel=kernel, visible=visible, distance_bias=None, bias=add_biases(self.bias, expanded))

    def token_positions(self, queries: int, keys: int) -> tuple[jax.Array, jax.Array]:
        """Returns a pair: the positions of the queries, int32 [Q], and the positions of the keys, int32 [K].

        The positions count from 0, regardless of the fields `positions` and `source_positions`. With a cache, the keys
        are the slots of the cache, whose positions may be set by `slot_positions`.
        """
        first = 0 if self.cache_index is None else self.cache_index
        if self.slot_positions is None:
            return first + jnp.arange(queries), jnp.arange(keys)
        return jax.lax.dynamic_slice_in_dim(self.slot_positions, first, queries), self.slot_positions

    def positions_by_row(self, queries: int, keys: int) -> tuple[jax.Array, jax.Array]:
        """Returns a pair: the positions of the queries, int32 [B or 1, Q], and of the keys, int32 [B or 1, K].

        These are the fields `positions` and `source_positions`. With a cache, or if `positions` is None, these are the
        results of `token_positions`.
        """
        of_queries, of_keys = (positions[None] for positions in self.token_positions(queries, keys))
        if self.cache_index is not None or self.positions is None:
            return of_queries, of_keys
        return self.positions, self.positions if self.source_positions is None else self.source_positions

    def distances_back(self, queries: int, keys: int) -> jax.Array:
        """Returns the position of each query minus the position of each key, int32 [Q, K], from `token_positions`."""
        of_queries, of_keys = self.token_positions(queries, keys)
        return of_queries[:, None] - of_keys

    def numbers(self, query: jax.Array) -> jax.Array:
        """Returns the indices of queries for dropout masks, int32 [B, 1, Q, 1], if there are `targets`.

        The index of a token is from 0 to L - 1, where L is the number of tokens. The index of a target is L plus the
        index of the target's token.

        Args:
          query: an array [1, 1, Q, 1], of which only the shape is used.
        """
        assert self.targets is not None
        length = query.shape[2] - self.targets.shape[1]
        tokens = jnp.broadcast_to(jnp.arange(length), (len(self.targets), length))
        return jnp.concatenate([tokens, length + self.targets], axis=1)[:, None, :, None]

    def window(self, depth: jax.Array | int) -> jax.Array | None:
        """Returns the window of layer `depth` (from 0), int32 [], or None if `windows` is empty.

        A window of 0 contains all keys.
        """
        return jnp.array(self.windows, jnp.int32)[depth % len(self.windows)] if self.windows else None

    def ids(self, batch: int, queries: int, keys: int) -> tuple[jax.Array, jax.Array] | tuple[None, None]:
        """Combines segments and a mask [B, K] into two int32 arrays: ids of queries [B, Q], and ids of keys [B, K].

        Queries attend to keys with the same id. Keys with id -1 are never visible. If `mask` and `segment_ids` are
        None, both results are None.
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


def add_biases(bias: jax.Array | None, other: jax.Array | None) -> jax.Array | None:
    """Returns the sum of two biases of scores, of which each may be None."""
    return other if bias is None else bias if other is None else bias + other


def expand_distance_bias(distance_bias: jax.Array, queries: int) -> jax.Array:
    """Expands a `Context.distance_bias` [N, Q + K - 1] to [N, Q, K]. Row q has the K entries that begin at Q - 1 - q.

    The vector is padded by one entry, repeated, and reshaped to rows that are one entry shorter. Each row is thus
    shifted by one entry compared with the previous row. No indices are used, so the gradient is a sum and not a
    scatter.
    """
    heads, distances = distance_bias.shape
    period = jnp.pad(distance_bias, ((0, 0), (0, 1)))
    repeated = jnp.broadcast_to(period[:, None], (heads, queries, distances + 1)).reshape(heads, -1)
    # Row r starts at entry -r, so its last K entries start at entry Q - 1 - r.
    rows = repeated[:, : queries * distances].reshape(heads, queries, distances)
    return rows[:, :, queries - 1 :]
