"""Visibility of whole tiles of an attention, computed before a kernel runs.

Shapes: B batch, Q queries, K keys.
"""

import jax
import jax.numpy as jnp


def tiles(
    queries: int,
    keys: int,
    query_tile: int,
    key_tile: int,
    *,
    causal: bool,
    offsets,
    query_ids=None,
    key_ids=None,
    query_order=None,
    key_order=None,
    prefix_lengths=None,
    window=None,
) -> tuple[jax.Array, jax.Array]:
    """Returns two masks of pairs of tiles, bool [B or 1, Q tiles, K tiles].

    The first mask is False only if none of the tile's keys is visible to any of its queries. The second mask is True
    only if all of its keys are visible to all of its queries. Where the bounds of a tile do not decide, the first is
    True and the second is False. The second is also False for a tile that extends beyond the last key.

    Args:
      query_tile: number of queries in a tile.
      key_tile: number of keys in a tile.
      causal, offsets, …: as in `tpu.flash`.
    """

    def bounds(length, tile, offset):
        low = jnp.arange(-(-length // tile)) * tile
        return offset + low, offset + jnp.minimum(low + tile, length) - 1, low + tile <= length

    query_low, query_high, _ = (x[:, None] for x in bounds(queries, query_tile, offsets[2]))
    key_low, key_high, whole = (x[None, :] for x in bounds(keys, key_tile, offsets[3]))
    some = jnp.full((1, query_low.shape[0], key_low.shape[1]), True)
    every = some & whole
    if causal:
        begun, past = key_low <= query_high, key_high <= query_low
        if prefix_lengths is not None:
            prefix = prefix_lengths[:, None, None]
            begun, past = begun | (key_low < prefix), past | (key_high < prefix)
        some, every = some & begun, every & past
    if window is not None:
        nearest = jnp.maximum(key_low - query_high, query_low - key_high)
        farthest = jnp.maximum(key_high - query_low, query_high - key_low)
        some, every = some & ((nearest < window) | (window == 0)), every & ((farthest < window) | (window == 0))
    if query_ids is not None:
        query_min, query_max = (x[:, :, None] for x in _extremes(query_ids, query_tile))
        key_min, key_max = (x[:, None, :] for x in _extremes(key_ids, key_tile))
        some = some & (query_min <= key_max) & (key_min <= query_max) & (key_max >= 0)
        every = every & (query_min == query_max) & (key_min == key_max) & (query_min == key_min) & (key_min >= 0)
    if query_order is not None:
        query_min, query_max = (x[:, :, None] for x in _extremes(query_order, query_tile))
        key_min, key_max = (x[:, None, :] for x in _extremes(key_order, key_tile))
        some, every = some & (key_min < query_max), every & (key_max < query_min)
    return some, every


def _extremes(ids_BL, tile):
    """Returns a pair: the smallest and the largest value of each tile, both int32 [B, tiles]."""
    ids_BL = jnp.pad(ids_BL, ((0, 0), (0, -ids_BL.shape[1] % tile)), mode="edge")
    ids_BTL = ids_BL.reshape(ids_BL.shape[0], -1, tile)
    return ids_BTL.min(-1), ids_BTL.max(-1)


def ranges(some: jax.Array, every: jax.Array) -> jax.Array:
    """Returns ranges of tiles for each program, bool [..., programs, tiles] → int32 [..., programs, 4].

    A program is one run of a kernel, which loops over tiles. The four numbers a, b, c, d define two ranges. The range
    [a, d) begins with the first visible tile and ends with the last visible tile. The range [b, c) within [a, d) is the
    first sequence of fully visible tiles. A range is empty if there is no such tile.

    Args:
      some: mask of visible tiles: the first result of `tiles`.
      every: mask of fully visible tiles: the second result of `tiles`.
    """
    tiles = some.shape[-1]
    sees = some.any(-1)
    first = jnp.where(sees, jnp.argmax(some, -1), 0)
    last = jnp.where(sees, tiles - jnp.argmax(some[..., ::-1], -1), 0)
    begin = jnp.where(every.any(-1), jnp.argmax(every, -1), last)
    broken = ~every & (jnp.arange(tiles) >= begin[..., None])
    end = jnp.where(broken.any(-1), jnp.argmax(broken, -1), tiles)
    return jnp.stack([first, begin, jnp.clip(end, begin, last), last], -1).astype(jnp.int32)


def diagonals(visible: jax.Array) -> jax.Array:
    """Rearranges a mask of tiles by diagonals: [B, Q tiles, K tiles] → [B, D, Q tiles].

    D = Q tiles + K tiles - 1 is the number of diagonals. Entry [b, d, i] is the entry of tile (i, i + d - Q tiles + 1),
    or False if this tile does not exist.
    """
    of_queries, of_keys = visible.shape[1:]
    query = jnp.arange(of_queries)
    key = query + jnp.arange(of_queries + of_keys - 1)[:, None] - (of_queries - 1)
    return visible[:, query, jnp.clip(key, 0, of_keys - 1)] & (key >= 0) & (key < of_keys)
