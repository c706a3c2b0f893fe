"""Terms of `RelativeScores`. The GPU kernels add these terms to the products of queries and keys.

A tile of scores needs a band of 2 T vectors by distance. Entry x of the band is for pairs with k - q = x - (T - 1),
where k is the index of the key within its tile, and q is the index of the query within its tile. The product of queries
or keys with a band has 2 T columns. Each row of the product needs a different range of T columns, so these columns are
gathered.

Shapes are those of `gpu`. Tiles are square if there are vectors.
"""

import jax
import jax.numpy as jnp
from jax._src.lib.triton import dialect
from jax._src.pallas.triton import lowering
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.extend.core import Primitive

from plm_jax.models.kernels.context import RelativeScores

VECTORS = ("key_vectors", "query_vectors", "reverse_key_vectors")


def tile_name(kernel: str, relative: RelativeScores | None) -> str:
    """Returns the name under which `tiles.on_gpu` lists the tile sizes of a kernel."""
    if relative is None or all(getattr(relative, name) is None for name in VECTORS):
        return kernel
    return "triton_dvectors" if kernel.endswith("vectors") else "triton_relative"


def padded(call, relative, dtype):
    """Returns the terms in the shapes that kernels read, with vectors in `dtype`.

    Vectors are [(D + 1) · T, N, H], with H padded to a power of 2. `reverse_key_vectors` are appended to `key_vectors`.
    `segment_scores` are a pair of arrays [B, N, Q]: for keys in the same segment, and for keys in other segments.
    """
    beyond = call.query_tiles * call.tile.queries - call.queries, call.key_tiles * call.tile.keys - call.keys + 1
    for name in VECTORS:
        if (vectors := getattr(relative, name)) is not None:
            width = padded_width(call.head_dim) - call.head_dim
            vectors = jnp.pad(vectors.astype(dtype), ((0, 0), beyond, (0, width)))
            relative = relative.replace(**{name: vectors.swapaxes(0, 1)})
    if relative.reverse is not None:
        both = jnp.concatenate([relative.key_vectors, relative.reverse_key_vectors])
        relative = relative.replace(key_vectors=both, reverse_key_vectors=None)
    if relative.segment_scores is not None:
        relative = relative.replace(segment_scores=tuple(relative.segment_scores[..., i] for i in range(2)))
    return relative


def add(call, refs, scores, query, key, row, head, starts):
    """Returns the sum of a tile of scores and the terms, float32."""
    relative = refs.relative
    if relative is None:
        return scores
    if relative.key_vectors is not None:
        band = _band(call, relative, "key_vectors", row, head, starts)
        scores += _gathered_product(call, query, band, call.query_axis)
    if relative.query_vectors is not None:
        band = _band(call, relative, "query_vectors", row, head, starts)
        scores += _gathered_product(call, key, band, 1 - call.query_axis)
    if relative.key_bias is not None:
        keys = pl.ds(starts[1], call.tile.keys)
        scores += call.of_keys(load(relative.key_bias, (row, head, keys), call.inside(starts[1], 1)))
    if relative.segment_scores is not None:
        same, different = (call.load_query(ref, row, head, starts[0]) for ref in relative.segment_scores)
        is_same = _is_same_segment(call, relative, row, starts)
        scores += jnp.where(is_same, call.of_queries(same), call.of_queries(different))
    return scores


def _is_same_segment(call, relative, row, starts):
    """Returns a mask of the scores whose query and key are in the same segment."""
    of_queries, of_keys = (
        load(ref, (row, pl.ds(start, length)), call.inside(start, axis), -1)
        for axis, (ref, start, length) in enumerate(zip(relative.segments, starts, call.tile[:2], strict=True))
    )
    return call.of_queries(of_queries) == call.of_keys(of_keys)


def add_vectors(call, relative, name, gradient, of_scores, row, head, starts):
    """Returns the sum of a gradient [T, H] of queries or keys and the contribution of the vectors `name`.

    `of_scores` is the gradient of a tile of scores, whose rows are these queries or keys.
    """
    if relative is None or getattr(relative, name) is None:
        return gradient
    vectors = _band(call, relative, name, row, head, starts)
    return gradient + dot(_by_entry(call, of_scores, 0).astype(vectors.dtype), vectors, 0)


def add_by_segment(call, relative, sums, of_scores, row, starts):
    """Adds the gradients of a tile of scores to a pair of sums per query; returns the new pair.

    The first sum is over keys in the query's segment, and the second is over keys in other segments. The rows of the
    tile are queries. If `sums` is None, the result is None.
    """
    if sums is None:
        return None
    is_same = _is_same_segment(call, relative, row, starts)
    return sums[0] + jnp.where(is_same, of_scores, 0.0).sum(1), sums[1] + jnp.where(is_same, 0.0, of_scores).sum(1)


def products(name, relative):
    """Returns the number of matrix products that the terms add per tile, each of queries × keys × head_dim."""
    if relative is None:
        return 0
    of_keys, of_queries = (getattr(relative, vectors) is not None for vectors in ("key_vectors", "query_vectors"))
    gradients = {"triton_forward": 0, "triton_dq": of_keys, "triton_dkv": of_queries, "triton_dbias": 0}.get(name, 1)
    return 2 * (of_keys + of_queries + gradients)


def _band(call, relative, name, row, head, starts):
    """Loads the band of vectors that a tile needs, [2 T, H]."""
    start = starts[1] - starts[0] + (call.query_tiles - 1) * call.tile.queries
    if name == "key_vectors" and relative.reverse is not None:
        start += relative.reverse[row] * ((call.query_tiles + call.key_tiles) * call.tile.queries)
    return getattr(relative, name)[pl.ds(start, 2 * call.tile.queries), head]


