"""Flash attention on TPUs (Pallas, Mosaic): no array of all scores, forward or backward.

A program computes a tile of scores, keys × queries, for several heads. So a query's maximum and sum run over rows, the
cheap direction, and what is kept of a query (its sum, its places) lies along lanes, as it does in memory. Heads lie
side by side in a row, as the products before and after attention have them, so that the kernel transposes nothing. XLA
still copies queries, keys and values around it into another layout: of BERT-large on v5e, most of 26 GB a step.

Shapes: B batch, Q queries, K keys, N heads, G groups (key/value heads; each serves N / G heads in a row), H head_dim,
P programs beside one another (each of n heads, N = P · n), T places of a tile.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Integer

from plm_jax.models.kernels import tiles
from plm_jax.models.kernels.context import RESIDUALS, UNSEEN
from plm_jax.models.kernels.dropout import meet, word
from plm_jax.models.partitioning import device

# Numbers that programs read, before what is given for each row: where each stands in the array of all.
SEED, ROW, HEAD, QUERY, KEY, WINDOW, ROWS = 0, 2, 3, 4, 5, 6, 7


@dataclasses.dataclass(frozen=True)
class TpuCall:
    """What is settled of a call when it is traced.

    Attributes:
      batch, heads, groups, head_dim: B, N, G, H.
      queries, keys: Q and K as they came, before they are filled up to whole tiles.
      tile: how the work is cut up.
      causal, rate, broadcast, interpret: as of `flash`.
      has_ids, has_prefix, has_window, has_bias: which of the optional arrays there are.
      device_kind: as jax calls what this is traced for.
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
    has_prefix: bool
    has_window: bool
    has_bias: bool
    device_kind: str

    @property
    def query_tiles(self) -> int:
        """How many tiles the queries fill."""
        return -(-self.queries // self.tile.queries)

    @property
    def key_tiles(self) -> int:
        """How many tiles the keys fill."""
        return -(-self.keys // self.tile.keys)

    @property
    def repeats(self) -> int:
        """Heads of queries that a head of keys serves."""
        return self.heads // self.groups

    @property
    def own_heads(self) -> int:
        """Heads of queries in a program."""
        return self.tile.groups * self.repeats

    @property
    def programs(self) -> int:
        """P."""
        return -(-self.groups // self.tile.groups)

    @property
    def masked(self) -> bool:
        """Whether some queries may not see some keys."""
        filled = self.keys % self.tile.keys != 0
        return self.causal or self.has_ids or self.has_window or filled

    def seen_tiles(self) -> int:
        """How many tiles of scores are computed for a head, if causality alone leaves any out."""
        if not self.causal or self.has_prefix:
            return self.query_tiles * self.key_tiles
        if self.queries < self.keys:  # A part of a row, early on one device and late on another: half on average.
            return -(-self.query_tiles * (self.key_tiles + 1) // 2)
        last = ((i + 1) * self.tile.queries - 1 for i in range(self.query_tiles))
        return sum(min(place // self.tile.keys + 1, self.key_tiles) for place in last)


def flash(
    query_BNQH: Float[Array, "batch heads queries head_dim"],
    key_BGKH: Float[Array, "batch groups keys head_dim"],
    value_BGKH: Float[Array, "batch groups keys head_dim"],
    *,
    causal: bool,
    rate: float,
    broadcast: bool,
    interpret: bool,
    query_ids: Integer[Array, "batch queries"] | None = None,
    key_ids: Integer[Array, "batch keys"] | None = None,
    prefix_lengths: Integer[Array, " batch"] | None = None,
    window=None,
    distance_bias: Float[Array, "heads distances"] | None = None,
    seed=None,
    offsets,
    tile: tiles.Tile | None = None,
) -> Float[Array, "batch heads queries head_dim"]:
    """softmax(query · key + bias) · value over the keys that each query sees, [B, N, Q, H].

    A query that sees nothing gets zeros, and gives no gradients.

    Args:
      query_BNQH: scaled already.
      causal: a query sees no key after its own place.
      rate: the share of weights that is dropped where there is a seed.
      broadcast: what is dropped is the same for all queries.
      interpret: runs anywhere, slowly.
      query_ids, key_ids: int32 [B, Q] and [B, K]: equal ids see each other; keys of -1 nobody does. None: all do.
      prefix_lengths: int32 [B], where causal: all queries see keys before that place.
      window: int32 []; keys less than so many places away are seen; 0: all.
      distance_bias: float32 [N, Q + K - 1], added to scores: entry j where the key's place in this call less the
        query's is j - (Q - 1).
      seed: uint32 [2], of the dropped weights.
      offsets: int32 [4], what this call's first row, head, query's place and key's place are among all.
      tile: how the work is cut up; None: as `tiles.choose` says.
    """
    batch, heads, queries, head_dim = query_BNQH.shape
    groups, keys = key_BGKH.shape[1:3]
    call = TpuCall(
        batch=batch,
        heads=heads,
        groups=groups,
        head_dim=head_dim,
        queries=queries,
        keys=keys,
        tile=tile or tiles.choose(groups, heads // groups, head_dim, queries, keys, biased=distance_bias is not None),
        causal=causal,
        rate=rate if seed is not None else 0.0,
        broadcast=broadcast,
        interpret=interpret,
        has_ids=query_ids is not None,
        has_prefix=prefix_lengths is not None,
        has_window=window is not None,
        has_bias=distance_bias is not None,
        device_kind=device().device_kind,
    )
    query, key, value = (x.swapaxes(1, 2).reshape(batch, x.shape[2], -1) for x in (query_BNQH, key_BGKH, value_BGKH))
    query = _filled(query, 1, call.tile.queries)
    key, value = (_filled(x, 1, call.tile.keys) for x in (key, value))
    ids = None
    if query_ids is not None and key_ids is not None:
        ids = _filled(query_ids, 1, call.tile.queries)[:, None], _filled(key_ids, 1, call.tile.keys, -1)[:, None]
    numbers = _numbers(call, seed, offsets, window, prefix_lengths, ids)
    bands = _bands(call, distance_bias) if call.has_bias else None
    out: jax.Array = _attention(call, query, key, value, bands, numbers, ids)
    return out[:, :queries].reshape(batch, queries, heads, head_dim).swapaxes(1, 2)


def _filled(x, axis, tile, value=0):
    """x with an axis filled up to whole tiles."""
    width = [(0, -x.shape[axis] % tile if i == axis else 0) for i in range(x.ndim)]
    return jnp.pad(x, width, constant_values=value) if width[axis][1] else x


def _numbers(call, seed, offsets, window, prefix_lengths, ids):
    """Everything that programs read as numbers, one after another: int32 [7 + 1 or more a row].

    Of a row: its prefix, then of each tile of queries and of keys the least and the greatest id.
    """
    seed = jnp.zeros(2, jnp.int32) if seed is None else jax.lax.bitcast_convert_type(seed, jnp.int32)
    window = jnp.zeros((), jnp.int32) if window is None else window
    of_rows = []
    if call.has_prefix:
        of_rows.append(prefix_lengths[:, None])
    if call.has_ids:
        for of, size in zip(ids, (call.tile.queries, call.tile.keys), strict=True):
            tiled = of.reshape(call.batch, -1, size)
            of_rows += [tiled.min(-1), tiled.max(-1)]
    rows = jnp.concatenate(of_rows, axis=1).reshape(-1) if of_rows else jnp.zeros(0, jnp.int32)
    return jnp.concatenate([seed, offsets, window[None], rows]).astype(jnp.int32)


def _bands(call, distance_bias):
    """What a tile's bias is made of, [P, diagonals, n, 2 T], for each diagonal of tiles.

    In the tile of queries i from iT on and keys j from jT on, entry x is the bias where the query's place in the tile
    less the key's is x - (T - 1); `i - j + (tiles of keys) - 1` is the number of their diagonal.
    """
    size, both = call.tile.keys, call.query_tiles + call.key_tiles
    fill = size * call.key_tiles - call.keys, size * call.query_tiles - call.queries + 1
    reversed_ = jnp.pad(distance_bias[:, ::-1], ((0, call.programs * call.own_heads - call.heads), fill))
    parts = reversed_.reshape(call.programs, call.own_heads, both, size).swapaxes(1, 2)
    return jnp.concatenate([parts[:, :-1], parts[:, 1:]], axis=-1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(call, query, key, value, bands, numbers, ids):
    """[B, Q, N · H] of queries [B, Q, N · H], keys and values [B, K, G · H], whole tiles."""
    return _forward(call, query, key, value, bands, numbers, ids)[0]


def _attention_forward(call, query, key, value, bands, numbers, ids):
    out, sums = (checkpoint_name(x, RESIDUALS) for x in _forward(call, query, key, value, bands, numbers, ids))
    return out, (query, key, value, bands, numbers, ids, out, sums)


def _attention_backward(call, residuals, gradient):
    *inputs, out, sums = residuals
    of_inputs = _backward(call, *inputs, out, sums, gradient)
    return *of_inputs, None, None


_attention.defvjp(_attention_forward, _attention_backward)


class ScoreTile:
    """One tile of scores in a program: what of its row, heads, queries and keys it is, and what is seen there."""

    def __init__(self, call, numbers, row, program, query_tile, key_tile):
        self.call, self.numbers = call, numbers
        self.row, self.program = row, program
        self.query_tile, self.key_tile = query_tile, key_tile
        self.first_query = query_tile * call.tile.queries + numbers[QUERY]
        self.first_key = key_tile * call.tile.keys + numbers[KEY]
        self.last_query = self.first_query + call.tile.queries - 1
        self.last_key = self.first_key + call.tile.keys - 1

    def of_row(self, number):
        """A number of this row."""
        call = self.call
        size = call.has_prefix + 2 * call.has_ids * (call.query_tiles + call.key_tiles)
        return self.numbers[ROWS + self.row * size + number]

    @property
    def prefix(self):
        """Of this row, how many keys all queries see."""
        return self.of_row(0)

    @property
    def window(self):
        """As a number of places, where 0 stands for all."""
        window = self.numbers[WINDOW]
        return jnp.where(window == 0, jnp.iinfo(jnp.int32).max, window)

    def ids(self):
        """The least and greatest of the queries' and of the keys' ids."""
        call, first = self.call, int(self.call.has_prefix)
        of_queries = [self.of_row(first + i * call.query_tiles + self.query_tile) for i in (0, 1)]
        first += 2 * call.query_tiles
        return *of_queries, *(self.of_row(first + i * call.key_tiles + self.key_tile) for i in (0, 1))

    def seen(self):
        """(Whether some query may see some key, whether every one sees every one)."""
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
            least_query, greatest_query, least_key, greatest_key = self.ids()
            some = some & (least_query <= greatest_key) & (least_key <= greatest_query)
            alike = (least_query == greatest_query) & (least_key == greatest_key) & (least_query == least_key)
            every = every & alike
        if call.keys % call.tile.keys:
            every = every & (self.key_tile < call.key_tiles - 1)
        return some, every

    def queries(self):
        """Their places, int32 [1, T]."""
        return self.first_query + jax.lax.broadcasted_iota(jnp.int32, (1, self.call.tile.queries), 1)

    def keys(self):
        """Their places, int32 [T, 1]."""
        return self.first_key + jax.lax.broadcasted_iota(jnp.int32, (self.call.tile.keys, 1), 0)

    def visible(self, blocks):
        """bool [keys, queries]."""
        call, queries, keys = self.call, self.queries(), self.keys()
        found = []
        if call.causal:
            found.append((keys <= queries) | (keys < self.prefix) if call.has_prefix else keys <= queries)
        if call.has_window:
            found.append(jnp.abs(keys - queries) < self.window)
        if call.has_ids:
            found.append(_column(blocks["key_ids"][0]) == blocks["query_ids"][0])
        if call.keys % call.tile.keys:
            found.append(keys < call.keys + self.numbers[KEY])
        return functools.reduce(jnp.logical_and, found)

    def kept(self, head):
        """Which weights of a head of this program are not dropped, bool [keys, queries or 1]."""
        seed = self.numbers[SEED], self.numbers[SEED + 1]
        row = self.numbers[ROW] + self.row
        head = self.numbers[HEAD] + self.program * self.call.own_heads + head
        query = jnp.zeros((1, 1), jnp.int32) if self.call.broadcast else self.queries()
        # Along lanes, many fewer registers, and only then down the rows.
        keys = self.first_key + jax.lax.broadcasted_iota(jnp.int32, (1, self.call.tile.keys), 1)
        of_keys = _column(word(seed[1], row, head, keys))
        return meet(word(seed[0], row, head, query), of_keys, self.call.rate)

    def lanes(self, head):
        """Where a head of this program, and the head of keys that serves it, lie within their blocks."""
        group, size = head // self.call.repeats, self.call.head_dim
        return slice(head * size, (head + 1) * size), slice(group * size, (group + 1) * size)

    def scores(self, blocks, head, visible):
        """[keys, queries] of a head, float32; `visible` as above, or None."""
        of_head, of_group = self.lanes(head)
        scores = _dot(blocks["key"][0, :, of_group], blocks["query"][0, :, of_head], (1, 1))
        if self.call.has_bias:
            scores = scores + _bias(blocks["bands"][0, 0, head : head + 1], self.call.tile.keys)
        return scores if visible is None else jnp.where(visible, scores, UNSEEN)

    def where_seen(self, function, skip):
        """`function(masked)` if some query sees some key, or always; with masks where one does not see all."""
        if not self.call.masked:
            function(False)
            return
        some, every = self.seen()
        pl.when(every)(functools.partial(function, False))
        some = jnp.logical_not(every) & (some if skip else True)
        pl.when(some)(functools.partial(function, True))

    def nearest_key_tile(self):
        """The tile of keys, of those that its queries may see, nearest to this one: what is skipped is not fetched."""
        if not self.call.causal or self.call.has_prefix:
            return self.key_tile
        last = (self.last_query - self.numbers[KEY]) // self.call.tile.keys
        return jnp.clip(last, 0, self.key_tile)

    def nearest_query_tile(self):
        """The tile of queries, of those that may see its keys, nearest to this one."""
        if not self.call.causal or self.call.has_prefix:
            return self.query_tile
        first = (self.first_key - self.numbers[QUERY]) // self.call.tile.queries
        return jnp.clip(first, self.query_tile, self.call.query_tiles - 1)


def _column(row):
    """[1, T] → [T, 1]."""
    return jnp.broadcast_to(row, (8, row.shape[1])).T[:, :1]


def _bias(band, size):
    """The tile [T, T] of a band [1, 2 T] as of `_bands`: row j, column i is entry i - j + T - 1.

    Rows a multiple of 128 apart are the same moved by whole registers: only the first so many are rolled.
    """
    rows = min(128, size)
    rolled = pltpu.roll(jnp.broadcast_to(band, (rows, 2 * size)), 1, 1, stride=1, stride_axis=0)
    return jnp.concatenate([rolled[:, size - at : 2 * size - at] for at in range(0, size, rows)], axis=0)


def _band(tile):
    """The sums of a tile [T, T] along its diagonals, [1, 2 T]: the gradient of `_bias`."""
    size = tile.shape[0]
    rows = min(128, size)
    parts = [jnp.pad(tile[at : at + rows], ((0, 0), (size - at, at))) for at in range(0, size, rows)]
    moved = functools.reduce(jnp.add, parts)
    # Row r goes r + 1 places to the left: first the eights of r, so that eight rows are left, then its bits.
    eights = [_to_left(moved[at : at + 8], at + 1) for at in range(0, rows, 8)]
    eight = functools.reduce(jnp.add, eights)
    row = jax.lax.broadcasted_iota(jnp.int32, eight.shape, 0)
    for bit in (1, 2, 4):
        eight = jnp.where(row & bit != 0, _to_left(eight, bit), eight)
    return eight.sum(0, keepdims=True)


def _to_left(x, places):
    return pltpu.roll(x, x.shape[1] - places, 1)


def _dot(a, b, contract=(1, 0)):
    """The product of two matrices over these of their dimensions, float32."""
    dimensions = ((contract[:1], contract[1:]), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _blocks(call, arrays, query_major):
    """The specifications of what a program reads, by names: see `_run`."""
    size, heads, groups = call.tile, call.own_heads, call.tile.groups

    def spec(shape, index):
        def placed(program, row, outer, inner, numbers):
            i, j = (outer, inner) if query_major else (inner, outer)
            tile = ScoreTile(call, numbers, row, program, i, j)
            i, j = (i, tile.nearest_key_tile()) if query_major else (tile.nearest_query_tile(), j)
            return index(row, program, i, j)

        return pl.BlockSpec(shape, placed)

    of_query = spec((1, size.queries, heads * call.head_dim), lambda b, p, i, j: (b, i, p))
    of_key = spec((1, size.keys, groups * call.head_dim), lambda b, p, i, j: (b, j, p))
    diagonal = call.key_tiles - 1
    specs = {
        **dict.fromkeys(("query", "out", "gradient"), of_query),
        **dict.fromkeys(("key", "value"), of_key),
        "query_ids": spec((1, 1, size.queries), lambda b, p, i, j: (b, 0, i)),
        "key_ids": spec((1, 1, size.keys), lambda b, p, i, j: (b, 0, j)),
        "bands": spec((1, 1, heads, 2 * size.keys), lambda b, p, i, j: (p, i - j + diagonal, 0, 0)),
        "sums": spec((1, 1, heads, size.queries), lambda b, p, i, j: (b, p, 0, i)),
    }
    return {name: specs[name] for name in arrays}


def _arrays(query, key, value, bands, ids, **others):
    arrays = {"query": query, "key": key, "value": value} | others
    if bands is not None:
        arrays["bands"] = bands
    if ids is not None:
        arrays |= dict(zip(("query_ids", "key_ids"), ids, strict=True))
    return arrays


def _run(call, name, kernel, numbers, arrays, out_specs, out_shape, scratch_shapes, query_major, products):
    """A kernel over P programs × B rows × tiles; the last two by queries first, or by keys first.

    Args:
      kernel: a function of a `ScoreTile`, the blocks of `arrays` by names, those of the outputs and the scratch memory.
      products: of a tile's size and head_dim that it makes for each head.
    """
    outer, inner = call.query_tiles, call.key_tiles
    if not query_major:
        outer, inner = inner, outer

    def body(numbers, blocks, *others):
        program, row, first, second = (pl.program_id(axis) for axis in range(4))
        tile = ScoreTile(call, numbers, row, program, *((first, second) if query_major else (second, first)))
        kernel(tile, blocks, *others)

    # Where rows are summed up, of a bias' gradient, they come one after another.
    sums_rows = call.has_bias and not query_major
    order = ("parallel", "arbitrary" if sums_rows else "parallel", "arbitrary", "arbitrary")
    seen = call.seen_tiles() * call.batch * call.heads * call.tile.queries * call.tile.keys
    moved = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((arrays, out_shape)))
    return pl.pallas_call(
        body,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(call.programs, call.batch, outer, inner),
            in_specs=[_blocks(call, arrays, query_major)],
            out_specs=out_specs,
            scratch_shapes=scratch_shapes,
        ),
        out_shape=out_shape,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=order, vmem_limit_bytes=tiles.vmem_bytes(call.device_kind)
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * products * call.head_dim * seen, transcendentals=seen, bytes_accessed=moved
        ),
        interpret=call.interpret,
        name=name,
    )(numbers, arrays)


# jax never removes a bare kernel whose results nobody uses, as where rematerialisation finds them saved.
@functools.partial(jax.jit, static_argnums=0)
def _forward(call, query, key, value, bands, numbers, ids):
    """(The output [B, Q, N · H], of each query the logarithm of the sum of exponentials, float32 [B, P, n, Q])."""
    arrays = _arrays(query, key, value, bands, ids)
    size, heads, lanes = call.tile, call.own_heads, call.own_heads * call.head_dim
    sums = jax.ShapeDtypeStruct((call.batch, call.programs, heads, query.shape[1]), jnp.float32)
    return _run(
        call,
        "flash_forward",
        _forward_kernel,
        numbers,
        arrays,
        out_specs=[
            pl.BlockSpec((1, size.queries, lanes), lambda p, b, i, j, _: (b, i, p)),
            pl.BlockSpec((1, 1, heads, size.queries), lambda p, b, i, j, _: (b, p, 0, i)),
        ],
        out_shape=[jax.ShapeDtypeStruct(query.shape, query.dtype), sums],
        scratch_shapes=[
            pltpu.VMEM((heads, size.queries), jnp.float32),
            pltpu.VMEM((heads, size.queries), jnp.float32),
            pltpu.VMEM((lanes, size.queries), jnp.float32),
        ],
        query_major=True,
        products=2,
    )


def _forward_kernel(tile, blocks, out, sums, tops, totals, mixed):
    """What queries have seen so far: the greatest score, the sum of exponentials, the values mixed by these."""
    call, alone = tile.call, tile.call.key_tiles == 1

    def begin():
        tops[...] = jnp.full_like(tops, UNSEEN)
        totals[...] = jnp.zeros_like(totals)
        mixed[...] = jnp.zeros_like(mixed)

    def add(masked):
        visible = tile.visible(blocks) if masked else None
        values = blocks["value"][0].T
        for head in range(call.own_heads):
            scores = tile.scores(blocks, head, visible)
            own, of_head, of_group = slice(head, head + 1), *tile.lanes(head)
            top = scores.max(0, keepdims=True)
            if not alone:
                top = jnp.maximum(top, tops[own])
            weights = jnp.exp(scores - top)
            total = weights.sum(0, keepdims=True)
            if call.rate:
                weights = jnp.where(tile.kept(head), weights, 0.0)
            new = _dot(values[of_group], weights.astype(values.dtype))
            if not alone:
                shrink = jnp.exp(tops[own] - top)
                total, new = totals[own] * shrink + total, mixed[of_head] * shrink + new
            tops[own], totals[own], mixed[of_head] = top, total, new

    def end():
        top, total = tops[...], totals[...]
        saw = top > UNSEEN / 2
        total = jnp.where(saw, total, 1.0)
        sums[0, 0] = jnp.where(saw, top + jnp.log(total), 0.0)
        share = jnp.where(saw, 1 / (total * (1 - call.rate)), 0.0)
        for head in range(call.own_heads):
            of_head = tile.lanes(head)[0]
            mixed[of_head] = mixed[of_head] * share[head : head + 1]
        out[0] = mixed[...].T.astype(out.dtype)

    if not alone:
        _when(tile.key_tile == 0, begin)
    tile.where_seen(add, skip=not alone)
    _when(alone or tile.key_tile == call.key_tiles - 1, end)


@functools.partial(jax.jit, static_argnums=0)
def _backward(call, query, key, value, bands, numbers, ids, out, sums, gradient):
    """The gradients of query, key, value and bands.

    In one pass, in which those of all a row's queries stay in fast memory, or where they do not fit there in two.
    """
    arrays = _arrays(query, key, value, bands, ids, out=out, gradient=gradient, sums=sums)
    size, lanes, group_lanes = call.tile, call.own_heads * call.head_dim, call.tile.groups * call.head_dim
    whole = tiles.queries_fit(query.shape[1], lanes, query.dtype.itemsize, call.device_kind)
    rows = query.shape[1] if whole else size.queries
    of_queries = [jax.ShapeDtypeStruct(query.shape, query.dtype)]
    query_specs = [pl.BlockSpec((1, rows, lanes), lambda p, b, i, j, _: (b, 0 if whole else i, p))]
    query_scratch = [pltpu.VMEM((rows // size.queries, lanes, size.queries), jnp.float32)]
    of_keys = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (key, value)]
    key_specs = [pl.BlockSpec((1, size.keys, group_lanes), lambda p, b, j, i, _: (b, j, p))] * 2
    key_scratch = [pltpu.VMEM((group_lanes, size.keys), jnp.float32)] * 2
    if bands is not None:
        of_keys.append(jax.ShapeDtypeStruct(bands.shape, jnp.float32))
        key_specs.append(pl.BlockSpec((1, *bands.shape[1:]), lambda p, b, j, i, _: (p, 0, 0, 0)))

    def run(name, kernel, specs, shapes, scratch, query_major, products):
        return _run(call, name, kernel, numbers, arrays, specs, shapes, scratch, query_major, products)

    if whole:
        specs, shapes, scratch = query_specs + key_specs, of_queries + of_keys, query_scratch + key_scratch
        found = run("flash_backward", _both_kernel, specs, shapes, scratch, False, 5)
    else:
        found = run("flash_dq", _query_kernel, query_specs, of_queries, query_scratch, True, 3)
        found += run("flash_dkv", _key_kernel, key_specs, of_keys, key_scratch, False, 4)
    return (*found, *[None] * (bands is None))


def _both_kernel(tile, blocks, of_query, of_key, of_value, *others):
    *of_bands, query_scratch, key_scratch, value_scratch = others
    _gradients(tile, blocks, (of_query, query_scratch), (of_key, of_value, key_scratch, value_scratch), of_bands)


def _query_kernel(tile, blocks, of_query, scratch):
    _gradients(tile, blocks, (of_query, scratch), None, [])


def _key_kernel(tile, blocks, of_key, of_value, *others):
    *of_bands, key_scratch, value_scratch = others
    _gradients(tile, blocks, None, (of_key, of_value, key_scratch, value_scratch), of_bands)


def _gradients(tile, blocks, for_queries, for_keys, of_bands):
    """Adds a tile's part to the gradients of its queries, or keys and values, or all.

    With o = Σ w v, w = softmax(s) kept / (1 - rate): of s it is w' (kept (g · v) / (1 - rate) - g · o), w' the weights
    before any is dropped. All is left times 1 - rate until the sums are complete.
    """
    call, i, j = tile.call, tile.query_tile, tile.key_tile
    share = 1 - call.rate
    if for_queries is not None:
        of_query, query_scratch = for_queries
        i_held = i if query_scratch.shape[0] > 1 else 0
    if for_keys is not None:
        of_key, of_value, key_scratch, value_scratch = for_keys

    def begin_queries():
        query_scratch[i_held] = jnp.zeros(query_scratch.shape[1:], jnp.float32)

    def begin_keys():
        key_scratch[...] = jnp.zeros_like(key_scratch)
        value_scratch[...] = jnp.zeros_like(value_scratch)

    def begin_bands():
        of_bands[0][...] = jnp.zeros_like(of_bands[0])

    def add(masked):
        visible = tile.visible(blocks) if masked else None
        query, key, gradient = (blocks[name][0].T for name in ("query", "key", "gradient"))
        mixed = gradient.astype(jnp.float32) * blocks["out"][0].T.astype(jnp.float32)
        for head in range(call.own_heads):
            of_head, of_group = tile.lanes(head)
            weights = jnp.exp(tile.scores(blocks, head, visible) - blocks["sums"][0, 0, head : head + 1])
            of_weights = _dot(blocks["value"][0, :, of_group], gradient[of_head])
            kept = weights
            if call.rate:
                here = tile.kept(head)
                kept, of_weights = jnp.where(here, weights, 0.0), jnp.where(here, of_weights, 0.0)
            of_scores = weights * (of_weights - mixed[of_head].sum(0, keepdims=True) * share)
            if of_bands:
                at = 0, i - j + call.key_tiles - 1, slice(head, head + 1)
                of_bands[0][at] += _band(of_scores) / share
            of_scores = of_scores.astype(query.dtype)
            if for_keys is not None:
                value_scratch[of_group] += _dot(gradient[of_head], kept.astype(query.dtype), (1, 1))
                key_scratch[of_group] += _dot(query[of_head], of_scores, (1, 1))
            if for_queries is not None:
                query_scratch[i_held, of_head] += _dot(key[of_group], of_scores)

    def end_queries():
        first = pl.multiple_of(i * call.tile.queries, call.tile.queries) if query_scratch.shape[0] > 1 else 0
        rows = pl.ds(first, call.tile.queries)
        of_query[0, rows] = (query_scratch[i_held] / share).T.astype(of_query.dtype)

    def end_keys():
        of_key[0] = (key_scratch[...] / share).T.astype(of_key.dtype)
        of_value[0] = (value_scratch[...] / share).T.astype(of_value.dtype)

    several_keys, several_queries = call.key_tiles > 1, call.query_tiles > 1
    if of_bands:
        _when((tile.row == 0) & (i == 0) & (j == 0), begin_bands)
    if for_queries is not None:
        _when(not several_keys or j == 0, begin_queries)
    if for_keys is not None:
        _when(not several_queries or i == 0, begin_keys)
    tile.where_seen(add, skip=True)
    if for_queries is not None:
        _when(not several_keys or j == call.key_tiles - 1, end_queries)
    if for_keys is not None:
        _when(not several_queries or i == call.query_tiles - 1, end_keys)


def _when(condition, function):
    """Runs it, if need be under a branch."""
    if condition is True:
        function()
    else:
        pl.when(condition)(function)
