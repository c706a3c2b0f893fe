"""Flash attention on TPUs (Pallas, Mosaic). Neither the forward nor the backward pass stores all scores.

A program computes a tile of scores for several heads. The rows of the tile are keys, and its columns are queries. The
maximum and the sum over the scores of a query are thus reductions over rows, which is the cheap direction. Values per
query, such as sums and positions, are along lanes, as in memory. The heads of a position are concatenated in memory, as
in the projections before and after attention. XLA therefore transposes nothing before and after the kernel, unless the
model computes with separate heads, for example for rotary positions.

Shapes: B batch, Q queries, K keys, N heads, G groups (key/value heads; each serves N / G consecutive heads), H
head_dim, P programs that share the heads (n heads each; P · n is at least N), T length of a tile.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Integer

from plm_jax.models.kernels import dropout, tiles, tpu_terms
from plm_jax.models.kernels.context import FIRST, RESIDUALS, UNSEEN, RelativeScores
from plm_jax.models.kernels.tpu_terms import dot
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
    query_order: Integer[Array, "batch queries"] | None = None,
    key_order: Integer[Array, "batch keys"] | None = None,
    prefix_lengths: Integer[Array, " batch"] | None = None,
    window=None,
    distance_bias: Float[Array, "heads distances"] | None = None,
    relative: RelativeScores | None = None,
    seed=None,
    offsets,
    tile: tiles.Tile | None = None,
) -> Float[Array, "batch heads queries head_dim"]:
    """Computes softmax(query · key + terms) · value over the keys visible to each query, [B, N, Q, H].

    A query without visible keys gets zeros and has no gradients.

    Args:
      query_BNQH: scaled queries.
      causal: whether each query attends only to keys up to its own position.
      rate, seed: dropout rate of the weights, and seed of the dropout mask, uint32 [2]; without a seed, no dropout.
      broadcast: whether all queries share a dropout mask.
      interpret: whether to interpret the kernel, which works on any device but is slow.
      query_ids, key_ids: int32 [B, Q] and [B, K]; queries attend only to keys with the same id, and never to id -1.
      query_order, key_order: int32 [B, Q] and [B, K], ranks; queries attend only to keys of a lower rank.
      prefix_lengths: int32 [B], if causal: keys before this position are visible to all queries.
      window: int32 []; queries attend only to keys at distances less than this. None or 0: no limit.
      distance_bias: float32 [N, Q + K - 1], bias of scores: entry j is for keys j - (Q - 1) positions after the query.
      relative: further terms of scores.
      offsets: int32 [4], indices of this call's first row, head, query and key; the last is a multiple of 16.
      tile: tile sizes; None: the sizes from `tiles.choose`.
    """
    batch, heads, queries, head_dim = query_BNQH.shape
    groups, keys = key_BGKH.shape[1:3]
    biased = distance_bias is not None or tpu_terms.has_vectors(relative)
    call = TpuCall(
        *(batch, heads, groups, head_dim, queries, keys),
        tile=tile or tiles.choose(groups, heads // groups, head_dim, queries, keys, biased=biased),
        causal=causal,
        rate=dropout.realized(rate) if seed is not None else 0.0,
        broadcast=broadcast,
        interpret=interpret,
        has_ids=query_ids is not None,
        has_order=query_order is not None,
        has_prefix=prefix_lengths is not None,
        has_window=window is not None,
        has_reverse=relative is not None and relative.reverse is not None,
        device_kind=device().device_kind,
    )
    ids = _padded_ids(call, (query_ids, key_ids), (query_order, key_order), relative)
    numbers = _numbers(call, seed, offsets, window, prefix_lengths, relative, ids)
    return _attend_padded(call, query_BNQH, key_BGKH, value_BGKH, distance_bias, relative, numbers, ids)


def _padded_ids(call, ids, order, relative):
    """Pads ids, ranks and segments to whole tiles.

    Returns:
      A dict from names, such as `query_ids` and `key_order`, to arrays [B, 1, Q] or [B, 1, K]. Pairs that are None are
      left out.
    """
    pairs = {"ids": (*ids, 0), "order": (*order, FIRST), "segments": (None, None, 0)}
    if relative is not None and relative.segments is not None:
        pairs["segments"] = *relative.segments, 0
    padded = {}
    for name, (of_queries, of_keys, value) in pairs.items():
        if of_queries is not None and of_keys is not None:
            padded[f"query_{name}"] = _padded(of_queries, 1, call.tile.queries, value)[:, None]
            padded[f"key_{name}"] = _padded(of_keys, 1, call.tile.keys, -1)[:, None]
    return padded


def _attend_padded(call, query_BNQH, key_BGKH, value_BGKH, distance_bias, relative, numbers, ids) -> jax.Array:
    """Pads queries, keys and values to whole tiles, and computes the attention [B, N, Q, H]."""
    arrays = query_BNQH, key_BGKH, value_BGKH
    query, key, value = (x.swapaxes(1, 2).reshape(call.batch, x.shape[2], -1) for x in arrays)
    query = _padded(query, 1, call.tile.queries)
    key, value = (_padded(x, 1, call.tile.keys) for x in (key, value))
    terms = tpu_terms.arrays(call, distance_bias, relative)
    out: jax.Array = _attention(call, query, key, value, terms, numbers, ids)
    return out[:, : call.queries].reshape(call.batch, call.queries, call.heads, call.head_dim).swapaxes(1, 2)


def _padded(x, axis, tile, value=0):
    """Pads an axis of x to whole tiles."""
    width = [(0, -x.shape[axis] % tile if i == axis else 0) for i in range(x.ndim)]
    return jnp.pad(x, width, constant_values=value) if width[axis][1] else x


def _numbers(call, seed, offsets, window, prefix_lengths, relative, ids):
    """Returns all scalars that programs read, concatenated in an int32 vector.

    The first seven are the seed (two numbers), the offsets (four) and the window (one); a missing seed or window is 0.
    The scalars of each row follow: the prefix length; whether the text runs backwards; and, first for ids and then for
    ranks, the minima of the tiles of queries, the maxima of the tiles of queries, the minima of the tiles of keys, and
    the maxima of the tiles of keys. A row has no scalars for features that the call does not use.
    """
    seed = jnp.zeros(2, jnp.int32) if seed is None else jax.lax.bitcast_convert_type(seed, jnp.int32)
    window = jnp.zeros((), jnp.int32) if window is None else window
    of_rows = []
    if call.has_prefix:
        of_rows.append(prefix_lengths[:, None])
    if call.has_reverse:
        of_rows.append(relative.reverse[:, None])
    for name in (name for name in ("ids", "order") if f"query_{name}" in ids):
        for axis, size in (("query", call.tile.queries), ("key", call.tile.keys)):
            tiled = ids[f"{axis}_{name}"].reshape(call.batch, -1, size)
            of_rows += [tiled.min(-1), tiled.max(-1)]
    rows = jnp.concatenate(of_rows, axis=1).reshape(-1) if of_rows else jnp.zeros(0, jnp.int32)
    return jnp.concatenate([seed, offsets, window[None], rows]).astype(jnp.int32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(call, query, key, value, terms, numbers, ids):
    """Returns the attention [B, Q, N · H] of queries [B, Q, N · H] over keys and values [B, K, G · H].

    All of these arrays are padded to whole tiles.
    """
    return _forward(call, query, key, value, terms, numbers, ids)[0]


def _attention_forward(call, query, key, value, terms, numbers, ids):
    out, sums = (checkpoint_name(x, RESIDUALS) for x in _forward(call, query, key, value, terms, numbers, ids))
    return out, (query, key, value, terms, numbers, ids, out, sums)


def _attention_backward(call, residuals, gradient):
    *inputs, out, sums = residuals
    of_inputs = _backward(call, *inputs, out, sums, gradient)
    return *of_inputs, None, None


_attention.defvjp(_attention_forward, _attention_backward)


def _scores(tile, blocks, head, visible):
    """Returns a tile of scores of a head, float32 [keys, queries]; `visible` is a mask or None."""
    of_head, of_group = tile.lanes(head)
    scores = dot(blocks["key"][0, :, of_group], blocks["query"][0, :, of_head], (1, 1))
    scores = tpu_terms.add(tile, blocks, head, scores)
    return scores if visible is None else jnp.where(visible, scores, UNSEEN)


def _blocks(call, arrays, query_major):
    """Returns a dict from the names of a program's inputs to block specifications."""
    size, heads, groups = call.tile, call.program_heads, call.tile.groups

    def spec(shape, index):
        def index_map(program, row, outer, inner, numbers):
            i, j = (outer, inner) if query_major else (inner, outer)
            tile = ScoreTile(call, numbers, row, program, i, j)
            i, j = (i, tile.nearest_key_tile()) if query_major else (tile.nearest_query_tile(), j)
            return index(tile, i, j)

        return pl.BlockSpec(shape, index_map)

    of_query = spec((1, size.queries, heads * call.head_dim), lambda tile, i, j: (tile.row, i, tile.program))
    of_key = spec((1, size.keys, groups * call.head_dim), lambda tile, i, j: (tile.row, j, tile.program))
    query_ids = spec((1, 1, size.queries), lambda tile, i, j: (tile.row, 0, i))
    key_ids = spec((1, 1, size.keys), lambda tile, i, j: (tile.row, 0, j))
    specs = {
        **dict.fromkeys(("query", "out", "gradient"), of_query),
        **dict.fromkeys(("key", "value"), of_key),
        **dict.fromkeys(("query_ids", "query_order", "query_segments"), query_ids),
        **dict.fromkeys(("key_ids", "key_order", "key_segments"), key_ids),
        "sums": spec((1, 1, heads, size.queries), lambda tile, i, j: (tile.row, tile.program, 0, i)),
    }
    terms = [name for name in arrays if name not in specs]
    return {name: specs[name] for name in arrays if name in specs} | tpu_terms.specs(call, terms, spec)


