"""What is minimised: pure functions `(model, params, batch, rngs, carry) → (loss_sum, weight_sum, metrics, carry)`.

Sums over the batch, not means, so that microbatches and hosts add up and are divided once. Metrics are sums too.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Logits that one device holds at a time; 2**25 in float32 are 128 MiB.
LOGITS_AT_ONCE = 2**25


class Sums(NamedTuple):
    """Sums over target tokens: the loss to minimise, the plain negative log-likelihood (nats), hits of the argmax."""

    loss: jax.Array
    nll: jax.Array
    correct: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def linear_cross_entropy(features, unembedding, targets, weights, z_loss, label_smoothing, chunk) -> Sums:
    """Cross-entropy of features @ unembedding.T without ever holding all logits.

    The forward pass walks over `chunk` positions at a time; when it is differentiated it leaves the gradients instead
    of the logits, so nothing is computed twice. Only `loss` has a gradient.

    Args:
      features: [B, L, D].
      unembedding: [V, D].
      targets: int32 [B, L].
      weights: float32 [B, L].
      z_loss: factor of log(Z)² per token (Chowdhery et al. 2022 §5).
      label_smoothing: share of the target's mass spread evenly over the vocabulary.
      chunk: positions of L at a time.
    """
    return _walk(features, unembedding, targets, weights, z_loss, label_smoothing, chunk, with_gradients=False)[0]


def _forward(features, unembedding, targets, weights, z_loss, label_smoothing, chunk):
    sums, gradients = _walk(
        features, unembedding, targets, weights, z_loss, label_smoothing, chunk, with_gradients=True
    )
    return sums, gradients


def _backward(z_loss, label_smoothing, chunk, gradients, cotangents):
    d_features, d_unembedding = (g * cotangents.loss.astype(g.dtype) for g in gradients)
    return d_features, d_unembedding, None, None


linear_cross_entropy.defvjp(_forward, _backward)


def _walk(features, unembedding, targets, weights, z_loss, label_smoothing, chunk, *, with_gradients):
    """(Sums, (d loss / d features [B, L, D], d loss / d unembedding [V, D]) or None), chunk by chunk."""
    length = features.shape[1]
    matrix = unembedding.astype(features.dtype)

    def one(features_BCD, targets_BC, weights_BC):
        logits = jnp.einsum("bcd,vd->bcv", features_BCD, matrix, preferred_element_type=jnp.float32)
        largest = logits.max(-1)
        exp = jnp.exp(logits - largest[..., None])
        z = exp.sum(-1)
        log_z = largest + jnp.log(z)
        of_target = jnp.take_along_axis(logits, targets_BC[..., None], axis=-1)[..., 0]
        nll = log_z - of_target
        loss = nll + z_loss * log_z**2
        if label_smoothing:
            loss = loss + label_smoothing * (of_target - logits.mean(-1))
        # An argmax costs as much as a softmax on a CPU; a target whose logit is the largest is the argmax.
        correct = (of_target >= largest).astype(jnp.float32)
        sums = Sums(*(jnp.sum(x * weights_BC) for x in (loss, nll, correct)))
        if not with_gradients:
            return sums, None
        vocab_size = logits.shape[-1]
        hard = jnp.where(jnp.arange(vocab_size) == targets_BC[..., None], 1 - label_smoothing, 0.0)
        soft = exp * ((1 + 2 * z_loss * log_z) / z)[..., None]
        d_logits = weights_BC[..., None] * (soft - hard - label_smoothing / vocab_size)
        d_logits = d_logits.astype(features.dtype)
        d_features = jnp.einsum("bcv,vd->bcd", d_logits, matrix)
        flat_logits, flat_features = d_logits.reshape(-1, vocab_size), features_BCD.reshape(-1, features.shape[-1])
        d_matrix = jnp.einsum("nv,nd->vd", flat_logits, flat_features, preferred_element_type=jnp.float32)
        return sums, (d_features, d_matrix)

    if chunk >= length:
        return _cast(one(features, targets, weights), unembedding.dtype)

    padding = -length % chunk
    arrays = [jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2)) for x in (features, targets, weights)]

    def step(carry, start):
        sums, gradients = one(*(jax.lax.dynamic_slice_in_dim(x, start, chunk, axis=1) for x in arrays))
        sums = jax.tree.map(jnp.add, carry[0], sums)
        if not with_gradients:
            return (sums, None), None
        return (sums, carry[1] + gradients[1]), gradients[0]

    zero_sums = Sums(*[jnp.zeros(())] * 3)
    zero_matrix = jnp.zeros(unembedding.shape, jnp.float32) if with_gradients else None
    starts = jnp.arange(0, length + padding, chunk)
    (sums, d_matrix), d_features = jax.lax.scan(step, (zero_sums, zero_matrix), starts)
    if not with_gradients:
        return sums, None
    d_features = jnp.moveaxis(d_features, 0, 1).reshape(features.shape[0], length + padding, -1)[:, :length]
    return _cast((sums, (d_features, d_matrix)), unembedding.dtype)


def _cast(walked, dtype):
    sums, gradients = walked
    return sums, gradients and (gradients[0], gradients[1].astype(dtype))


def chunk_length(rows: int, length: int, vocab_size: int, batch_shards: int = 1) -> int:
    """Into which even parts to cut [rows, length] so that each device holds at most about LOGITS_AT_ONCE."""
    chunks = -(-rows * length * vocab_size // (LOGITS_AT_ONCE * batch_shards))
    return -(-length // min(chunks, length))


def causal(model, params, batch, rngs, carry, *, z_loss=0.0, label_smoothing=0.0, batch_shards=1):
    """Next-token cross-entropy of `tokens` against `targets` under `target_weights`; no `rngs`: no dropout."""
    features = model.apply(
        {"params": params},
        batch["tokens"],
        positions=batch.get("positions"),
        segment_ids=batch.get("segment_ids"),
        deterministic=rngs is None,
        rngs=rngs,
        method="features",
    )
    unembedding = model.apply({"params": params}, method="unembedding")
    chunk = chunk_length(*features.shape[:2], unembedding.shape[0], batch_shards)
    sums = linear_cross_entropy(
        features, unembedding, batch["targets"], batch["target_weights"], z_loss, label_smoothing, chunk
    )
    weight = batch["target_weights"].sum()
    return sums.loss, weight, {"nll": sums.nll, "accuracy": sums.correct}, carry


LOSSES = {"causal": causal}
