"""Flash attention on TPUs (Pallas, Mosaic): no array of all scores, forward or backward.

A program computes a tile of scores, keys × queries, for several heads. The maximum and the sum of a query are then
reductions over rows, the cheap direction, and values per query (its sum, its position) lie along lanes, as in memory.
Heads are concatenated in a row, as in the projections before and after attention, so that the kernel transposes
nothing. XLA still copies queries, keys and values to another layout around the kernel: for BERT-large on v5e, most of
26 GB per step.

Shapes: B batch, Q queries, K keys, N heads, G groups (key/value heads; each serves N / G consecutive heads), H
head_dim, P programs next to one another (each with n heads, N = P · n), T length of a tile.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Integer

from plm_jax.models.kernels import tiles
from plm_jax.models.kernels.context import RESIDUALS, UNSEEN
from plm_jax.models.kernels.tpu_tile import ScoreTile, TpuCall
from plm_jax.models.partitioning import device


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
    """Computes softmax(query · key + bias) · value over the keys visible to each query, [B, N, Q, H].

    A query without visible keys gets zeros, and has no gradients.

    Args:
      query_BNQH: scaled queries.
      causal: whether queries attend to no later keys.
      rate: dropout rate of the weights, if there is a seed.
      broadcast: whether all queries share a dropout mask.
      interpret: whether to interpret the kernel, on any device, slowly.
      query_ids, key_ids: int32 [B, Q] and [B, K]: equal ids see each other, keys of -1 are hidden; None: all are seen.
      prefix_lengths: int32 [B], if causal: keys before this position are visible to all queries.
      window: int32 []; keys at distances less than this are visible; 0: at any distance.
      distance_bias: float32 [N, Q + K - 1], bias of scores: entry j is for keys j - (Q - 1) positions after the query.
      seed: uint32 [2], seed of the dropout mask.
      offsets: int32 [4], numbers of this call's first row, head, query and key in the whole attention.
      tile: tile sizes; None: those of `tiles.choose`.
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
    ids = _padded_ids(call, query_ids, key_ids)
    numbers = _numbers(call, seed, offsets, window, prefix_lengths, ids)
    return _attend_padded(call, query_BNQH, key_BGKH, value_BGKH, distance_bias, numbers, ids)


def _padded_ids(call, query_ids, key_ids):
    if query_ids is None or key_ids is None:
        return None
    return _padded(query_ids, 1, call.tile.queries)[:, None], _padded(key_ids, 1, call.tile.keys, -1)[:, None]


def _attend_padded(call, query_BNQH, key_BGKH, value_BGKH, distance_bias, numbers, ids) -> jax.Array:
    """Pads queries, keys and values to whole tiles, and computes the attention [B, N, Q, H]."""
    arrays = query_BNQH, key_BGKH, value_BGKH
    query, key, value = (x.swapaxes(1, 2).reshape(call.batch, x.shape[2], -1) for x in arrays)
    query = _padded(query, 1, call.tile.queries)
    key, value = (_padded(x, 1, call.tile.keys) for x in (key, value))
    bands = _bands(call, distance_bias) if call.has_bias else None
    out: jax.Array = _attention(call, query, key, value, bands, numbers, ids)
    return out[:, : call.queries].reshape(call.batch, call.queries, call.heads, call.head_dim).swapaxes(1, 2)


def _padded(x, axis, tile, value=0):
    """Pads an axis of x to whole tiles."""
    width = [(0, -x.shape[axis] % tile if i == axis else 0) for i in range(x.ndim)]
    return jnp.pad(x, width, constant_values=value) if width[axis][1] else x


