"""Cross-entropy with a vocabulary, computed in chunks to limit the number of logits in memory at a time."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Integer

from plm_jax.models import tables
from plm_jax.models.partitioning import is_spread

Features = Float[Any, "batch targets dim"]
Matrix = Float[Any, "vocab dim"] | tables.GatheredTable
Bias = Float[Any, " vocab"]
# Default number of logits per device and chunk; 2**25 in float32 take 128 MiB.
LOGITS_AT_ONCE = 2**25


class CrossEntropySums(NamedTuple):
    """Weighted sums over target tokens.

    Attributes:
      loss: the loss to minimize.
      nll: the negative log-likelihood in nats, without the other terms of the loss.
      correct: correct predictions. A prediction is correct if the target's logit is strictly above all other logits.
        Constant logits therefore predict nothing correctly.
    """

    loss: Float[Array, ""]
    nll: Float[Array, ""]
    correct: Float[Array, ""]


class VocabularyShard(NamedTuple):
    """The shard of a vocabulary whose logits a device computes.

    Attributes:
      layout: sharding of the vocabulary over a mesh; None: the device has the whole vocabulary.
      vocab_size: V, without padding.
      axes: mesh axes that shard the vocabulary.
    """

    layout: tables.TableSharding | None
    vocab_size: int
    axes: tuple[str, ...]

    def logits(self, features: jax.Array, matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
        """Returns the logits features [b, C, D] @ matrix.T [D, v] + bias, float32 [b, C, v].

        Rows of the matrix that are padding have logits of -inf.
        """
        logits = jnp.einsum("bcd,vd->bcv", features, matrix, preferred_element_type=jnp.float32)
        logits = logits if bias is None else logits + bias
        return logits if self.layout is None else self.layout.without_padding(logits, self.vocab_size)

    def log_softmax(self, logits: jax.Array) -> jax.Array:
        """Returns the log-softmax over the whole vocabulary, for the logits [b, C, v] of this shard."""
        largest = jax.lax.pmax(logits.max(-1), self.axes) if self.axes else logits.max(-1)
        shifted = logits - largest[..., None]
        return shifted - jnp.log(jax.lax.psum(jnp.exp(shifted).sum(-1), self.axes))[..., None]


def sum_over_vocabulary(
    compute: Callable, features: Features, unembedding: Matrix, bias: Bias | None, tokens, shared, logits_at_once: int
) -> Any:
    """Returns the sums of `compute` over all tokens, with a limited number of logits in memory at a time.

    The logits are features @ unembedding.T + bias. Each device processes its own tokens in chunks. Under
    differentiation, the forward pass computes gradients and does not keep the logits, so nothing is computed twice.

    Args:
      compute: hashable function `(shard, logits [b, C, v], shared, with_gradients, *tokens) → (sums, d_logits)`, which
        is called for each chunk. The field `loss` of the sums is differentiated. `d_logits` is the gradient of `loss`
        with respect to the logits, or None without `with_gradients`.
      features: [B, L, D].
      unembedding: [V, D], or a `tables.GatheredTable` of this matrix.
      bias: float32 [V], or None.
      tokens: arrays [B, L, …] that are split into chunks like the features; they have no gradient.
      shared: arrays [V, …] or None, sharded like the vocabulary; they have no gradient.
      logits_at_once: approximate number of logits per device and chunk; a chunk has at least one position of every row.
    """
    settings = compute, logits_at_once
    if isinstance(unembedding, tables.GatheredTable):
        return _over_mesh(features, unembedding, bias, tokens, shared, settings)
    if is_spread():
        table = tables.whole(unembedding, features.dtype)
        return _over_mesh(features, table, bias, tokens, shared, settings)
    return _on_one_device(features, unembedding, bias, tokens, shared, settings)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _on_one_device(features, unembedding, bias, tokens, shared, settings):
    matrix = unembedding.astype(features.dtype)
    return _of_device((features, matrix, bias, tokens, shared), settings, with_gradients=False)[0]


def _forward(features, unembedding, bias, tokens, shared, settings):
    matrix = unembedding.astype(features.dtype)
    return _of_device((features, matrix, bias, tokens, shared), settings, with_gradients=True)


def _backward(settings, gradients, cotangents):
    # In float32: rounding the factor to bfloat16 would scale every gradient by up to 0.4 %.
    d_features, d_matrix, d_bias = jax.tree.map(lambda g: (g * cotangents.loss).astype(g.dtype), gradients)
    return d_features, d_matrix, d_bias, None, None


_on_one_device.defvjp(_forward, _backward)


def _of_device(arrays, settings, with_gradients, layout=None, vocab_size=None):
    """Returns a pair: the sums over a device's tokens, and the gradients of features, matrix [v, D] and bias [v].

    Without `with_gradients`, the second result is None.

    Args:
      arrays: tuple of features, matrix, bias, tokens and shared. The matrix [v, D] is the device's shard of the
        unembedding, in the dtype of the features.
      layout: the `tables.TableSharding` of the vocabulary over a mesh; None: the device has the whole vocabulary.
      vocab_size: V; None: v.
    """
    features, matrix, bias, tokens, shared = arrays
    compute, logits_at_once = settings
    shard = VocabularyShard(layout, vocab_size or len(matrix), layout.vocab if layout else ())
    process = functools.partial(_chunk, compute, shard, matrix, bias, shared, with_gradients)
    rows, length = features.shape[:2]
    chunk = chunk_length(rows, length, len(matrix), logits_at_once)
    apply = process if chunk >= length else functools.partial(_walk, process, chunk)
    (sums, d_head), d_features = apply(features, *tokens)
    return sums, (d_features, *d_head) if with_gradients else None


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _over_mesh(features, table, bias, tokens, shared, settings):
    return _of_devices(features, table, bias, tokens, shared, settings, with_gradients=False)[0]


def _forward_over_mesh(features, table, bias, tokens, shared, settings):
    return _of_devices(features, table, bias, tokens, shared, settings, with_gradients=True)


_over_mesh.defvjp(_forward_over_mesh, _backward)


def _of_devices(features, table, bias, tokens, shared, settings, *, with_gradients):
    """Runs `_of_device` on each device.

    Returns:
      A pair: the sums, and the gradients of features, table [S, V, D] and bias (None without `with_gradients`).
    """
    layout, rows = table.layout, table.rows
    of_tokens, repeats = layout.spec(features.shape[:2]), layout.repeats(features.shape[:2])
    of_features, of_bias = PartitionSpec(*of_tokens, None), PartitionSpec(layout.vocab)

    def local_sums(features, matrix, bias, tokens, shared):
        arrays = features, matrix, bias, tokens, shared
        sums, gradients = _of_device(arrays, settings, with_gradients, layout, rows)
        sums = jax.lax.psum(sums, tables.axes(of_tokens))
        if gradients is None:
            return sums, None
        d_features, d_matrix, d_bias = gradients
        d_bias = d_bias if bias is None else jax.lax.psum(d_bias, tables.axes(of_tokens))
        return sums, (jax.lax.psum(d_features, layout.vocab), d_matrix[None] / repeats, d_bias)

    in_specs = of_features, PartitionSpec(layout.vocab, None), of_bias, of_tokens, of_bias
    of_matrix = PartitionSpec(layout.tokens, layout.vocab, None)
    out_specs = PartitionSpec(), (of_features, of_matrix, of_bias) if with_gradients else None
    run = layout.on_each_device(local_sums, in_specs, out_specs)
    padded = jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, layout.padding(rows)), *[(0, 0)] * (leaf.ndim - 1))), shared)
    bias = bias if bias is None else jnp.pad(bias, (0, layout.padding(rows)))
    sums, gradients = run(features, table.matrix, bias, tokens, padded)
    if not with_gradients:
        return sums, None
    d_features, d_matrix, d_bias = gradients
    return sums, (d_features, tables.GatheredTable(None, d_matrix, rows), d_bias if bias is None else d_bias[:rows])


def _walk(function: Callable, chunk: int, *arrays) -> tuple[Any, Any]:
    """Applies `function` to `chunk` positions [b, chunk, …] of arrays [b, L, …] at a time.

    Returns:
      A pair: the sum of the first results of `function`, and its second results joined to [b, L, …].
    """
    rows, length = arrays[0].shape[:2]
    padding = -length % chunk
    arrays = [jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2)) for x in arrays]

    def step(sums, start):
        new, parts = function(*(jax.lax.dynamic_slice_in_dim(x, start, chunk, axis=1) for x in arrays))
        return jax.tree.map(jnp.add, sums, new), parts

    shapes = jax.eval_shape(function, *(x[:, :chunk] for x in arrays))[0]
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    sums, parts = jax.lax.scan(step, zeros, jnp.arange(0, length + padding, chunk))
    return sums, jax.tree.map(
        lambda x: jnp.moveaxis(x, 0, 1).reshape(rows, length + padding, *x.shape[3:])[:, :length], parts
    )


def _chunk(compute, shard, matrix, bias, shared, with_gradients, features_BCD, *tokens) -> tuple[tuple[Any, Any], Any]:
    """Returns ((sums, (d loss / d matrix [v, D], d loss / d bias [v])), d loss / d features [b, C, D]) of one chunk.

    `matrix` and `bias` are the device's shards. `compute` has already reduced the sums over all shards of the
    vocabulary. The gradient of the features is not reduced yet. Without `with_gradients`, the gradients are None.
    """
    logits = shard.logits(features_BCD, matrix, bias)
    sums, d_logits = compute(shard, logits, shared, with_gradients, *tokens)
    if d_logits is None:
        return (sums, None), None
    d_bias = None if bias is None else d_logits.sum((0, 1))
    d_logits = d_logits.astype(features_BCD.dtype)
    d_features = jnp.einsum("bcv,vd->bcd", d_logits, matrix)
    flat_logits, flat_features = d_logits.reshape(-1, len(matrix)), features_BCD.reshape(-1, features_BCD.shape[-1])
    d_matrix = jnp.einsum("nv,nd->vd", flat_logits, flat_features, preferred_element_type=jnp.float32)
    return (sums, (d_matrix, d_bias)), d_features


class CrossEntropy(NamedTuple):
    """Cross-entropy, as the argument `compute` of `sum_over_vocabulary`.

    The arrays `tokens` are the targets, int32 [B, L], and their weights, float32 [B, L].

    Attributes:
      z_loss: coefficient of the term log(Z)² of each token (Chowdhery et al. 2022 §5).
      label_smoothing: share of the target's probability that is spread evenly over the vocabulary.
    """

    z_loss: float = 0.0
    label_smoothing: float = 0.0

    def __call__(self, shard: VocabularyShard, logits, shared, with_gradients: bool, targets_BC, weights_BC):
        """Returns a pair: the sums, and the gradient of the loss with respect to the logits, [b, C, v], or None."""
        z_loss, label_smoothing, local_size, vocab = *self, logits.shape[-1], shard.axes
        ids_BC: Any = shard.layout.local_ids(targets_BC, local_size) if shard.layout else targets_BC
        # An argmax would cost as much as the softmax on a CPU.
        of_target, of_others = target_and_largest_other(logits, ids_BC)
        if vocab:
            of_target = jax.lax.psum(jnp.where((ids_BC >= 0) & (ids_BC < local_size), of_target, 0.0), vocab)
            of_others = jax.lax.pmax(of_others, vocab)
        largest = jnp.maximum(of_target, of_others)
        exp = jnp.exp(logits - largest[..., None])
        z = jax.lax.psum(exp.sum(-1), vocab)
        log_z = largest + jnp.log(z)
        nll = log_z - of_target
        loss = nll + z_loss * log_z**2
        if label_smoothing:
            total = jax.lax.psum(jnp.where(logits > -jnp.inf, logits, 0.0).sum(-1), vocab)
            loss = loss + label_smoothing * (of_target - total / shard.vocab_size)
        correct = (of_target > of_others).astype(jnp.float32)
        sums = CrossEntropySums(*(jnp.sum(x * weights_BC) for x in (loss, nll, correct)))
        if not with_gradients:
            return sums, None
        hard = jnp.where(jnp.arange(local_size) == ids_BC[..., None], 1 - label_smoothing, 0.0)
        soft = exp * ((1 + 2 * z_loss * log_z) / z)[..., None]
        smooth = jnp.where(logits > -jnp.inf, label_smoothing / shard.vocab_size, 0.0) if label_smoothing else 0.0
        return sums, weights_BC[..., None] * (soft - hard - smooth)


def target_and_largest_other(
    logits: Float[Any, "*rows vocab"], targets: Integer[Any, "*rows"]
) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
    """Returns a pair from logits [..., V]: the logit of each target, and the largest of the other logits, both [...].

    If a target is outside of [0, V), its logit is arbitrary, and the second result is the largest of all V logits.
    """
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1, mode="clip")[..., 0]
    return target_logits, jnp.where(is_target, -jnp.inf, logits).max(-1)


def chunk_length(rows: int, length: int, vocab_size: int, logits_at_once: int) -> int:
    """Returns the number of positions per chunk of an array [rows, length].

    Chunks have about equal lengths and at most about `logits_at_once` logits, but at least one position.
    """
    chunks = -(-rows * length * vocab_size // logits_at_once)
    return -(-length // min(chunks, length))
