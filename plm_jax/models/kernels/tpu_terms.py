"""Terms that the TPU kernel adds to the products of queries and keys: a bias by distance, and `RelativeScores`.

The pairs of a tile of queries i and a tile of keys j that have the same i - j form a diagonal. Each of the D diagonals
has a band: an array whose entries are ordered by the distance between a query and a key of the two tiles. Let q be the
index of a query within its tile, and k the index of a key within its tile. Arrays and blocks of terms have these names
and shapes:

- `bias_bands` [P, D, n, 2 T] and `query_bands` [P, D, n · H, 2 T]: entry x of a band is for q - k = x - (T - 1).
- `key_bands` [P, D, n · H, 2 T]: entry x of a band is for k - q = x - (T - 1). If there are vectors for rows whose text
  runs backwards, the bands of these vectors follow: [P, 2 D, n · H, 2 T].
- `key_bias` [B, P, n, K].
- `segment_scores` [B, P, 2 n, Q]: two rows for each head, for keys in the query's segment and for other keys.

Shapes are those of `tpu`.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from plm_jax.common.errors import UserError
from plm_jax.models.kernels import tiles
from plm_jax.models.kernels.tpu_tile import column

# Terms whose gradients are sums over rows. The gradients of the two other terms have an entry per row.
BANDS = ("bias_bands", "query_bands", "key_bands")
# Number of rows that are shifted at once: rows this far apart differ by a shift of whole registers.
_STRIP = 128


def has_vectors(relative):
    """Returns whether a `RelativeScores` has vectors by distance, which need square tiles; False for None."""
    return relative is not None and not (relative.key_vectors is None and relative.query_vectors is None)


def arrays(call, distance_bias, relative):
    """Returns a dict from the names of the terms to float32 arrays; the arguments are those of `tpu.flash`."""
    terms = {}
    if distance_bias is not None:
        terms["bias_bands"] = _bands(call, distance_bias, reverse=True)
    if relative is None:
        return terms
    for name, reverse in (("query", True), ("key", False), ("reverse_key", False)):
        if (vectors := getattr(relative, f"{name}_vectors")) is not None:
            # Float32, so that the gradients of the two parts of each entry are not rounded before they are added.
            by_feature = vectors.astype(jnp.float32).swapaxes(1, 2).reshape(-1, vectors.shape[1])
            terms[f"{name}_bands"] = _bands(call, by_feature, reverse)
    if call.has_reverse:
        terms["key_bands"] = jnp.concatenate([terms["key_bands"], terms.pop("reverse_key_bands")], axis=1)
    if relative.key_bias is not None:
        terms["key_bias"] = _by_program(call, relative.key_bias, call.tile.keys)
    if relative.segment_scores is not None:
        rows = relative.segment_scores.swapaxes(2, 3).reshape(call.batch, -1, call.queries)
        terms["segment_scores"] = _by_program(call, rows, call.tile.queries)
    return terms


def _bands(call, rows, reverse):
    """Returns the bands [P, D, n or n · H, 2 T] of `rows` [N or N · H, Q + K - 1].

    Args:
      rows: entries by distance: entry j is for keys that are j - (Q - 1) positions after the query.
      reverse: whether the entries of a band are ordered by query position minus key position. If not, they are ordered
        by key position minus query position.
    """
    size, both = call.tile.keys, call.query_tiles + call.key_tiles
    before, after = size * call.query_tiles - call.queries, size * call.key_tiles - call.keys
    if reverse:
        rows, before, after = rows[:, ::-1], after, before
    per_head = rows.shape[0] // call.heads
    extra = (call.programs * call.program_heads - call.heads) * per_head
    rows = jnp.pad(rows, ((0, extra), (before, after + 1)))
    parts = rows.reshape(call.programs, call.program_heads * per_head, both, size).swapaxes(1, 2)
    return jnp.concatenate([parts[:, :-1], parts[:, 1:]], axis=-1)


def _by_program(call, x, tile):
    """Pads x to whole programs and tiles: [B, N or 2 N, L] → [B, P, n or 2 n, L]."""
    extra = (call.programs * call.program_heads - call.heads) * (x.shape[1] // call.heads)
    x = jnp.pad(x, ((0, 0), (0, extra), (0, -x.shape[2] % tile)))
    return x.reshape(call.batch, call.programs, -1, x.shape[2])


def specs(call, names, spec):
    """Returns a dict from the names of terms to block specifications.

    Args:
      spec: function that takes the shape of a block and a function `index(tile, i, j)`, and returns a block
        specification.
    """
    heads, size = call.program_heads, call.tile
    by_query = functools.partial(spec, index=lambda tile, i, j: (tile.program, i - j + call.key_tiles - 1, 0, 0))
    by_key = functools.partial(spec, index=lambda tile, i, j: (tile.program, _key_band(tile, i, j), 0, 0))
    vectors = 1, 1, heads * call.head_dim, 2 * size.keys
    of_terms = {
        "bias_bands": by_query((1, 1, heads, 2 * size.keys)),
        "query_bands": by_query(vectors),
        "key_bands": by_key(vectors),
        "key_bias": spec((1, 1, heads, size.keys), lambda tile, i, j: (tile.row, tile.program, 0, j)),
        "segment_scores": spec((1, 1, 2 * heads, size.queries), lambda tile, i, j: (tile.row, tile.program, 0, i)),
    }
    return {name: of_terms[name] for name in names}


def _key_band(tile, query_tile, key_tile):
    """Returns the index of the band in `key_bands` for a pair of tiles."""
    call = tile.call
    return key_tile - query_tile + call.query_tiles - 1 + tile.reverse * (call.query_tiles + call.key_tiles - 1)


def key_outputs(call, terms):
    """Describes the outputs of a pass over keys: the gradients of all terms except segment scores.

    Returns:
      A pair of dicts by name of the term: the block specifications, and the shapes.

    Raises:
      UserError: the gradients of bands do not fit in VMEM, with two buffers for each gradient.
    """
    if 8 * sum(terms[name][0].size for name in BANDS if name in terms) > 0.75 * tiles.vmem_bytes(call.device_kind):
        raise UserError(
            f"gradients of relative scores of {call.queries} queries and {call.keys} keys exceed the fast memory of a "
            "TPU: use shorter rows, or set config.model.attention_kernel=xla"
        )
    of_keys = {name: x for name, x in terms.items() if name != "segment_scores"}
    blocks = {name: pl.BlockSpec((1, *x.shape[1:]), lambda p, *_: (p, 0, 0, 0)) for name, x in of_keys.items()}
    if "key_bias" in terms:
        shape = 1, 1, call.program_heads, call.tile.keys
        blocks["key_bias"] = pl.BlockSpec(shape, lambda p, b, j, i, _: (b, p, 0, j))
    return blocks, {name: jax.ShapeDtypeStruct(x.shape, jnp.float32) for name, x in of_keys.items()}


def query_outputs(call, terms, length, index):
    """Describes the outputs of a pass over queries: the gradients of segment scores, if there are any.

    Args:
      length: number of queries in a block.
      index: function from the index of a tile of queries to the index of its block.

    Returns:
      A pair of dicts by name of the term: the block specifications, and the shapes.
    """
    if "segment_scores" not in terms:
        return {}, {}
    shape = 1, 1, 2 * call.program_heads, length
    block = pl.BlockSpec(shape, lambda p, b, i, j, _: (b, p, 0, index(i)))
    return {"segment_scores": block}, {
        "segment_scores": jax.ShapeDtypeStruct(terms["segment_scores"].shape, jnp.float32)
    }


def products(call, names):
    """Returns the number of matrix products per tile for the terms in a forward pass, a float.

    A product of queries × keys × head_dim counts as 1.
    """
    size = call.tile.keys
    return sum(name in names for name in ("query_bands", "key_bands")) * (1 + min(_STRIP, size) / size)


def add(tile, blocks, head, scores):
    """Adds the terms to a tile of a head's scores, float32 [keys, queries], and returns the result."""
    of_head, of_group = tile.lanes(head)
    if "bias_bands" in blocks:
        scores = scores + _bias(blocks["bias_bands"][0, 0, head : head + 1], tile.call.tile.keys)
    if "query_bands" in blocks:
        scores = scores + _shifted_product(blocks["key"][0, :, of_group], blocks["query_bands"][0, 0, of_head])
    if "key_bands" in blocks:
        scores = scores + _shifted_product(blocks["query"][0, :, of_head], blocks["key_bands"][0, 0, of_head]).T
    if "key_bias" in blocks:
        scores = scores + column(blocks["key_bias"][0, 0, head : head + 1])
    if "segment_scores" in blocks:
        same, different = (blocks["segment_scores"][0, 0, 2 * head + i : 2 * head + i + 1] for i in (0, 1))
        scores = scores + jnp.where(_same_segment(blocks), same, different)
    return scores