def _gathered_product(call, vectors, band, axis):
    """Returns, for each score of a tile, the product of its query or key with the band's entry for its distance.

    Args:
      vectors: queries or keys of the tile, [T, H].
      band: [2 T, H].
      axis: axis of `vectors` in the tile of scores.
    """
    size = call.tile.queries
    entry = call.of_keys(jnp.arange(size)) - call.of_queries(jnp.arange(size)) + size - 1
    product = dot(vectors, band, 1) if axis == 0 else dot(band, vectors, 1)
    return _gather(product, entry, 1 - axis, call.options.interpret)


def _by_entry(call, of_scores, axis):
    """Moves gradients of scores to the entries of a band: [T, 2 T] if `axis` is 0, otherwise [2 T, T].

    This reverses the gather in `_gathered_product`.
    """
    size = call.tile.queries
    vector, entry = jnp.expand_dims(jnp.arange(size), 1 - axis), jnp.expand_dims(jnp.arange(2 * size), axis)
    past = entry - (size - 1)
    score = vector + past if axis == call.query_axis else vector - past
    inside = (score >= 0) & (score < size)
    moved = _gather(of_scores, jnp.where(inside, score, 0), 1 - axis, call.options.interpret)
    return jnp.where(inside, moved, 0.0)


def _gather(x, index, axis, interpret):
    """Computes `jnp.take_along_axis`, which the Triton backend of Pallas does not support."""
    return jnp.take_along_axis(x, index, axis) if interpret else _gather_p.bind(x, index, axis=axis)


_gather_p = Primitive("triton_gather")
_gather_p.def_abstract_eval(lambda x, index, axis: x.update(shape=index.shape))


@lowering.register_lowering(_gather_p)
def _lower_gather(context, x, index, axis):
    result = type(x.type).get(context.avals_out[0].shape, x.type.element_type)
    return dialect.gather(x, index, axis, results=[result])


def distance_kernel(name, rows, call, refs, ranges_ref, backward, gradient_ref):
    """Sums gradients over at most `rows` rows of the batch and over all pairs of tiles on one diagonal.

    For vectors, gradients are summed by distance. The result [2 T, H] has the shape of the band that a tile needs. For
    a bias, the result is a tile [T, T]. `along_diagonals` later sums this tile by distance.
    """
    diagonal, head, part = (pl.program_id(axis) for axis in range(3))

    def of_row(row, gradient):
        def body(masked, tile, gradient):
            starts = tile * call.tile.queries, (tile + diagonal - (call.query_tiles - 1)) * call.tile.keys
            query, cotangent = (
                call.load_query(ref, row, head, starts[0]) for ref in (refs.query_BQNH, backward.cotangent_BQNH)
            )
            key, value = (call.load_key(ref, row, head, starts[1]) for ref in (refs.key_BKGH, refs.value_BKGH))
            _, of_scores = call.derivative(refs, backward, query, key, value, cotangent, row, head, starts, masked)
            if name == "bias":
                return gradient + of_scores
            vectors, axis = (key, 1 - call.query_axis) if name == "query_vectors" else (query, call.query_axis)
            moved = _by_entry(call, of_scores, axis)
            return gradient + dot((moved.T if axis == 0 else moved).astype(vectors.dtype), vectors, 0)

        return call.over(ranges_ref, refs.mask, row, diagonal, body, gradient)

    last = jnp.minimum((part + 1) * rows, refs.query_BQNH.shape[0])
    gradient = jnp.zeros(gradient_ref.shape[3:], jnp.float32)
    gradient = jax.lax.fori_loop(part * rows, last, of_row, gradient)
    gradient_ref[part, head, diagonal] = gradient / (1 - call.options.rate)


def along_diagonals(tiles_NDTT):
    """Sums tiles along their diagonals: [N, D, T, T] → [N, D, 2 T].

    Entry [y, x] of a tile is for query y and key x, and is added to entry T - 1 + x - y of the result.
    """
    heads, diagonals, length, _ = tiles_NDTT.shape
    # Rows in reverse order, padded and reshaped so that each begins one entry later than the previous: [D, T, 2 T - 1].
    rows = jnp.pad(tiles_NDTT[:, :, ::-1], ((0, 0), (0, 0), (0, 0), (0, length)))
    rows = rows.reshape(heads, diagonals, -1)[:, :, :-length].reshape(heads, diagonals, length, -1)
    return jnp.pad(rows.sum(2), ((0, 0), (0, 0), (0, 1)))


def joined(bands):
    """Adds overlapping bands: [N, D, 2 T, …] → [N, (D + 1) · T, …].

    Each band begins T entries after the previous band.
    """
    left, right = jnp.split(bands, 2, axis=2)
    beyond = [(0, 0)] * (bands.ndim - 2)
    total = jnp.pad(left, ((0, 0), (0, 1), *beyond)) + jnp.pad(right, ((0, 0), (1, 0), *beyond))
    return total.reshape(total.shape[0], -1, *total.shape[3:])


def padded_width(head_dim):
    """Returns H rounded up to a power of 2, at least 16."""
    return max(16, pl.next_power_of_2(head_dim))


def load(ref, index, inside, other=0):
    """Loads a block; entries outside of the mask `inside` have the value `other`. Without a mask, loads all entries."""
    return triton.load(ref.at[index], mask=inside, other=None if inside is None else other)


def dot(left, right, axis):
    """Multiplies two matrices over the last axis of `left` and over `axis` of `right`; returns float32."""
    return jax.lax.dot_general(left, right, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.float32)