def _arrays(query, key, value, terms, ids, **others):
    arrays = {"query": query, "key": key, "value": value} | others | ids
    is_vector = {"query_bands", "key_bands"}
    return arrays | {name: x.astype(query.dtype) if name in is_vector else x for name, x in terms.items()}


def _run(call, name, kernel, numbers, arrays, out_specs, out_shape, scratch_shapes, query_major, products):
    """Runs a kernel over a grid of P programs, B rows, and tiles of queries and of keys.

    Args:
      kernel: a function of a `ScoreTile`, the blocks of `arrays` by name, the blocks of the outputs, and the scratch
        memory.
      query_major: whether the outer loop is over tiles of queries and the inner loop over tiles of keys.
      products: number of matrix products, of queries × keys × head_dim, per tile and head; for the cost estimate.
    """
    outer, inner = call.query_tiles, call.key_tiles
    if not query_major:
        outer, inner = inner, outer

    def body(numbers, blocks, *others):
        program, row, first, second = (pl.program_id(axis) for axis in range(4))
        tile = ScoreTile(call, numbers, row, program, *((first, second) if query_major else (second, first)))
        kernel(tile, blocks, *others)

    # The gradients of bands are summed over rows, which are therefore sequential.
    sums_rows = not query_major and not arrays.keys().isdisjoint(tpu_terms.BANDS)
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
            flops=round(2 * products * call.head_dim * scores), transcendentals=scores, bytes_accessed=moved
        ),
        interpret=call.interpret,
        name=name,
    )(numbers, arrays)