def _numbers(call, seed, offsets, window, prefix_lengths, ids):
    """Returns all scalars that programs read, concatenated: int32 [7 + at least 1 per row].

    Those of a row: its prefix, then the smallest and the largest id of each tile of queries and of keys.
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
    """Returns the bands from which `_bias` builds the biases of tiles, [P, diagonals, n, 2 T].

    In the tile of queries from iT and keys from jT, entry x is the bias of a query and a key whose offsets in the tile
    differ by x - (T - 1); the diagonal of the tile is number `i - j + (tiles of keys) - 1`.
    """
    size, both = call.tile.keys, call.query_tiles + call.key_tiles
    fill = size * call.key_tiles - call.keys, size * call.query_tiles - call.queries + 1
    reversed_ = jnp.pad(distance_bias[:, ::-1], ((0, call.programs * call.program_heads - call.heads), fill))
    parts = reversed_.reshape(call.programs, call.program_heads, both, size).swapaxes(1, 2)
    return jnp.concatenate([parts[:, :-1], parts[:, 1:]], axis=-1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(call, query, key, value, bands, numbers, ids):
    """Returns [B, Q, N · H] from queries [B, Q, N · H], keys and values [B, K, G · H], padded to whole tiles."""
    return _forward(call, query, key, value, bands, numbers, ids)[0]


def _attention_forward(call, query, key, value, bands, numbers, ids):
    out, sums = (checkpoint_name(x, RESIDUALS) for x in _forward(call, query, key, value, bands, numbers, ids))
    return out, (query, key, value, bands, numbers, ids, out, sums)


def _attention_backward(call, residuals, gradient):
    *inputs, out, sums = residuals
    of_inputs = _backward(call, *inputs, out, sums, gradient)
    return *of_inputs, None, None


_attention.defvjp(_attention_forward, _attention_backward)


def _scores(tile, blocks, head, visible):
    """Returns the scores of a head [keys, queries], float32; `visible` is a mask or None."""
    of_head, of_group = tile.lanes(head)
    scores = _dot(blocks["key"][0, :, of_group], blocks["query"][0, :, of_head], (1, 1))
    if tile.call.has_bias:
        scores = scores + _bias(blocks["bands"][0, 0, head : head + 1], tile.call.tile.keys)
    return scores if visible is None else jnp.where(visible, scores, UNSEEN)


def _bias(band, size):
    """Returns the bias [T, T] of a tile from a band [1, 2 T] of `_bands`: row j, column i is entry i - j + T - 1.

    Rows a multiple of 128 apart differ by a shift of whole registers, so only the first 128 are rolled.
    """
    rows = min(128, size)
    rolled = pltpu.roll(jnp.broadcast_to(band, (rows, 2 * size)), 1, 1, stride=1, stride_axis=0)
    return jnp.concatenate([rolled[:, size - at : 2 * size - at] for at in range(0, size, rows)], axis=0)


def _band(tile):
    """Sums a tile [T, T] along its diagonals, [1, 2 T]: the gradient of `_bias`."""
    size = tile.shape[0]
    rows = min(128, size)
    parts = [jnp.pad(tile[at : at + rows], ((0, 0), (size - at, at))) for at in range(0, size, rows)]
    moved = functools.reduce(jnp.add, parts)
    # Row r is rotated left by r + 1: first by multiples of eight, which leaves eight rows, then by the bits of r.
    eights = [_rotate_left(moved[at : at + 8], at + 1) for at in range(0, rows, 8)]
    eight = functools.reduce(jnp.add, eights)
    row = jax.lax.broadcasted_iota(jnp.int32, eight.shape, 0)
    for bit in (1, 2, 4):
        eight = jnp.where(row & bit != 0, _rotate_left(eight, bit), eight)
    return eight.sum(0, keepdims=True)


def _rotate_left(x, count):
    return pltpu.roll(x, x.shape[1] - count, 1)


def _dot(a, b, contract=(1, 0)):
    """Multiplies two matrices over the dimensions `contract`, float32."""
    dimensions = ((contract[:1], contract[1:]), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)


def _blocks(call, arrays, query_major):
    """Returns the block specifications of a program's inputs, by name; arguments as in `_run`."""
    size, heads, groups = call.tile, call.program_heads, call.tile.groups

    def spec(shape, index):
        def index_map(program, row, outer, inner, numbers):
            i, j = (outer, inner) if query_major else (inner, outer)
            tile = ScoreTile(call, numbers, row, program, i, j)
            i, j = (i, tile.nearest_key_tile()) if query_major else (tile.nearest_query_tile(), j)
            return index(row, program, i, j)

        return pl.BlockSpec(shape, index_map)

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
    """Runs a kernel over P programs × B rows × tiles; the last two with queries in the outer loop, or keys.

    Args:
      kernel: a function of a `ScoreTile`, the blocks of `arrays` by name, those of the outputs, and the scratch memory.
      query_major: whether the outer loop is over queries.
      products: number of products of a tile's size and head_dim per head, for the cost estimate.
    """
    outer, inner = call.query_tiles, call.key_tiles
    if not query_major:
        outer, inner = inner, outer

    def body(numbers, blocks, *others):
        program, row, first, second = (pl.program_id(axis) for axis in range(4))
        tile = ScoreTile(call, numbers, row, program, *((first, second) if query_major else (second, first)))
        kernel(tile, blocks, *others)

    # The gradient of a bias is summed over rows, which are therefore sequential.
    sums_rows = call.has_bias and not query_major
    order = ("parallel", "arbitrary" if sums_rows else "parallel", "arbitrary", "arbitrary")
    scores = call.num_visible_tiles() * call.batch * call.heads * call.tile.queries * call.tile.keys
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
            flops=2 * products * call.head_dim * scores, transcendentals=scores, bytes_accessed=moved
        ),
        interpret=call.interpret,
        name=name,
    )(numbers, arrays)


