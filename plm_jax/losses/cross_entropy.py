"""Cross-entropy with a vocabulary, never all of its logits at once."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.models.partitioning import constrain

# Logits that one device holds at a time; 2**25 in float32 are 128 MiB.
LOGITS_AT_ONCE = 2**25


class Sums(NamedTuple):
    """Sums over target tokens: the loss to minimise, the plain negative log-likelihood (nats), and hits.

    A hit is a target whose logit is above all others; a tie is none, so that constant logits hit nothing.
    """

    loss: jax.Array
    nll: jax.Array
    correct: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def linear_cross_entropy(features, unembedding, bias, targets, weights, z_loss, label_smoothing, chunk) -> Sums:
    """Cross-entropy of features @ unembedding.T + bias without ever holding all logits.

    The forward pass walks over `chunk` positions at a time; when it is differentiated it leaves the gradients instead
    of the logits, so nothing is computed twice. Only `loss` has a gradient.

    Args:
      features: [B, L, D].
      unembedding: [V, D].
      bias: float32 [V], or None.
      targets: int32 [B, L].
      weights: float32 [B, L].
      z_loss: factor of log(Z)² per token (Chowdhery et al. 2022 §5).
      label_smoothing: share of the target's mass spread evenly over the vocabulary.
      chunk: positions of L at a time.
    """
    return _walk(features, unembedding, bias, targets, weights, z_loss, label_smoothing, chunk, with_gradients=False)[0]


def _forward(features, unembedding, bias, targets, weights, z_loss, label_smoothing, chunk):
    return _walk(features, unembedding, bias, targets, weights, z_loss, label_smoothing, chunk, with_gradients=True)


def _backward(z_loss, label_smoothing, chunk, gradients, cotangents):
    # In float32: a factor rounded to bfloat16 would be off by up to 0.4 % for all of them.
    scaled = jax.tree.map(lambda gradient: (gradient * cotangents.loss).astype(gradient.dtype), gradients)
    return *scaled, None, None


linear_cross_entropy.defvjp(_forward, _backward)


def _walk(features, unembedding, bias, targets, weights, z_loss, label_smoothing, chunk, *, with_gradients):
    """(Sums, (d loss / d features [B, L, D], … / d unembedding [V, D], … / d bias) or None), chunk by chunk."""
    length = features.shape[1]
    matrix = unembedding.astype(features.dtype)

    def one(features_BCD, targets_BC, weights_BC):
        logits = jnp.einsum("bcd,vd->bcv", features_BCD, matrix, preferred_element_type=jnp.float32)
        logits = logits if bias is None else logits + bias
        # No argmax, which costs as much as a softmax on a CPU.
        of_target, of_others = own_and_largest_other(logits, targets_BC)
        largest = jnp.maximum(of_target, of_others)
        exp = jnp.exp(logits - largest[..., None])
        z = exp.sum(-1)
        log_z = largest + jnp.log(z)
        nll = log_z - of_target
        loss = nll + z_loss * log_z**2
        if label_smoothing:
            loss = loss + label_smoothing * (of_target - logits.mean(-1))
        correct = (of_target > of_others).astype(jnp.float32)
        sums = Sums(*(jnp.sum(x * weights_BC) for x in (loss, nll, correct)))
        if not with_gradients:
            return sums, None
        vocab_size = logits.shape[-1]
        hard = jnp.where(jnp.arange(vocab_size) == targets_BC[..., None], 1 - label_smoothing, 0.0)
        soft = exp * ((1 + 2 * z_loss * log_z) / z)[..., None]
        d_logits = weights_BC[..., None] * (soft - hard - label_smoothing / vocab_size)
        d_bias = None if bias is None else d_logits.sum((0, 1))
        d_logits = d_logits.astype(features.dtype)
        d_features = jnp.einsum("bcv,vd->bcd", d_logits, matrix)
        flat_logits, flat_features = d_logits.reshape(-1, vocab_size), features_BCD.reshape(-1, features.shape[-1])
        d_matrix = jnp.einsum("nv,nd->vd", flat_logits, flat_features, preferred_element_type=jnp.float32)
        # Laid out as the parameter is: else every device would hold and add up all of it.
        d_matrix = constrain(d_matrix, "vocab", "embed")
        return sums, (d_features, (d_matrix, d_bias))

    if chunk >= length:
        sums, gradients = one(features, targets, weights)
        return sums, gradients and _flat(*gradients, unembedding.dtype)

    padding = -length % chunk
    arrays = [jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2)) for x in (features, targets, weights)]

    def step(carry, start):
        sums, gradients = one(*(jax.lax.dynamic_slice_in_dim(x, start, chunk, axis=1) for x in arrays))
        sums = jax.tree.map(jnp.add, carry[0], sums)
        if not with_gradients:
            return (sums, None), None
        return (sums, jax.tree.map(jnp.add, carry[1], gradients[1])), gradients[0]

    zero_sums = Sums(*[jnp.zeros(())] * 3)
    shapes = (unembedding.shape, None if bias is None else bias.shape)
    zeros = tuple(None if shape is None else jnp.zeros(shape) for shape in shapes) if with_gradients else None
    starts = jnp.arange(0, length + padding, chunk)
    (sums, d_head), d_features = jax.lax.scan(step, (zero_sums, zeros), starts)
    if not with_gradients:
        return sums, None
    d_features = jnp.moveaxis(d_features, 0, 1).reshape(features.shape[0], length + padding, -1)[:, :length]
    return sums, _flat(d_features, d_head, unembedding.dtype)


def own_and_largest_other(logits, targets):
    """The targets' logits [...], and the largest of the others' [...], of logits [..., V] and targets [...]."""
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    own = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return own, jnp.where(is_target, -jnp.inf, logits).max(-1)


def _flat(d_features, d_head, dtype):
    return d_features, d_head[0].astype(dtype), d_head[1]


def chunk_length(rows: int, length: int, vocab_size: int, batch_shards: int = 1) -> int:
    """Into which even parts to cut [rows, length] so that each device holds at most about LOGITS_AT_ONCE."""
    chunks = -(-rows * length * vocab_size // (LOGITS_AT_ONCE * batch_shards))
    return -(-length // min(chunks, length))
