"""Static arguments of a call of the TPU kernel, and the indices and masks of one tile of scores.

Shapes are those of `tpu`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from plm_jax.models.kernels import dropout, tiles

# Indices of the scalars that programs read, followed by those of each row.
SEED, ROW, HEAD, QUERY, KEY, WINDOW, ROWS = 0, 2, 3, 4, 5, 6, 7


@dataclasses.dataclass(frozen=True)
class TpuCall:
    """Static arguments of a call.

    Attributes:
      batch, heads, groups, head_dim: B, N, G, H.
      queries, keys: Q and K before padding to whole tiles.
      tile: tile sizes.
      causal, broadcast, interpret: as in `flash`.
      rate: realized dropout rate (`dropout.realized`); 0 without a seed.
      has_ids, has_order, has_prefix, has_window, has_reverse: whether the call has these optional arrays.
      device_kind: JAX's name of the kind of device.
    """

    batch: int
    heads: int
    groups: int
    head_dim: int
    queries: int
    keys: int
    tile: tiles.Tile
    causal: bool
    rate: float
    broadcast: bool
    interpret: bool
    has_ids: bool
    has_order: bool
    has_prefix: bool
    has_window: bool
    has_reverse: bool
    device_kind: str

    @property
    def query_tiles(self) -> int:
        """Number of tiles of queries."""
        return -(-self.queries // self.tile.queries)

    @property
    def key_tiles(self) -> int:
        """Number of tiles of keys."""
        return -(-self.keys // self.tile.keys)

    @property
    def repeats(self) -> int:
        """Number of query heads that a key head serves."""
        return self.heads // self.groups

    @property
    def program_heads(self) -> int:
        """Number of query heads in a program."""
        return self.tile.groups * self.repeats

    @property
    def programs(self) -> int:
        """P, the number of programs that share the heads."""
        return -(-self.groups // self.tile.groups)

    @property
    def masked(self) -> bool:
        """Whether there are masks, including the mask of keys that pad the last tile."""
        has_padding = self.keys % self.tile.keys != 0
        return self.causal or self.has_ids or self.has_order or self.has_window or has_padding

    def num_visible_tiles(self) -> int:
        """Estimates the number of tiles of scores computed per head and row.

        Only causality reduces the number; a causal stack with a prefix counts all tiles.
        """
        if not self.causal or self.has_prefix:
            return self.query_tiles * self.key_tiles
        if self.queries < self.keys:  # Devices have different parts of a row; half are visible on average.
            return -(-self.query_tiles * (self.key_tiles + 1) // 2)
        last = ((i + 1) * self.tile.queries - 1 for i in range(self.query_tiles))
        return sum(min(query // self.tile.keys + 1, self.key_tiles) for query in last)


class ScoreTile:
    """One tile of scores in a program: the indices of its row, heads, queries and keys, and its masks."""

    def __init__(self, call, numbers, row, program, query_tile, key_tile):
        self.call, self.numbers = call, numbers
        self.row, self.program = row, program
        self.query_tile, self.key_tile = query_tile, key_tile
        self.first_query = query_tile * call.tile.queries + numbers[QUERY]
        self.first_key = key_tile * call.tile.keys + numbers[KEY]
        self.last_query = self.first_query + call.tile.queries - 1
        self.last_key = self.first_key + call.tile.keys - 1

    @property
    def diagonal(self):
        """Index of the tile's diagonal, from 0. Diagonals are ordered by query tile minus key tile."""
        return self.query_tile - self.key_tile + self.call.key_tiles - 1

    def of_row(self, number):
        """Returns the scalar with index `number` among the scalars of this row."""
        call = self.call
        size = call.has_prefix + call.has_reverse
        size += 2 * (call.has_ids + call.has_order) * (call.query_tiles + call.key_tiles)
        return self.numbers[ROWS + self.row * size + number]

    @property
    def prefix(self):
        """Number of leading keys of the row that are visible to all queries; defined only if the call has prefixes."""
        return self.of_row(0)

    @property
    def reverse(self):
        """1 if the text of the row runs backwards, otherwise 0."""
        return self.of_row(int(self.call.has_prefix)) if self.call.has_reverse else 0

    @property
    def window(self):
        """Window of the layer. The largest int32 replaces a window of 0, which means no limit."""
        window = self.numbers[WINDOW]
        return jnp.where(window == 0, jnp.iinfo(jnp.int32).max, window)

    def extremes(self, number):
        """Returns four numbers: the minimum and maximum of the tile's queries, and the minimum and maximum of its keys.

        Args:
          number: 0 for the values of ids. For the values of ranks, 1 or, if there are no ids, 0.
        """
        call, first = self.call, self.call.has_prefix + self.call.has_reverse
        first += 2 * number * (call.query_tiles + call.key_tiles)
        of_queries = [self.of_row(first + i * call.query_tiles + self.query_tile) for i in (0, 1)]
        first += 2 * call.query_tiles
        return *of_queries, *(self.of_row(first + i * call.key_tiles + self.key_tile) for i in (0, 1))

    def visibility(self):
        """Returns a pair: whether any key may be visible to a query, and whether all keys are visible to all queries.

        If the bounds of the tile do not decide, the first is True and the second is False.
        """
        call, some, every = self.call, True, True
        if call.causal:
            some, every = self.first_key <= self.last_query, self.last_key <= self.first_query
            if call.has_prefix:
                some, every = some | (self.first_key < self.prefix), every | (self.last_key < self.prefix)
        if call.has_window:
            nearest = jnp.maximum(self.first_key - self.last_query, self.first_query - self.last_key)
            farthest = jnp.maximum(self.last_key - self.first_query, self.last_query - self.first_key)
            some, every = some & (nearest < self.window), every & (farthest < self.window)
        if call.has_ids:
            least_query, greatest_query, least_key, greatest_key = self.extremes(0)
            some = some & (least_query <= greatest_key) & (least_key <= greatest_query)
            alike = (least_query == greatest_query) & (least_key == greatest_key) & (least_query == least_key)
            every = every & alike
        if call.has_order:
            least_query, greatest_query, least_key, greatest_key = self.extremes(int(call.has_ids))
            some, every = some & (least_key < greatest_query), every & (greatest_key < least_query)
        if call.keys % call.tile.keys:
            every = every & (self.key_tile < call.key_tiles - 1)
        return some, every

    def queries(self):
        """Returns the positions of the tile's queries, int32 [1, T]."""
        return self.first_query + jax.lax.broadcasted_iota(jnp.int32, (1, self.call.tile.queries), 1)

    def keys(self):
        """Returns the positions of the tile's keys, int32 [T, 1]."""
        return self.first_key + jax.lax.broadcasted_iota(jnp.int32, (self.call.tile.keys, 1), 0)

    def visible(self, blocks):
        """Returns the mask of the tile, bool: True if a key is visible to a query.

        The shape is [keys, queries], or one that broadcasts to it. The call must have masks.
        """
        call, queries, keys = self.call, self.queries(), self.keys()
        masks = []
        if call.causal:
            masks.append((keys <= queries) | (keys < self.prefix) if call.has_prefix else keys <= queries)
        if call.has_window:
            masks.append(jnp.abs(keys - queries) < self.window)
        if call.has_ids:
            masks.append(column(blocks["key_ids"][0]) == blocks["query_ids"][0])
        if call.has_order:
            masks.append(column(blocks["key_order"][0]) < blocks["query_order"][0])
        if call.keys % call.tile.keys:
            masks.append(keys < call.keys + self.numbers[KEY])
        return functools.reduce(jnp.logical_and, masks)

    def keep_mask(self, head):
        """Returns the dropout mask of a head of this program, bool [keys, queries]: True for weights to keep.

        If all queries share a mask, the shape is [keys, 1].
        """
        seed = self.numbers[SEED], self.numbers[SEED + 1]
        row = self.numbers[ROW] + self.row
        head = self.numbers[HEAD] + self.program * self.call.program_heads + head
        query = jnp.zeros((1, 1), jnp.int32) if self.call.broadcast else self.queries()
        # Hashed along lanes, which takes far fewer registers, and then transposed.
        index = jax.lax.broadcasted_iota(jnp.int32, (1, self.call.tile.keys // 2), 1)
        of_keys = column(dropout.word(seed[1], row, head, dropout.first_keys(self.first_key, index)))
        words = dropout.meet(dropout.word(seed[0], row, head, query), of_keys)
        bits = [x.reshape(-1, dropout.PARTNER, x.shape[1]) for x in dropout.both(words)]
        bits = jnp.concatenate(bits, axis=1).reshape(self.call.tile.keys, -1)
        return dropout.keeps(bits, self.call.rate)

    def lanes(self, head):
        """Returns two slices of the lanes of blocks: for a query head, and for the key head that serves it."""
        group, size = head // self.call.repeats, self.call.head_dim
        return slice(head * size, (head + 1) * size), slice(group * size, (group + 1) * size)

    def when_visible(self, function, skip):
        """Calls `function(masked)`; `masked` is False if `visibility` finds that all keys are visible to all queries.

        Args:
          skip: whether to skip the call if `visibility` finds that no key is visible.
        """
        if not self.call.masked:
            function(False)
            return
        some, every = self.visibility()
        pl.when(every)(functools.partial(function, False))
        some = jnp.logical_not(every) & (some if skip else True)
        pl.when(some)(functools.partial(function, True))

    def nearest_key_tile(self):
        """Returns the index of the tile of keys to fetch.

        This is the index of this tile's keys. If causality hides all of these keys, it is the index of the last visible
        tile of keys, or 0. Tiles that causality hides are thus not fetched, except tile 0.
        """
        if not self.call.causal or self.call.has_prefix:
            return self.key_tile
        last = (self.last_query - self.numbers[KEY]) // self.call.tile.keys
        return jnp.clip(last, 0, self.key_tile)

    def nearest_query_tile(self):
        """Returns the index of the tile of queries to fetch.

        This is the index of this tile's queries. If causality hides all keys from these queries, it is the index of the
        first tile of queries that attends to the keys, or of the last tile of queries.
        """
        if not self.call.causal or self.call.has_prefix:
            return self.query_tile
        first = (self.first_key - self.numbers[QUERY]) // self.call.tile.queries
        return jnp.clip(first, self.query_tile, self.call.query_tiles - 1)


def column(row):
    """Transposes [1, T] to [T, 1]."""
    return jnp.broadcast_to(row, (8, row.shape[1])).T[:, :1]
