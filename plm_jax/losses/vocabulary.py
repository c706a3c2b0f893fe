"""Features of a batch, and losses of the vocabulary head that are computed from features."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from plm_jax.losses.cross_entropy import Bias, CrossEntropy, Features, sum_over_vocabulary
from plm_jax.losses.loss import Batch, Loss

Keys = Mapping[str, jax.Array] | None
Sum = Float[Array, ""]


def dropout_keys(rngs: Keys) -> dict[str, jax.Array]:
    """Returns the entry `dropout` of `rngs` as a dict for Linen; the dict is empty if there is no such entry."""
    return {name: key for name, key in (rngs or {}).items() if name == "dropout"}


def features_of(model: Any, params: Any, batch: Batch, rngs: Keys) -> Float[Array, "batch length *dims"]:
    """Returns the model's features of a batch, [B, L, D]. Without a key `dropout` in `rngs`, there is no dropout."""
    keys = dropout_keys(rngs)
    inputs = model.model.read(batch)
    return model.apply({"params": params}, **inputs, deterministic=not keys, rngs=keys, method="features")


def at_targets(features: Float[Any, "batch length dim"], batch: Batch) -> Float[Array, "batch targets dim"]:
    """Gathers the features at `target_positions`, [B, L, D] → [B, T, D]."""
    return jnp.take_along_axis(features, batch["target_positions"][..., None], axis=1)


def head(model: Any, params: Any, features: Features) -> tuple[Float[Any, "batch targets columns"], Any, Bias | None]:
    """Returns the inputs, the matrix and the bias of the unembedding, for features [B, T, D].

    Returns:
      Inputs [B, T, E]; matrix [V, E]; bias [V] or None.
    """
    features = model.apply({"params": params}, features, method="head_features")
    matrix, bias = model.apply({"params": params}, method="unembedding")
    return features, matrix, bias


def sums(
    loss: Loss, features: Features, unembedding: Any, bias: Bias | None, batch: Batch
) -> tuple[Sum, dict[str, Sum]]:
    """Returns a pair: the cross-entropy of a head with `targets` [B, T], and the metrics `nll` and `accuracy`.

    All results are sums over targets, weighted by `target_weights`.

    Args:
      loss: the loss whose `z_loss`, `label_smoothing` and `logits_at_once` apply.
      features, unembedding, bias: results of `head`.
    """
    compute, tokens = CrossEntropy(loss.z_loss, loss.label_smoothing), (batch["targets"], batch["target_weights"])
    totals = sum_over_vocabulary(compute, features, unembedding, bias, tokens, (), loss.logits_at_once)
    return totals.loss, {"nll": totals.nll, "accuracy": totals.correct}