def add_gradients(tile, blocks, head, of_scores, query, key, for_queries, for_keys):
    """Adds the gradients of a head's terms, and the contributions of the terms to the gradients of queries and keys.

    Args:
      of_scores: gradient of the scores, float32 [keys, queries], without the factor 1 / (1 - rate).
      query, key: queries and keys of the program's heads, both [lanes, T].
      for_queries: references to two sums: for queries, [lanes, T], and for terms, by name. None: neither is computed.
      for_keys: references to three sums: for keys and for values, both [lanes, T], and for terms, by name. None: none
        of them is computed.
    """
    (of_head, of_group), row, share = tile.lanes(head), slice(head, head + 1), 1 - tile.call.rate
    of_query, by_query = for_queries or (None, {})
    of_key, _, by_key = for_keys or (None, None, {})
    if "bias_bands" in by_key:
        by_key["bias_bands"][0, tile.diagonal, row] += _band(of_scores) / share
    if "query_bands" in by_key and of_key is not None:
        of_band = by_key["query_bands"].at[0, tile.diagonal, of_head]
        band = blocks["query_bands"][0, 0, of_head]
        _add_product_gradients(of_scores, band, key[of_group], of_key.at[of_group], of_band, share)
    if "key_bands" in blocks:
        number = _key_band(tile, tile.query_tile, tile.key_tile)
        of_band = by_key["key_bands"].at[0, number, of_head] if by_key else None
        of_vectors = None if of_query is None else of_query.at[of_head]
        band = blocks["key_bands"][0, 0, of_head]
        _add_product_gradients(of_scores.T, band, query[of_head], of_vectors, of_band, share)
    if "key_bias" in by_key:
        sums = of_scores.sum(1, keepdims=True)
        by_key["key_bias"][0, 0, row] += jnp.broadcast_to(sums, (sums.shape[0], _STRIP)).T[:1] / share
    if "segment_scores" in by_query:
        same = _same_segment(blocks)
        for i, chosen in enumerate((jnp.where(same, of_scores, 0.0), jnp.where(same, 0.0, of_scores))):
            row = slice(2 * head + i, 2 * head + i + 1)
            by_query["segment_scores"][row] += chosen.sum(0, keepdims=True) / share


