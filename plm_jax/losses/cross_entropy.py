"""Cross-entropy with a vocabulary, computed in chunks so that the full logits are never in memory."""

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
Targets = Integer[Any, "batch targets"]
Weights = Float[Any, "batch targets"]
# Default number of logits per device and chunk; 2**25 in float32 take 128 MiB.
LOGITS_AT_ONCE = 2**25


class CrossEntropySums(NamedTuple):
    """Sums over target tokens: the loss to minimize, the plain negative log-likelihood (nats) and correct predictions.

    A prediction is correct if the target's logit is strictly above all others; with a tie it is not, so that constant
    logits predict nothing correctly.
    """

    loss: Float[Array, ""]
    nll: Float[Array, ""]
    correct: Float[Array, ""]


def linear_cross_entropy(
    features: Features,
    unembedding: Matrix,
    bias: Bias | None,
    targets: Targets,
    weights: Weights,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> CrossEntropySums:
    """Returns the cross-entropy of features @ unembedding.T + bias without holding all logits in memory.

    Each device processes its own tokens in chunks. Under differentiation, the forward pass computes the gradients in
    place of the logits, so nothing is computed twice. Only `loss` has a gradient.

    Args:
      features: [B, L, D].
      unembedding: [V, D], or a `tables.GatheredTable` of it.
      bias: float32 [V], or None.
      targets: int32 [B, L].
      weights: float32 [B, L].
      z_loss: factor of log(Z)² per token (Chowdhery et al. 2022 §5).
      label_smoothing: share of the target's mass spread evenly over the vocabulary.
      logits_at_once: approximate number of logits per device and chunk; a chunk has at least one position of every row.
    """
    settings = z_loss, label_smoothing, logits_at_once
    if isinstance(unembedding, tables.GatheredTable):
        return _over_mesh(features, unembedding, bias, targets, weights, settings)
    if is_spread():
        table = tables.whole(unembedding, features.dtype)
        return _over_mesh(features, table, bias, targets, weights, settings)
    return _on_one_device(features, unembedding, bias, targets, weights, settings)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _on_one_device(features, unembedding, bias, targets, weights, settings) -> CrossEntropySums:
    matrix = unembedding.astype(features.dtype)
    return _of_device((features, matrix, bias, targets, weights), settings, with_gradients=False)[0]


def _forward(features, unembedding, bias, targets, weights, settings):
    matrix = unembedding.astype(features.dtype)
    return _of_device((features, matrix, bias, targets, weights), settings, with_gradients=True)


def _backward(settings, gradients, cotangents):
    # In float32: rounding the factor to bfloat16 would scale every gradient by up to 0.4 %.
    d_features, d_matrix, d_bias = jax.tree.map(lambda g: (g * cotangents.loss).astype(g.dtype), gradients)
    return d_features, d_matrix, d_bias, None, None


_on_one_device.defvjp(_forward, _backward)


def _of_device(arrays, settings, with_gradients, layout=None, vocab_size=None):
    """Returns the sums of a device's tokens, and the gradients of features, matrix [v, D] and bias [v].

    Args:
      arrays: features; matrix [v, D], the device's shard of the vocabulary, in the dtype of the features; bias;
        targets; weights.
      layout: the `tables.TableSharding` of a vocabulary sharded over a mesh; None if it is not sharded.
      vocab_size: V; None stands for v.
    """
    features, matrix, bias, targets, weights = arrays
    z_loss, label_smoothing, logits_at_once = settings
    vocab_size = len(matrix) if vocab_size is None else vocab_size
    process = functools.partial(_chunk, layout, vocab_size, matrix, bias, z_loss, label_smoothing, with_gradients)
    rows, length = targets.shape
    chunk = chunk_length(rows, length, len(matrix), logits_at_once)
    apply = process if chunk >= length else functools.partial(_walk, process, chunk)
    (sums, d_head), d_features = apply(features, targets, weights)
    if not with_gradients:
        return sums, None
    d_matrix, d_bias = d_head
    return sums, (d_features, d_matrix, d_bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _over_mesh(features, table, bias, targets, weights, settings) -> CrossEntropySums:
    return _of_devices(features, table, bias, targets, weights, settings, with_gradients=False)[0]


def _forward_over_mesh(features, table, bias, targets, weights, settings):
    return _of_devices(features, table, bias, targets, weights, settings, with_gradients=True)


_over_mesh.defvjp(_forward_over_mesh, _backward)


def _of_devices(features, table, bias, targets, weights, settings, *, with_gradients):
    """Runs `_of_device` on each device; returns the sums and the gradients of features, table [S, V, D] and bias."""
    layout, rows = table.layout, table.rows
    of_tokens, repeats = layout.spec(targets.shape), layout.repeats(targets.shape)
    of_features, of_bias = PartitionSpec(*of_tokens, None), PartitionSpec(layout.vocab)

    def local_sums(features, matrix, bias, targets, weights):
        arrays = features, matrix, bias, targets, weights
        sums, gradients = _of_device(arrays, settings, with_gradients, layout, rows)
        sums = jax.lax.psum(sums, tables.axes(of_tokens))
        if gradients is None:
            return sums, None
        d_features, d_matrix, d_bias = gradients
        d_bias = d_bias if bias is None else jax.lax.psum(d_bias, tables.axes(of_tokens))
        return sums, (jax.lax.psum(d_features, layout.vocab), d_matrix[None] / repeats, d_bias)

    in_specs = of_features, PartitionSpec(layout.vocab, None), of_bias, of_tokens, of_tokens
    of_matrix = PartitionSpec(layout.tokens, layout.vocab, None)
    out_specs = PartitionSpec(), (of_features, of_matrix, of_bias) if with_gradients else None
    run = layout.on_each_device(local_sums, in_specs, out_specs)
    padded = bias if bias is None else jnp.pad(bias, (0, layout.padding(rows)))
    sums, gradients = run(features, table.matrix, padded, targets, weights)
    if not with_gradients:
        return sums, None
    d_features, d_matrix, d_bias = gradients
    return sums, (d_features, tables.GatheredTable(None, d_matrix, rows), d_bias if bias is None else d_bias[:rows])


def _walk(function: Callable, chunk: int, features, targets, weights) -> tuple[Any, Any]:
    """Applies `function` to `chunk` positions [b, chunk, …] at a time.

    Returns:
      Sums of its first results; its second results joined to [b, L, …].
    """
    rows, length = targets.shape
    padding = -length % chunk
    arrays = [jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2)) for x in (features, targets, weights)]

    def step(sums, start):
        new, parts = function(*(jax.lax.dynamic_slice_in_dim(x, start, chunk, axis=1) for x in arrays))
        return jax.tree.map(jnp.add, sums, new), parts

    shapes = jax.eval_shape(function, *(x[:, :chunk] for x in arrays))[0]
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    sums, parts = jax.lax.scan(step, zeros, jnp.arange(0, length + padding, chunk))
    return sums, jax.tree.map(
        lambda x: jnp.moveaxis(x, 0, 1).reshape(rows, length + padding, *x.shape[3:])[:, :length], parts
    )