# jax never removes a bare kernel whose results are not used, for example because rematerialization has saved them.
@functools.partial(jax.jit, static_argnums=0)
def _forward(call, query, key, value, bands, numbers, ids):
    """Returns the output [B, Q, N · H], and the log of the sum of exponentials per query, float32 [B, P, n, Q]."""
    arrays = _arrays(query, key, value, bands, ids)
    size, heads, lanes = call.tile, call.program_heads, call.program_heads * call.head_dim
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
    """Keeps running softmax statistics of a tile of queries: maximum, sum of exponentials, weighted sum of values."""
    call, is_single = tile.call, tile.call.key_tiles == 1

    def begin():
        tops[...] = jnp.full_like(tops, UNSEEN)
        totals[...] = jnp.zeros_like(totals)
        mixed[...] = jnp.zeros_like(mixed)

    def add(masked):
        visible = tile.visible(blocks) if masked else None
        values = blocks["value"][0].T
        for head in range(call.program_heads):
            scores = _scores(tile, blocks, head, visible)
            row, of_head, of_group = slice(head, head + 1), *tile.lanes(head)
            top = scores.max(0, keepdims=True)
            if not is_single:
                top = jnp.maximum(top, tops[row])
            weights = jnp.exp(scores - top)
            total = weights.sum(0, keepdims=True)
            if call.rate:
                weights = jnp.where(tile.keep_mask(head), weights, 0.0)
            new = _dot(values[of_group], weights.astype(values.dtype))
            if not is_single:
                shrink = jnp.exp(tops[row] - top)
                total, new = totals[row] * shrink + total, mixed[of_head] * shrink + new
            tops[row], totals[row], mixed[of_head] = top, total, new

    def end():
        top, total = tops[...], totals[...]
        has_visible = top > UNSEEN / 2
        total = jnp.where(has_visible, total, 1.0)
        sums[0, 0] = jnp.where(has_visible, top + jnp.log(total), 0.0)
        share = jnp.where(has_visible, 1 / (total * (1 - call.rate)), 0.0)
        for head in range(call.program_heads):
            of_head = tile.lanes(head)[0]
            mixed[of_head] = mixed[of_head] * share[head : head + 1]
        out[0] = mixed[...].T.astype(out.dtype)

    if not is_single:
        _when(tile.key_tile == 0, begin)
    tile.when_visible(add, skip=not is_single)
    _when(is_single or tile.key_tile == call.key_tiles - 1, end)


