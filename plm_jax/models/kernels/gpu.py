"""Flash attention on NVIDIA GPUs (Pallas, Triton). Neither the forward nor the backward pass stores all scores.

A program holds one tile of queries and loops over tiles of keys, or it holds one tile of keys and loops over tiles of
queries. For the gradients of terms by distance, a program loops over the tiles of a diagonal. No atomic operations are
used, so the same inputs give the same bits. The heads of a position are concatenated in memory, as in the projections
before and after attention.

Shapes: B batch, Q queries, K keys, N heads, G groups (key/value heads; each serves N / G consecutive heads), H
head_dim, T length of a tile, D diagonals of tiles.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Integer

from plm_jax.models.kernels import dropout, gpu_terms, tile_mask, tiles
from plm_jax.models.kernels.context import RESIDUALS, UNSEEN, RelativeScores
from plm_jax.models.kernels.gpu_terms import dot, load

_LOG2E = math.log2(math.e)
_LOG2E_BITS = 0x3FB8AA3B  # As a float32.
# Results that are not used are removed from a program as a whole; jax never removes a bare kernel.
_WHOLE = functools.partial(jax.jit, static_argnums=0)
# Programs of the gradient of a bias: several for each of an H100's 132 multiprocessors.
_PROGRAMS = 512


class Mask(NamedTuple):
    """Arguments of `flash` for masks and dropout: int32 and uint32 arrays, or in a kernel the refs of these arrays.

    All fields except `offsets` may be None.
    """

    offsets: Any
    query_ids: Any
    key_ids: Any
    query_order: Any
    key_order: Any
    prefix_lengths: Any
    window: Any
    seed: Any


class Inputs(NamedTuple):
    """Inputs of the attention: arrays, or in a kernel the refs of these arrays.

    Attributes:
      query_BQNH: scaled queries.
      key_BKGH: keys.
      value_BKGH: values.
      bias_NR: bias by distance; None: no bias.
      relative: further terms of the scores; None: no further terms.
      mask: masks and dropout.
    """

    query_BQNH: Any
    key_BKGH: Any
    value_BKGH: Any
    bias_NR: Any
    relative: RelativeScores | Any
    mask: Mask | Any


class BackwardInputs(NamedTuple):
    """Additional inputs of the backward pass.

    Attributes:
      cotangent_BQNH: cotangent of the output.
      log_sums_BNQ: log of the sum of exponentials of each query.
      products_BNQ: sums of output · cotangent over H.
      words_BNQ: hashes of the queries for dropout masks; None: the kernel computes the hashes.
    """

    cotangent_BQNH: Any
    log_sums_BNQ: Any
    products_BNQ: Any
    words_BNQ: Any = None


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
) -> Float[Array, "batch heads queries head_dim"]:
    """Computes softmax(query · key + terms) · value over the keys visible to each query, [B, N, Q, H].

    A query without visible keys gets zeros and has no gradients. The arguments are those of `tpu.flash`, without
    `tile`.
    """
    window = None if window is None else jnp.reshape(window, 1)
    mask = Mask(offsets, query_ids, key_ids, query_order, key_order, prefix_lengths, window, seed)
    query, key, value = (x.swapaxes(1, 2) for x in (query_BNQH, key_BGKH, value_BGKH))
    options = GpuOptions(causal, dropout.realized(rate) if seed is not None else 0.0, broadcast, interpret)
    mixed: jax.Array = _attention(options, Inputs(query, key, value, distance_bias, relative, mask))
    return mixed.swapaxes(1, 2)


@dataclasses.dataclass(frozen=True)
class GpuOptions:
    """Static arguments of `flash`.

    Attributes:
      causal, broadcast, interpret: as in `tpu.flash`.
      rate: realized dropout rate (`dropout.realized`); 0 without a seed.
    """

    causal: bool
    rate: float
    broadcast: bool
    interpret: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options, inputs):
    return _attention_forward(options, inputs)[0]


def _attention_forward(options, inputs):
    mixed, log_sums = (checkpoint_name(x, RESIDUALS) for x in _forward(options, inputs))
    return mixed, (inputs, mixed, log_sums)


def _attention_backward(options, residuals, cotangent_BQNH):
    inputs, mixed_BQNH, log_sums_BNQ = residuals
    products_BQN = (mixed_BQNH.astype(jnp.float32) * cotangent_BQNH.astype(jnp.float32)).sum(-1)
    backward = BackwardInputs(cotangent_BQNH, log_sums_BNQ, products_BQN.swapaxes(1, 2))
    of_query, of_segments = _query_gradient(options, inputs, backward)
    of_key, of_value, of_key_bias = _key_value_gradients(options, inputs, backward)
    of_bias = None if inputs.bias_NR is None else _distance_gradient(options, inputs, backward, "bias")
    of_relative = None
    if (relative := inputs.relative) is not None:
        of_relative = RelativeScores(segment_scores=of_segments, key_bias=of_key_bias)
        for name in gpu_terms.VECTORS:
            if (vectors := getattr(relative, name)) is not None:
                gradient = _distance_gradient(options, inputs, backward, name)
                of_relative = of_relative.replace(**{name: gradient.astype(vectors.dtype)})
    return (Inputs(of_query, of_key, of_value, of_bias, of_relative, None),)


_attention.defvjp(_attention_forward, _attention_backward)


@dataclasses.dataclass(frozen=True)
class GpuCall:
    """Static arguments of a kernel.

    Attributes:
      options: options of `flash`.
      tile: tile sizes.
      queries: Q, number of queries.
      keys: K, number of keys.
      repeats: number of query heads per key head.
      head_dim: H, dimension of a head; tiles are padded with zeros to the next power of 2.
      query_axis: axis of the queries in a tile of scores, 0 or 1.
    """

    options: GpuOptions
    tile: tiles.GpuTile
    queries: int
    keys: int
    repeats: int
    head_dim: int
    query_axis: int = 0

    @property
    def query_tiles(self) -> int:
        """Number of tiles of queries."""
        return pl.cdiv(self.queries, self.tile.queries)

    @property
    def key_tiles(self) -> int:
        """Number of tiles of keys."""
        return pl.cdiv(self.keys, self.tile.keys)

    def load_query(self, ref, row, head, start):
        """Loads a tile of queries from [B, Q, N, H] or [B, N, Q]; entries past the end of the array are 0."""
        if len(ref.shape) == 3:
            return load(ref, (row, head, pl.ds(start, self.tile.queries)), self.inside(start, 0))
        index = row, pl.ds(start, self.tile.queries), head, slice(None)
        return load(ref, index, self.inside(start, 0, ref.shape[-1]))

    def load_key(self, ref, row, head, start):
        """Loads a tile of keys for a query head from [B, K, G, H]; entries past the end of the array are 0."""
        index = row, pl.ds(start, self.tile.keys), jax.lax.div(head, self.repeats), slice(None)
        return load(ref, index, self.inside(start, 1, ref.shape[-1]))

    def store(self, ref, row, head, start, values, axis):
        """Stores a tile in an array [B, Q, N, H] (axis 0) or [B, K, G, H] (axis 1), except entries past its end."""
        index = row, pl.ds(start, values.shape[0]), head, slice(None)
        triton.store(ref.at[index], values.astype(ref.dtype), mask=self.inside(start, axis, ref.shape[-1]))

    def store_row(self, ref, row, head, start, values, axis):
        """Stores a tile in an array [B, N, Q] (axis 0) or [B, N, K] (axis 1), except entries past its end."""
        index = row, head, pl.ds(start, values.shape[0])
        triton.store(ref.at[index], values, mask=self.inside(start, axis))

    def inside(self, start, axis, width=None):
        """Returns a mask of the entries of a tile that are within the array.

        Args:
          start: index of the first query or key of the tile.
          axis: 0 for a tile of queries, 1 for a tile of keys.
          width: number of features of the tile, including padding of H; None for a tile without features.

        Returns:
          A bool array that broadcasts to the tile, [T] or [T, width]. None if all entries are within the array.
        """
        tile, length = self.tile[axis], (self.queries, self.keys)[axis]
        inside = start + jnp.arange(tile) < length if length % tile else None
        if width is None:
            return inside
        inside = None if inside is None else inside[:, None]
        features = None if width == self.head_dim else (jnp.arange(width) < self.head_dim)[None, :]
        if inside is None or features is None:
            return features if inside is None else inside
        return inside & features

    def of_queries(self, vector):
        """Reshapes a vector with an entry per query so that it broadcasts to the tile's scores."""
        return jnp.expand_dims(vector, 1 - self.query_axis)

    def of_keys(self, vector):
        """Reshapes a vector with an entry per key so that it broadcasts to the tile's scores."""
        return jnp.expand_dims(vector, self.query_axis)

    def product(self, of_queries, of_keys):
        """Multiplies queries [T, H] and keys [T, H] over H; returns float32 in the shape of a tile of scores."""
        left, right = (of_queries, of_keys) if self.query_axis == 0 else (of_keys, of_queries)
        return dot(left, right, 1)

    def indices(self, starts):
        """Returns a pair: the indices of the tile's queries in this call, and the indices of its keys.

        Both broadcast to the tile's scores.
        """
        queries, keys = starts[0] + jnp.arange(self.tile.queries), starts[1] + jnp.arange(self.tile.keys)
        return self.of_queries(queries), self.of_keys(keys)

    def scores(self, refs, query, key, row, head, starts, masked):
        """Returns a tile of scores, query · key + terms.

        If `masked`, keys that are not visible have the score `UNSEEN`.
        """
        scores, (queries, keys) = self.product(query, key), self.indices(starts)
        if refs.bias_NR is not None:
            scores += refs.bias_NR[head, keys - queries + (self.query_tiles * self.tile.queries - 1)]
        scores = gpu_terms.add(self, refs, scores, query, key, row, head, starts)
        for visible in self._visible(refs.mask, row, starts, queries, keys) if masked else ():
            scores = jnp.where(visible, scores, UNSEEN)
        return scores

    def _visible(self, mask, row, starts, queries, keys):
        back = queries + (mask.offsets[2] - mask.offsets[3]) - keys
        if self.keys % self.tile.keys:
            yield keys < self.keys
        if self.options.causal:
            past = back >= 0
            if mask.prefix_lengths is not None:
                past |= keys < mask.prefix_lengths[row] - mask.offsets[3]
            yield past
        if mask.window is not None:
            yield (jnp.abs(back) < mask.window[0]) | (mask.window[0] == 0)
        if mask.query_ids is not None:
            query_ids = load(mask.query_ids, (row, pl.ds(starts[0], self.tile.queries)), self.inside(starts[0], 0), -1)
            key_ids = load(mask.key_ids, (row, pl.ds(starts[1], self.tile.keys)), self.inside(starts[1], 1), -1)
            yield self.of_queries(query_ids) == self.of_keys(jnp.where(key_ids < 0, -2, key_ids))
        if mask.query_order is not None:
            of_queries = load(mask.query_order, (row, pl.ds(starts[0], self.tile.queries)), self.inside(starts[0], 0))
            of_keys = load(mask.key_order, (row, pl.ds(starts[1], self.tile.keys)), self.inside(starts[1], 1))
            yield self.of_queries(of_queries) > self.of_keys(of_keys)

    def keep_mask(self, mask, row, head, starts, words_BNQ=None):
        """Returns the dropout mask of a tile of scores, bool: True for weights to keep.

        If all queries share a mask, the axis of queries has size 1.

        Args:
          words_BNQ: hashes of the queries; None: this method computes the hashes.
        """
        first_row, first_head, first_query, first_key = (mask.offsets[i] for i in range(4))
        indices = first_row + row, first_head + head
        # Axes of scores: those of keys are blocks of 16, the two keys of a word, and the words of a block.
        axes = (0, 1, 2, 3) if self.query_axis == 0 else (3, 0, 1, 2)
        query, block, second, within = (
            jnp.arange(size).reshape([size if axis == at else 1 for at in range(4)])
            for axis, size in zip(axes, (self.tile.queries, self.tile.keys // 16, 2, 8), strict=True)
        )
        query = jnp.zeros((1,) * 4, jnp.int32) if self.options.broadcast else first_query + starts[0] + query
        if words_BNQ is None:
            of_queries = dropout.word(mask.seed[0], *indices, query)
        else:
            of_queries = self.load_query(words_BNQ, row, head, starts[0]).reshape(query.shape)
        key = first_key + starts[1] + 16 * block + within
        words = dropout.meet(of_queries, dropout.word(mask.seed[1], *indices, key))
        keep_mask = dropout.keeps(words * jnp.where(second, *dropout.FACTORS[::-1]), self.options.rate)
        return keep_mask.reshape(*(query.size, self.tile.keys)[:: -1 if self.query_axis else 1])

    def derivative(self, refs, backward, query, key, value, cotangent, row, head, starts, masked):
        """Returns a pair of float32 tiles: the weights after dropout, and the cotangent of the scores.

        Both tiles lack the factor 1 / (1 - rate).
        """
        log_sums = self.load_query(backward.log_sums_BNQ, row, head, starts[0])
        products = self.load_query(backward.products_BNQ, row, head, starts[0]) * (1 - self.options.rate)
        scores = self.scores(refs, query, key, row, head, starts, masked)
        weights = _exponential(scores, self.of_queries(-_LOG2E * log_sums), self.options.interpret)
        dropped, of_weights = weights, self.product(cotangent, value)
        if self.options.rate:
            keep_mask = self.keep_mask(refs.mask, row, head, starts, backward.words_BNQ)
            dropped = _dropped(weights, keep_mask, self.options.interpret)
            of_weights = jnp.where(keep_mask, of_weights, 0.0)
        return dropped, weights * (of_weights - self.of_queries(products))

    def over(self, ranges_ref, mask, row, program, body, carry):
        """Loops over the tiles of a program with `body(masked, tile, carry)`; returns the last carry.

        `ranges_ref` contains the result of `tile_mask.ranges`. `masked` is False only if the tile is fully visible.
        """
        first, begin, end, last = (ranges_ref[row if ranges_ref.shape[0] > 1 else 0, program, i] for i in range(4))
        by_pair = any(array is not None for array in (mask.window, mask.query_ids, mask.query_order))
        if not self.options.causal and not by_pair and self.keys % self.tile.keys == 0:
            return jax.lax.fori_loop(first, last, functools.partial(body, False), carry)
        for masked, low, high in ((True, first, begin), (False, begin, end), (True, end, last)):
            carry = jax.lax.fori_loop(low, high, functools.partial(body, masked), carry)
        return carry


def _exponential(scores, shift, interpret):
    """Returns exp(scores) · 2^shift in float32.

    On a GPU, this takes two instructions instead of the seven that Triton would use.
    """
    shift = jnp.broadcast_to(shift, scores.shape)
    if interpret:
        return jnp.exp2(scores * _LOG2E + shift)
    (result,) = triton.elementwise_inline_asm(
        f"{{ .reg .f32 t; fma.rn.f32 t, $1, 0f{_LOG2E_BITS:X}, $2; ex2.approx.ftz.f32 $0, t; }}",
        args=(scores, shift),
        constraints="=f,f,f",
        pack=1,
        result_shape_dtypes=(jax.ShapeDtypeStruct(scores.shape, jnp.float32),),
    )
    return result


def _dropped(weights, keep_mask, interpret):
    """Returns the weights, with 0 where `keep_mask` is False.

    On a GPU, uses inline assembly. LLVM would select after the conversion to bfloat16. This would take two more
    instructions, to unpack and pack pairs.
    """
    if interpret:
        return jnp.where(keep_mask, weights, 0.0)
    (result,) = triton.elementwise_inline_asm(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; selp.f32 $0, $1, 0f00000000, p; }",
        args=(weights, jnp.broadcast_to(keep_mask, weights.shape).astype(jnp.int32)),
        constraints="=f,f,r",
        pack=1,
        result_shape_dtypes=(jax.ShapeDtypeStruct(weights.shape, jnp.float32),),
    )
    return result


def _forward_kernel(call, refs, ranges_ref, mixed_ref, log_sums_ref):
    tile, head, row = (pl.program_id(axis) for axis in range(3))
    # In causal attention the last queries have the most visible keys, so they start first.
    tile = call.query_tiles - 1 - tile
    start = tile * call.tile.queries
    query = call.load_query(refs.query_BQNH, row, head, start)

    def body(masked, key_tile, carry):
        mixed, greatest, sums = carry
        starts = start, key_tile * call.tile.keys
        scores = call.scores(refs, query, call.load_key(refs.key_BKGH, row, head, starts[1]), row, head, starts, masked)
        new_greatest = jnp.maximum(greatest, scores.max(1))
        # Without visible keys so far, the difference of two large numbers would be a rounding error with an infinite
        # exponential.
        shift = jnp.where(new_greatest == UNSEEN, 0.0, -_LOG2E * new_greatest)
        weights = _exponential(scores, shift[:, None], call.options.interpret)
        shrink = jnp.exp2(_LOG2E * (greatest - new_greatest))
        sums = sums * shrink + weights.sum(1)
        if call.options.rate:
            weights = _dropped(weights, call.keep_mask(refs.mask, row, head, starts), call.options.interpret)
        value = call.load_key(refs.value_BKGH, row, head, starts[1])
        mixed = mixed * shrink[:, None] + dot(weights.astype(value.dtype), value, 0)
        return mixed, new_greatest, sums

    carry = jnp.zeros(query.shape, jnp.float32), jnp.full(query.shape[0], UNSEEN), jnp.zeros(query.shape[0])
    mixed, greatest, sums = call.over(ranges_ref, refs.mask, row, tile, body, carry)
    sees_nothing = greatest == UNSEEN
    sums = jnp.where(sees_nothing, 1.0, sums)
    scale = jnp.where(sees_nothing, 0.0, 1 / ((1 - call.options.rate) * sums))
    call.store(mixed_ref, row, head, start, mixed * scale[:, None], 0)
    log_sums = jnp.where(sees_nothing, 0.0, greatest) + jnp.log(sums)
    call.store_row(log_sums_ref, row, head, start, log_sums, 0)


def _query_kernel(call, refs, ranges_ref, backward, gradient_ref, segment_refs):
    tile, head, row = (pl.program_id(axis) for axis in range(3))
    tile = call.query_tiles - 1 - tile
    start = tile * call.tile.queries
    query, cotangent = (call.load_query(ref, row, head, start) for ref in (refs.query_BQNH, backward.cotangent_BQNH))

    def body(masked, key_tile, carry):
        gradient, of_segments = carry
        starts = start, key_tile * call.tile.keys
        key, value = (call.load_key(ref, row, head, starts[1]) for ref in (refs.key_BKGH, refs.value_BKGH))
        _, of_scores = call.derivative(refs, backward, query, key, value, cotangent, row, head, starts, masked)
        gradient += dot(of_scores.astype(key.dtype), key, 0)
        gradient = gpu_terms.add_vectors(call, refs.relative, "key_vectors", gradient, of_scores, row, head, starts)
        return gradient, gpu_terms.add_by_segment(call, refs.relative, of_segments, of_scores, row, starts)

    zeros = jnp.zeros(call.tile.queries)
    carry = jnp.zeros(query.shape, jnp.float32), None if segment_refs is None else (zeros, zeros)
    gradient, of_segments = call.over(ranges_ref, refs.mask, row, tile, body, carry)
    call.store(gradient_ref, row, head, start, gradient / (1 - call.options.rate), 0)
    for ref, total in zip(segment_refs or (), of_segments or (), strict=True):
        call.store_row(ref, row, head, start, total / (1 - call.options.rate), 0)


def _key_kernel(call, refs, ranges_ref, backward, of_key_ref, of_value_ref, of_key_bias_ref):
    tile, group, row = (pl.program_id(axis) for axis in range(3))
    start, first_head = tile * call.tile.keys, group * call.repeats
    key, value = (call.load_key(ref, row, first_head, start) for ref in (refs.key_BKGH, refs.value_BKGH))

    def of_head(head, carry):
        def body(masked, query_tile, carry):
            of_key, of_value, of_key_bias = carry
            starts = query_tile * call.tile.queries, start
            query, cotangent = (
                call.load_query(ref, row, head, starts[0]) for ref in (refs.query_BQNH, backward.cotangent_BQNH)
            )
            dropped, of_scores = call.derivative(
                refs, backward, query, key, value, cotangent, row, head, starts, masked
            )
            of_value += dot(dropped.astype(cotangent.dtype), cotangent, 0)
            of_key += dot(of_scores.astype(query.dtype), query, 0)
            of_key = gpu_terms.add_vectors(call, refs.relative, "query_vectors", of_key, of_scores, row, head, starts)
            return of_key, of_value, None if of_key_bias is None else of_key_bias + of_scores.sum(1)

        of_key_bias = None if of_key_bias_ref is None else jnp.zeros(call.tile.keys)
        *carry, of_key_bias = call.over(ranges_ref, refs.mask, row, tile, body, (*carry, of_key_bias))
        if of_key_bias_ref is not None:
            call.store_row(of_key_bias_ref, row, head, start, of_key_bias / (1 - call.options.rate), 1)
        return tuple(carry)

    carry = jnp.zeros(key.shape, jnp.float32), jnp.zeros(key.shape, jnp.float32)
    if call.repeats == 1:
        carry = of_head(first_head, carry)
    else:
        carry = jax.lax.fori_loop(first_head, first_head + call.repeats, of_head, carry)
    for ref, gradient in zip((of_key_ref, of_value_ref), carry, strict=True):
        call.store(ref, row, group, start, gradient / (1 - call.options.rate), 1)


@_WHOLE
def _forward(options, inputs):
    batch, queries, heads, _ = inputs.query_BQNH.shape
    outputs = _like(inputs.query_BQNH), jax.ShapeDtypeStruct((batch, heads, queries), jnp.float32)
    call, ranges = _prepared("triton_forward", options, inputs)
    return _run("triton_forward", _forward_kernel, call, (call.query_tiles, heads, batch), outputs, inputs, ranges)


@_WHOLE
def _query_gradient(options, inputs, backward):
    """Returns a pair: the gradient of the queries, and the gradient of the segment scores or None."""
    batch, queries, heads, _ = inputs.query_BQNH.shape
    call, ranges = _prepared("triton_dq", options, inputs)
    of_segments = None
    if inputs.relative is not None and inputs.relative.segment_scores is not None:
        of_segments = (jax.ShapeDtypeStruct((batch, heads, queries), jnp.float32),) * 2
    outputs, grid = (_like(inputs.query_BQNH), of_segments), (call.query_tiles, heads, batch)
    of_query, of_segments = _run("triton_dq", _query_kernel, call, grid, outputs, inputs, ranges, backward)
    return of_query, None if of_segments is None else jnp.stack(of_segments, -1)


@_WHOLE
def _key_value_gradients(options, inputs, backward):
    """Returns three gradients: of the keys, of the values, and of `RelativeScores.key_bias` (None without it)."""
    batch, _, groups, _ = inputs.key_BKGH.shape
    call, ranges = _prepared("triton_dkv", options, inputs)
    if options.rate and not options.broadcast:
        # In a tile of this kernel, a thread has a quarter of the queries: hashing them would take a fifth of its time.
        row, head, query = jnp.ix_(*map(jnp.arange, backward.log_sums_BNQ.shape))
        first_row, first_head, first_query, _ = inputs.mask.offsets
        words = dropout.word(inputs.mask.seed[0], first_row + row, first_head + head, first_query + query)
        backward = backward._replace(words_BNQ=words)
    key_bias = None if inputs.relative is None else inputs.relative.key_bias
    outputs = _like(inputs.key_BKGH), _like(inputs.value_BKGH), None if key_bias is None else _like(key_bias)
    # With the keys' tiles in the grid, sums over queries stay in registers.
    grid = call.key_tiles, groups, batch
    return _run("triton_dkv", _key_kernel, call, grid, outputs, inputs, ranges, backward)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _distance_gradient(options, inputs, backward, name):
    """Returns the gradient of a bias by distance [N, Q + K - 1], or of vectors by distance [N, Q + K - 1, H].

    The kernel sums over the tiles of each diagonal of tiles; XLA computes the remaining sums.

    Args:
      name: "bias" for the bias, or the name of the vectors in `RelativeScores`.
    """
    batch, queries, heads, head_dim = inputs.query_BQNH.shape
    kernel = "triton_dbias" if name == "bias" else f"triton_d{name}"
    call, ranges = _prepared(kernel, options, inputs)
    length, diagonals = call.tile.queries, call.query_tiles + call.key_tiles - 1
    rows = pl.cdiv(batch, min(batch, pl.cdiv(_PROGRAMS, diagonals * heads)))
    grid = diagonals, heads, pl.cdiv(batch, rows)
    shape = (length, length) if name == "bias" else (2 * length, gpu_terms.padded_width(head_dim))
    outputs = jax.ShapeDtypeStruct((*grid[::-1], *shape), jnp.float32)
    body = functools.partial(gpu_terms.distance_kernel, name, rows)
    sums = _run(kernel, body, call, grid, outputs, inputs, ranges, backward).sum(0)
    bands = gpu_terms.along_diagonals(sums) if name == "bias" else sums[..., :head_dim]
    first = call.query_tiles * length - queries
    return gpu_terms.joined(bands)[:, first : first + queries + call.keys - 1]


def _prepared(name, options, inputs):
    """Returns a pair: the `GpuCall` of a kernel, and the result of `tile_mask.ranges` for the kernel's programs."""
    (_, queries, heads, head_dim), (_, keys, groups, _) = inputs.query_BQNH.shape, inputs.key_BKGH.shape
    tile = tiles.on_gpu(gpu_terms.tile_name(name, inputs.relative), head_dim)
    call = GpuCall(options, tile, queries, keys, heads // groups, head_dim, query_axis=int(name == "triton_dkv"))
    mask = inputs.mask._asdict()
    del mask["seed"]
    visibility = tile_mask.tiles(queries, keys, tile.queries, tile.keys, causal=options.causal, **mask)
    if name == "triton_dkv":
        visibility = [x.swapaxes(1, 2) for x in visibility]
    if name not in ("triton_forward", "triton_dq", "triton_dkv"):
        visibility = [tile_mask.diagonals(x) for x in visibility]
    if (relative := inputs.relative) is not None and relative.reverse is not None and name.endswith("key_vectors"):
        # Rows with the other vectors are skipped.
        has_vectors = relative.reverse == int(name == "triton_dreverse_key_vectors")
        visibility = [x & has_vectors[:, None, None] for x in visibility]
    return call, tile_mask.ranges(*visibility)


def _run(name, body, call, grid, outputs, inputs, ranges, *backward):
    batch, _, heads, head_dim = inputs.query_BQNH.shape
    if inputs.bias_NR is not None:
        # Padded to whole tiles.
        beyond = call.query_tiles * call.tile.queries - call.queries, call.key_tiles * call.tile.keys - call.keys
        inputs = inputs._replace(bias_NR=jnp.pad(inputs.bias_NR, ((0, 0), beyond)))
    if inputs.relative is not None:
        inputs = inputs._replace(relative=gpu_terms.padded(call, inputs.relative, inputs.query_BQNH.dtype))
    arguments = inputs, ranges, *backward

    def spec(array):
        """Returns the specification of a block that is the whole array; the last of four axes is padded."""
        *most, last = array.shape
        block = (*most, gpu_terms.padded_width(last)) if array.ndim == 4 else array.shape
        return pl.BlockSpec(block, lambda *_: (0,) * array.ndim)

    products = {"triton_forward": 2, "triton_dq": 3, "triton_dkv": 4}.get(name, 2)
    products += gpu_terms.products(name, inputs.relative)
    scores = batch * heads * _visited(call, inputs.mask)
    return pl.pallas_call(
        functools.partial(body, call),
        out_shape=outputs,
        grid=grid,
        in_specs=jax.tree.map(spec, arguments),
        out_specs=jax.tree.map(spec, outputs),
        compiler_params=triton.CompilerParams(num_warps=call.tile.warps, num_stages=call.tile.stages),
        interpret=call.options.interpret,
        name=name,
        cost_estimate=pl.CostEstimate(
            flops=2 * products * scores * head_dim,
            transcendentals=scores,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((arguments, outputs))),
        ),
    )(*arguments)


def _visited(call, mask):
    """Estimates the number of scores computed per head. Ignores all masks except causality; assumes offsets of 0."""
    tiles_of_keys = [call.key_tiles] * call.query_tiles
    if call.options.causal and mask.prefix_lengths is None:
        last = ((i + 1) * call.tile.queries - 1 for i in range(call.query_tiles))
        tiles_of_keys = [min(query // call.tile.keys + 1, call.key_tiles) for query in last]
    return sum(tiles_of_keys) * call.tile.queries * call.tile.keys


def _like(array):
    return jax.ShapeDtypeStruct(array.shape, array.dtype)