def _same_segment(blocks):
    """Returns a mask of the pairs in the same segment, bool [keys, queries]."""
    return column(blocks["key_segments"][0]) == blocks["query_segments"][0]


def _shifted_product(vectors, band):
    """Multiplies vectors [T, H] by a band [H, 2 T]; returns [T, T].

    Entry [r, c] of the result is the product of vector r and entry c - r + T - 1 of the band.
    """
    strips = []
    for rows, entries in _strips(vectors.shape[0]):
        length = rows.stop - rows.start
        product = dot(vectors[rows], band[:, entries])
        strips.append(pltpu.roll(product, 1, 1, stride=1, stride_axis=0)[:, length:])
    return jnp.concatenate(strips, axis=0)


def _add_product_gradients(of_product, band, vectors, of_vectors, of_band, share):
    """Adds the gradients of `_shifted_product` to `of_vectors` and `of_band`.

    Args:
      of_product: gradient of the product, float32 [T, T].
      band: [H, 2 T].
      vectors: [H, T].
      of_vectors: reference to the gradient of the vectors, [H, T], without the factor 1 / share; or None.
      of_band: reference to the gradient of the band, [H, 2 T], including the factor 1 / share; or None.
      share: 1 - rate.
    """
    for rows, entries in _strips(vectors.shape[1]):
        moved = _unshifted(of_product[rows]).astype(vectors.dtype)
        if of_vectors is not None:
            of_vectors[:, rows] += dot(band[:, entries], moved, (1, 1))
        if of_band is not None:
            of_band[:, entries] += dot(vectors[:, rows], moved) / share


def _strips(size):
    """Yields pairs of slices: a strip of rows of a tile [T, T], and the entries of the band that these rows need."""
    length = min(_STRIP, size)
    for first in range(0, size, length):
        yield slice(first, first + length), slice(size - length - first, 2 * size - first)


def _bias(band, size):
    """Returns the bias [T, T] of a tile: row j, column i is entry i - j + T - 1 of the band [1, 2 T]."""
    rows = min(_STRIP, size)
    rolled = pltpu.roll(jnp.broadcast_to(band, (rows, 2 * size)), 1, 1, stride=1, stride_axis=0)
    return jnp.concatenate([rolled[:, size - at : 2 * size - at] for at in range(0, size, rows)], axis=0)


def _band(tile):
    """Sums a tile along its diagonals, [T, T] → [1, 2 T]. This is the gradient of `_bias`."""
    size = tile.shape[0]
    rows = min(_STRIP, size)
    parts = [jnp.pad(tile[at : at + rows], ((0, 0), (size - at, at))) for at in range(0, size, rows)]
    moved = functools.reduce(jnp.add, parts)
    # Rows are rotated by multiples of eight first, which leaves eight rows.
    eights = [pltpu.roll(moved[at : at + 8], 2 * size - at, 1) for at in range(0, rows, 8)]
    return _rotate_left(functools.reduce(jnp.add, eights), 1).sum(0, keepdims=True)


def _unshifted(strip):
    """Moves the entries of a strip within their rows, [R, T] → [R, T + R].

    Column c of row r becomes column c - r + R - 1. All other entries of the result are 0.
    """
    rows = strip.shape[0]
    moved = jnp.pad(strip, ((0, 0), (rows, 0)))
    return jnp.concatenate([_rotate_left(moved[at : at + 8], at + 1) for at in range(0, rows, 8)], axis=0)


def _rotate_left(x, count):
    """Rotates row r of x [8, L] to the left by `count` + r columns."""
    # `pltpu.roll` can rotate later rows more only to the right, so that the rows are reversed meanwhile.
    reverse = 7 - jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    rotated = pltpu.roll(jnp.take_along_axis(x, reverse, 0), x.shape[1] - count - 7, 1, stride=1, stride_axis=0)
    return jnp.take_along_axis(rotated, reverse, 0)


def dot(a, b, contract=(1, 0)):
    """Multiplies two matrices over dimension contract[0] of `a` and contract[1] of `b`; returns float32."""
    dimensions = ((contract[:1], contract[1:]), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)