@functools.partial(jax.jit, static_argnums=0)
def _backward(call, query, key, value, bands, numbers, ids, out, sums, gradient):
    """Returns the gradients of query, key, value and bands.

    One pass is used if the gradients of all queries of a row fit in VMEM, otherwise two.
    """
    arrays = _arrays(query, key, value, bands, ids, out=out, gradient=gradient, sums=sums)
    size, lanes, group_lanes = call.tile, call.program_heads * call.head_dim, call.tile.groups * call.head_dim
    one_pass = tiles.queries_fit(query.shape[1], lanes, query.dtype.itemsize, call.device_kind)
    rows = query.shape[1] if one_pass else size.queries
    of_queries = [jax.ShapeDtypeStruct(query.shape, query.dtype)]
    query_specs = [pl.BlockSpec((1, rows, lanes), lambda p, b, i, j, _: (b, 0 if one_pass else i, p))]
    query_scratch = [pltpu.VMEM((rows // size.queries, lanes, size.queries), jnp.float32)]
    of_keys = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (key, value)]
    key_specs = [pl.BlockSpec((1, size.keys, group_lanes), lambda p, b, j, i, _: (b, j, p))] * 2
    key_scratch = [pltpu.VMEM((group_lanes, size.keys), jnp.float32)] * 2
    if bands is not None:
        of_keys.append(jax.ShapeDtypeStruct(bands.shape, jnp.float32))
        key_specs.append(pl.BlockSpec((1, *bands.shape[1:]), lambda p, b, j, i, _: (p, 0, 0, 0)))

    def run(name, kernel, specs, shapes, scratch, query_major, products):
        return _run(call, name, kernel, numbers, arrays, specs, shapes, scratch, query_major, products)

    if one_pass:
        specs, shapes, scratch = query_specs + key_specs, of_queries + of_keys, query_scratch + key_scratch
        gradients = run("flash_backward", _both_kernel, specs, shapes, scratch, False, 5)
    else:
        gradients = run("flash_dq", _query_kernel, query_specs, of_queries, query_scratch, True, 3)
        gradients += run("flash_dkv", _key_kernel, key_specs, of_keys, key_scratch, False, 4)
    return (*gradients, *[None] * (bands is None))


def _both_kernel(tile, blocks, of_query, of_key, of_value, *others):
    *of_bands, query_scratch, key_scratch, value_scratch = others
    _gradients(tile, blocks, (of_query, query_scratch), (of_key, of_value, key_scratch, value_scratch), of_bands)


def _query_kernel(tile, blocks, of_query, scratch):
    _gradients(tile, blocks, (of_query, scratch), None, [])


def _key_kernel(tile, blocks, of_key, of_value, *others):
    *of_bands, key_scratch, value_scratch = others
    _gradients(tile, blocks, None, (of_key, of_value, key_scratch, value_scratch), of_bands)


def _gradients(tile, blocks, for_queries, for_keys, of_bands):
    """Accumulates a tile's contribution to the gradients of its queries, of its keys and values, or of all.

    For o = Σ w v with w = w' keep / (1 - rate) and w' = softmax(s), the gradient of s is
    w' (keep (g · v) / (1 - rate) - g · o). All sums lack the factor 1 / (1 - rate) until they are complete.
    """
    call, i, j = tile.call, tile.query_tile, tile.key_tile
    share = 1 - call.rate
    if for_queries is not None:
        of_query, query_scratch = for_queries
        slot = _query_slot(tile, query_scratch)
    if for_keys is not None:
        of_key, of_value, key_scratch, value_scratch = for_keys

    def begin_queries():
        query_scratch[slot] = jnp.zeros(query_scratch.shape[1:], jnp.float32)

    def begin_keys():
        key_scratch[...] = jnp.zeros_like(key_scratch)
        value_scratch[...] = jnp.zeros_like(value_scratch)

    def begin_bands():
        of_bands[0][...] = jnp.zeros_like(of_bands[0])

    def end_queries():
        first = pl.multiple_of(i * call.tile.queries, call.tile.queries) if query_scratch.shape[0] > 1 else 0
        rows = pl.ds(first, call.tile.queries)
        of_query[0, rows] = (query_scratch[slot] / share).T.astype(of_query.dtype)

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
    add = functools.partial(_add_gradients, tile, blocks, for_queries, for_keys, of_bands)
    tile.when_visible(add, skip=True)
    if for_queries is not None:
        _when(not several_keys or j == call.key_tiles - 1, end_queries)
    if for_keys is not None:
        _when(not several_queries or i == call.query_tiles - 1, end_keys)


def _query_slot(tile, query_scratch):
    """Returns the index in the scratch memory of a tile's queries."""
    return tile.query_tile if query_scratch.shape[0] > 1 else 0


def _add_gradients(tile, blocks, for_queries, for_keys, of_bands, masked):
    """Adds the gradients of one tile of scores to the scratch memory and the bands."""
    call, share = tile.call, 1 - tile.call.rate
    visible = tile.visible(blocks) if masked else None
    query, key, gradient = (blocks[name][0].T for name in ("query", "key", "gradient"))
    mixed = gradient.astype(jnp.float32) * blocks["out"][0].T.astype(jnp.float32)
    for head in range(call.program_heads):
        of_head, of_group = tile.lanes(head)
        weights = jnp.exp(_scores(tile, blocks, head, visible) - blocks["sums"][0, 0, head : head + 1])
        of_weights = _dot(blocks["value"][0, :, of_group], gradient[of_head])
        dropped = weights
        if call.rate:
            keep = tile.keep_mask(head)
            dropped, of_weights = jnp.where(keep, weights, 0.0), jnp.where(keep, of_weights, 0.0)
        of_scores = weights * (of_weights - mixed[of_head].sum(0, keepdims=True) * share)
        if of_bands:
            at = 0, tile.query_tile - tile.key_tile + call.key_tiles - 1, slice(head, head + 1)
            of_bands[0][at] += _band(of_scores) / share
        of_scores = of_scores.astype(query.dtype)
        if for_keys is not None:
            *_, key_scratch, value_scratch = for_keys
            value_scratch[of_group] += _dot(gradient[of_head], dropped.astype(query.dtype), (1, 1))
            key_scratch[of_group] += _dot(query[of_head], of_scores, (1, 1))
        if for_queries is not None:
            _, query_scratch = for_queries
            query_scratch[_query_slot(tile, query_scratch), of_head] += _dot(key[of_group], of_scores)


def _when(condition, function):
    """Calls a function, under a branch unless the condition is True."""
    if condition is True:
        function()
    else:
        pl.when(condition)(function)