# jax never removes a bare kernel whose results are not used, for example because rematerialization has saved them.
@functools.partial(jax.jit, static_argnums=0)
def _forward(call, query, key, value, terms, numbers, ids):
    """Returns a pair: the output [B, Q, N · H], and the log of each query's sum of exponentials.

    The second result is float32 [B, P, n, Q].
    """
    arrays = _arrays(query, key, value, terms, ids)
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
        products=2 + tpu_terms.products(call, terms),
    )


def _forward_kernel(tile, blocks, out, sums, tops, totals, mixed):
    """Adds a tile of keys to the softmax statistics of a tile of queries, and stores the results after the last tile.

    The statistics are, in scratch memory, the maximum, the sum of exponentials, and the weighted sum of values.
    """
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
            new = dot(values[of_group], weights.astype(values.dtype))
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
def _backward(call, query, key, value, terms, numbers, ids, out, sums, gradient):
    """Returns the gradients of query, key, value and terms.

    There is one pass over the scores if the gradients of a row's queries fit in VMEM (`tiles.queries_fit`). Otherwise
    there are two passes.
    """
    arrays = _arrays(query, key, value, terms, ids, out=out, gradient=gradient, sums=sums)
    size, lanes, group_lanes = call.tile, call.program_heads * call.head_dim, call.tile.groups * call.head_dim
    one_pass = tiles.queries_fit(query.shape[1], lanes, query.dtype.itemsize, call.device_kind)
    rows = query.shape[1] if one_pass else size.queries
    of_query_terms = tpu_terms.query_outputs(call, terms, rows, lambda i: 0 if one_pass else i)
    of_key_terms = tpu_terms.key_outputs(call, terms)
    of_queries = [jax.ShapeDtypeStruct(query.shape, query.dtype), of_query_terms[1]]
    query_block = pl.BlockSpec((1, rows, lanes), lambda p, b, i, j, _: (b, 0 if one_pass else i, p))
    query_specs = [query_block, of_query_terms[0]]
    query_scratch = [pltpu.VMEM((rows // size.queries, lanes, size.queries), jnp.float32)]
    of_keys = [*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (key, value)), of_key_terms[1]]
    key_block = pl.BlockSpec((1, size.keys, group_lanes), lambda p, b, j, i, _: (b, j, p))
    key_specs = [key_block, key_block, of_key_terms[0]]
    key_scratch = [pltpu.VMEM((group_lanes, size.keys), jnp.float32)] * 2
    relative = tpu_terms.products(call, terms)

    def run(name, kernel, specs, shapes, scratch, query_major, products):
        return _run(call, name, kernel, numbers, arrays, specs, shapes, scratch, query_major, products)

    if one_pass:
        specs, shapes, scratch = query_specs + key_specs, of_queries + of_keys, query_scratch + key_scratch
        gradients = run("flash_backward", _both_kernel, specs, shapes, scratch, False, 5 + 3 * relative)
    else:
        gradients = run("flash_dq", _query_kernel, query_specs, of_queries, query_scratch, True, 3 + 1.5 * relative)
        gradients += run("flash_dkv", _key_kernel, key_specs, of_keys, key_scratch, False, 4 + 2.5 * relative)
    of_query, by_query, of_key, of_value, by_key = gradients
    return of_query, of_key, of_value, by_query | by_key


def _both_kernel(tile, blocks, of_query, by_query, of_key, of_value, by_key, query_scratch, *key_scratch):
    _gradients(tile, blocks, (of_query, by_query, query_scratch), (of_key, of_value, by_key, *key_scratch))


def _query_kernel(tile, blocks, of_query, by_query, scratch):
    _gradients(tile, blocks, (of_query, by_query, scratch), None)


def _key_kernel(tile, blocks, *for_keys):
    _gradients(tile, blocks, None, for_keys)


def _gradients(tile, blocks, for_queries, for_keys):
    """Adds a tile's contribution to the gradients of its queries, of its keys and values, or of all three.

    For o = Σ w v with w = w' keep / (1 - rate), w' = softmax(s), and the gradient g of o, the gradient of s is
    w' (keep (g · v) / (1 - rate) - g · o). Sums in scratch memory lack the factor 1 / (1 - rate) until they are
    complete.

    Args:
      for_queries: references to the gradients of queries, of terms by name, and to scratch memory; or None.
      for_keys: references to the gradients of keys, of values, of terms by name, and to scratch memory; or None.
    """
    call, i, j = tile.call, tile.query_tile, tile.key_tile
    share = 1 - call.rate
    if for_queries is not None:
        of_query, by_query, query_scratch = for_queries
        several = query_scratch.shape[0] > 1
        slot, first = (i, pl.multiple_of(i * call.tile.queries, call.tile.queries)) if several else (0, 0)
        rows = pl.ds(first, call.tile.queries)
        query_sums = query_scratch.at[slot], {name: ref.at[0, 0, :, rows] for name, ref in by_query.items()}
    if for_keys is not None:
        of_key, of_value, by_key, *key_sums = for_keys
    bands = [] if for_keys is None else [name for name in by_key if name in tpu_terms.BANDS]

    def begin_queries():
        for ref in (query_sums[0], *query_sums[1].values()):
            ref[...] = jnp.zeros(ref.shape, jnp.float32)

    def begin_keys():
        for ref in (*key_sums, *(ref for name, ref in by_key.items() if name not in tpu_terms.BANDS)):
            ref[...] = jnp.zeros(ref.shape, jnp.float32)

    def begin_bands():
        for name in bands:
            by_key[name][...] = jnp.zeros(by_key[name].shape, jnp.float32)

    def end_queries():
        of_query[0, rows] = (query_sums[0][...] / share).T.astype(of_query.dtype)

    def end_keys():
        for ref, total in zip((of_key, of_value), key_sums, strict=True):
            ref[0] = (total[...] / share).T.astype(ref.dtype)

    several_keys, several_queries = call.key_tiles > 1, call.query_tiles > 1
    if bands:
        _when((tile.row == 0) & (i == 0) & (j == 0), begin_bands)
    if for_queries is not None:
        _when(not several_keys or j == 0, begin_queries)
    if for_keys is not None:
        _when(not several_queries or i == 0, begin_keys)
    sums = query_sums if for_queries else None, (*key_sums, by_key) if for_keys else None
    tile.when_visible(functools.partial(_add_gradients, tile, blocks, *sums), skip=True)
    if for_queries is not None:
        _when(not several_keys or j == call.key_tiles - 1, end_queries)
    if for_keys is not None:
        _when(not several_queries or i == call.query_tiles - 1, end_keys)


def _add_gradients(tile, blocks, for_queries, for_keys, masked):
    """Adds the contributions of one tile of scores to the sums for its queries, keys and values, and for the terms."""
    call, share = tile.call, 1 - tile.call.rate
    visible = tile.visible(blocks) if masked else None
    query, key, gradient = (blocks[name][0].T for name in ("query", "key", "gradient"))
    mixed = gradient.astype(jnp.float32) * blocks["out"][0].T.astype(jnp.float32)
    for head in range(call.program_heads):
        of_head, of_group = tile.lanes(head)
        weights = jnp.exp(_scores(tile, blocks, head, visible) - blocks["sums"][0, 0, head : head + 1])
        of_weights = dot(blocks["value"][0, :, of_group], gradient[of_head])
        dropped = weights
        if call.rate:
            keep = tile.keep_mask(head)
            dropped, of_weights = jnp.where(keep, weights, 0.0), jnp.where(keep, of_weights, 0.0)
        of_scores = weights * (of_weights - mixed[of_head].sum(0, keepdims=True) * share)
        tpu_terms.add_gradients(tile, blocks, head, of_scores, query, key, for_queries, for_keys)
        of_scores = of_scores.astype(query.dtype)
        if for_keys is not None:
            key_sum, value_sum, _ = for_keys
            value_sum[of_group] += dot(gradient[of_head], dropped.astype(query.dtype), (1, 1))
            key_sum[of_group] += dot(query[of_head], of_scores, (1, 1))
        if for_queries is not None:
            for_queries[0][of_head] += dot(key[of_group], of_scores)


def _when(condition, function):
    """Calls a function if a condition holds. If the condition is the constant True, no branch is needed."""
    if condition is True:
        function()
    else:
        pl.when(condition)(function)