def _chunk(
    layout, vocab_size, matrix, bias, z_loss, label_smoothing, with_gradients, features_BCD, targets_BC, weights_BC
) -> tuple[tuple[CrossEntropySums, Any], Any]:
    """Returns ((sums, (d loss / d matrix [v, D], d loss / d bias [v])), d loss / d features [b, C, D]) of one chunk.

    `matrix` and `bias` are the device's shard of the vocabulary. Results are reduced over the shards here, except the
    gradient of the features.
    """
    local_size = len(matrix)
    logits = jnp.einsum("bcd,vd->bcv", features_BCD, matrix, preferred_element_type=jnp.float32)
    logits = logits if bias is None else logits + bias
    ids_BC, vocab = targets_BC, ()
    if layout is not None:
        ids_BC, vocab = layout.local_ids(targets_BC, local_size), layout.vocab
        logits = layout.without_padding(logits, vocab_size)
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
        loss = loss + label_smoothing * (of_target - total / vocab_size)
    correct = (of_target > of_others).astype(jnp.float32)
    sums = CrossEntropySums(*(jnp.sum(x * weights_BC) for x in (loss, nll, correct)))
    if not with_gradients:
        return (sums, None), None
    hard = jnp.where(jnp.arange(local_size) == ids_BC[..., None], 1 - label_smoothing, 0.0)
    soft = exp * ((1 + 2 * z_loss * log_z) / z)[..., None]
    smooth = jnp.where(logits > -jnp.inf, label_smoothing / vocab_size, 0.0) if label_smoothing else 0.0
    d_logits = weights_BC[..., None] * (soft - hard - smooth)
    d_bias = None if bias is None else d_logits.sum((0, 1))
    d_logits = d_logits.astype(features_BCD.dtype)
    d_features = jnp.einsum("bcv,vd->bcd", d_logits, matrix)
    flat_logits, flat_features = d_logits.reshape(-1, local_size), features_BCD.reshape(-1, features_BCD.shape[-1])
    d_matrix = jnp.einsum("nv,nd->vd", flat_logits, flat_features, preferred_element_type=jnp.float32)
    return (sums, (d_matrix, d_bias)), d_features


def target_and_largest_other(
    logits: Float[Any, "*rows vocab"], targets: Integer[Any, "*rows"]
) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
    """Returns the logits of the targets [...] and the largest of the other logits [...], from logits [..., V].

    If a target is outside [0, V), its logit is arbitrary, and the largest of all V logits is returned as the other one.
    """
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    target_logits = jnp.take_along_axis(logits, targets[..., None], axis=-1, mode="clip")[..., 0]
    return target_logits, jnp.where(is_target, -jnp.inf, logits).max(-1)


def chunk_length(rows: int, length: int, vocab_size: int, logits_at_once: int) -> int:
    """Returns the number of positions in each even chunk of [rows, length], for about `logits_at_once` logits."""
    chunks = -(-rows * length * vocab_size // logits_at_once)
    return -(-length // min(chunks, length))
